"""`repair`: a dataset of the whole shards in a folder, its manifest built anew where it must be; what is lost is said.

Nothing that could hold an episode is deleted: shards that are not part of the dataset, and files that nobody listed, are moved
to `quarantine/`. What is removed cannot be read by anybody: half-written files, empty ones, uploads that were never completed.
Everything is read before anything is changed, and changed only while this process holds the lock. Killed at any point, the
folder is one that another repair, or `--resume`, continues from.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import orjson

from offline_cli.checked_keywords import checked
from offline_cli.checking.repair.facts import (
    FACTS,
    Facts,
    facts_of_document,
    facts_of_manifest,
    facts_of_note,
    facts_of_shards,
)
from offline_cli.datasets.card import write_card
from offline_cli.datasets.file_names import (
    BATCHES,
    DATA,
    DATASET,
    MANIFEST,
    QUARANTINE,
    TRAIN_BATCHES,
    UNFINISHED_WRITING,
    WRITING,
    generation_of,
    shard_name,
)
from offline_cli.datasets.lock import APPENDS_TO, Changed, WritingLock, WritingNote, refuse_if_at_work, unlock
from offline_cli.datasets.manifest import Counts, Manifest, Shard, now, with_defaults
from offline_cli.datasets.ownership import free_place, is_own_part, is_regular, keep_moves, keep_names, numbered, set_aside
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.row_formats import RowFormat, row_format
from offline_cli.datasets.shard_sequence import Adopted, ShardSequence, adopt
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.errors import BadData, Locked, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.stop_signals import check
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import whole_file, write_whole
from offline_cli.storage.uploads import Upload, open_uploads
from offline_cli.tally import Tally

__all__ = ["LEFT_OUT", "RepairResult", "repair"]

LEFT_OUT: Final = "broken-shard-left-out"
"""Among the assumptions of a manifest: how many."""
RESTORE: Final = "restore it from a copy, or write the dataset again from its source"
TRAIN_FIX: Final = "write it again from its recordings: offline-cli apply ... --overwrite"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """A dataset after its repair; of a dry run: as it would be. None: not known, because only the note was removed."""

    out: str
    format: str | None = None  # "episodes" | "columns"
    episodes: int | None = None
    steps: int | None = None
    shards: int | None = None
    adopted: int = 0  # shards that no manifest listed before
    dropped: int  # half-written files, uploads and shards that are not part of it: the lists below together
    changed: bool  # False: nothing was wrong
    complete: bool | None = None  # whether all that was once asked for is in it
    resumable: bool | None = None  # whether --resume continues from here
    broken: tuple[dict[str, str], ...] = ()  # shards left out: path, why
    removed: tuple[str, ...]  # half-written files and uploads, which are unreadable
    set_aside: tuple[str, ...] = ()  # files moved to quarantine/, by their paths before
    based_on: str | None = None  # the origin of format, spaces and all that shards do not record: "note", "manifest", "shards"
    dry_run: bool  # nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, by the keys of `--json`."""
        told = asdict(self)
        return {**told, "broken": list(told["broken"]), "removed": list(told["removed"]), "set_aside": list(told["set_aside"])}


@checked
def repair(
    out: str,
    *,
    env: str | None = None,
    drop_broken: bool = False,
    keep: str | None = None,
    force_unlock: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = no_progress,
    command: Sequence[str] = (),
) -> RepairResult:
    """Make dataset folder `out` a dataset again, whatever a writer left there, or damage did.

    Broken shards raise, by name, without `drop_broken`. `force_unlock` removes the note of a writer, and does nothing else.

    Raises StorageNotFound, NoData where nothing is to be repaired, Locked while a writer is at work, BadData for broken shards,
    BadConfig where the spaces are unknown, UsageError where `keep` is needed, or beside `force_unlock`, StorageError.
    """
    options = dict(locals())
    folder, began = open_location(out, options["storage_options"]), time.monotonic()
    asked_env = AskedEnvironment.of(options)
    if options["force_unlock"]:
        if drop_broken or keep is not None or asked_env is not None:
            fix = "take the note away first, then repair"
            raise UsageError("--force-unlock does nothing else", where="--drop-broken, --keep or --env", fix=fix)
        if not folder.exists():
            raise folder.missing()
        removed = (folder.join(WRITING).url,) if unlock(folder, remove=True, dry_run=dry_run) else ()
        told: dict[str, Any] = {"dropped": len(removed), "changed": bool(removed), "removed": removed, "dry_run": dry_run}
        return RepairResult(out=folder.url, **told, seconds=time.monotonic() - began)
    said = shlex.join(command) if command else this_command()
    found = _listed(folder)
    shards, expected, facts, missing = _chosen(found, keep, asked_env)
    plan = _Plan(found, shards, expected, facts, said, dry_run, began, row_format(facts.format, *_spaces(facts), Tally()))
    plan.broken += missing
    _read(plan, on_progress)
    if plan.broken and not (drop_broken and plan.sound):
        raise _refused(plan)
    if plan.changes and not dry_run:
        _act(plan)
    elif not dry_run:
        keep_names(folder)  # who made it right may have been killed before that
    return plan.result()


def _spaces(facts: Facts) -> tuple[Any, Any]:
    return facts.observation_space, facts.action_space


def _refused(plan: _Plan) -> BadData:
    named = "; ".join(f"{place.name}: {why}" for place, why in plan.broken[:3]) + ("; ..." if len(plan.broken) > 3 else "")
    told = plan.result().as_dict()
    result = {name: told.pop(name) for name in ("out", "format", "broken", "dry_run", "seconds")} | {"changed": False}
    if not plan.sound:
        return BadData(
            f"no shard is whole, and nothing would be left: {named}", where=plan.folder.url, fix=RESTORE, result=result
        )
    result["with_drop_broken"] = told
    what = f"{len(plan.broken):,} of {len(plan.broken) + len(plan.sound):,} shards are broken: {named}"
    fix = f"{RESTORE}; or leave them out with --drop-broken, which moves them to quarantine/"
    return BadData(what, where=plan.folder.url, fix=fix, result=result)


# ---- what is there ----


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The content of a folder at one moment."""

    folder: Location
    note_bytes: bytes | None
    note: WritingNote | None  # None also where it cannot be read
    manifest_bytes: bytes | None
    manifest: Manifest | None  # None also where it cannot be read
    shards: Mapping[str, Mapping[int, Location]]  # files named as shards, with something in them: generation -> number -> place
    others: tuple[Location, ...]  # further files in data/ that readers of it would include
    half_written: tuple[Location, ...]
    uploads: tuple[Upload, ...]


def _listed(folder: Location) -> _Found:
    """List the folder. Raises Locked where its writer is at work, NoData where nothing of ours is there, StorageError."""
    note_bytes, manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
    note = WritingNote.if_any(note_bytes, where=folder.join(WRITING).url)
    if note is not None:
        try:
            refuse_if_at_work(note, folder.join(WRITING))
        except Locked as error:
            fix = "wait for it, or end it, and repair then; of one on another machine that has ended, --force-unlock first"
            raise Locked(error.what, where=error.where, fix=fix, details=error.details) from error
        if note.writes != DATASET.noun:
            what = f"an unfinished {note.writes} is here: it cannot be continued in the middle, nor repaired"
            raise NoData(what, where=folder.url, fix=TRAIN_FIX)
    try:
        manifest = Manifest.from_bytes(manifest_bytes, where=folder.join(MANIFEST).url) if manifest_bytes else None
    except BadData:
        manifest = None
    listed = {shard.path for shard in manifest.shards} if manifest else set()
    shards: dict[str, dict[int, Location]] = {}
    others, half_written = list[Location](), [child for child in folder.children() if is_own_part(child)]
    data = folder.join(DATA)
    for file in data.files() if data.exists() else []:
        match = numbered(file, folder, DATASET)
        if match and match[0] not in listed and is_regular(file) and not file.size():
            half_written.append(file)
        elif match:
            shards.setdefault(match["generation"], {})[int(match["number"])] = file
        elif not any(part.startswith((".", "_")) for part in file.path[len(data.path) :].split("/")):
            others.append(file)
    if note_bytes is None and manifest_bytes is None and not shards:
        if not folder.exists():
            raise folder.missing()
        if folder.join(BATCHES).exists():
            raise NoData(f"a {TRAIN_BATCHES.noun} is here, which is not repaired", where=folder.url, fix=TRAIN_FIX)
        fix = "name the folder of a dataset, the one with manifest.json or _writing.json in it"
        raise NoData("no dataset is here, nor anything left of one", where=folder.url, fix=fix)
    uploads = tuple(open_uploads(data))
    return _Found(folder, note_bytes, note, manifest_bytes, manifest, shards, tuple(others), tuple(half_written), uploads)


Broken = tuple[Location, str]  # a shard, and why it cannot be part of the dataset


def _chosen(
    found: _Found, keep: str | None, env: AskedEnvironment | None
) -> tuple[list[Location], Mapping[str, Shard], Facts, list[Broken]]:
    """The shards that are to be the dataset, what a manifest says of them by their paths, what is known of them, and those that
    are missing. `keep`: `old` or `new` of one that was being overwritten, or a generation.

    Raises NoData where no shard is there, UsageError where `keep` is needed, or names nothing, and as `facts_of_shards` does.
    """
    folder, note, manifest = found.folder, found.note, found.manifest
    if keep not in (None, "old", "new", *found.shards):
        fix = f"use old, new or {' or '.join(found.shards)}"
        raise UsageError(f"there are no shards of {keep!r}", where=f"--keep for {folder.url}", fix=fix)
    said = {folder.join(shard.path).path: shard for shard in manifest.shards} if manifest else {}
    there = {place.path for numbers in found.shards.values() for place in numbers.values()}
    begun = note.generation if note is not None and note.generation in found.shards else None
    listed = {generation_of(shard.path) for shard in said.values()}
    appends = note is not None and APPENDS_TO in note.options
    if manifest is not None and keep is None and begun and listed and begun not in listed and not appends:
        raise _two_datasets(found, manifest, begun)
    if manifest is not None and keep in (None, "old") and (begun is None or listed - {begun}):
        places = [folder.join(shard.path) for shard in manifest.shards]
        missing = [(place, "it is missing") for place in places if place.path not in there]
        if appends and keep is None and begun is not None:
            places += _in_order(found.shards[begun], but=said)
            missing += _gaps(found, begun)
        return [place for place in places if place.path in there], said, facts_of_manifest(manifest), missing
    generation = keep if keep in found.shards else begun or _only_generation(found)
    assert generation is not None, "there are shards"
    places, missing = _in_order(found.shards[generation]), _gaps(found, generation)
    if note is not None and note.generation == generation and note.options:
        facts = facts_of_note(note, folder.join(WRITING).url)
        if manifest is not None and generation in listed:
            before = {name: getattr(manifest, name) for name in ("assumptions", "provenance", "episodes_lost")}
            facts = replace(facts, **before)
        return places, {}, facts, missing  # they may have been written again since, with more columns
    left = _left_of(found.manifest_bytes)
    known = facts_of_document(left, folder.join(MANIFEST).url) if left else None
    return places, said, known or facts_of_shards(folder, places, env, left), missing


def _in_order(numbers: Mapping[int, Location], but: Container[str] = ()) -> list[Location]:
    return [numbers[number] for number in sorted(numbers) if numbers[number].path not in but]


def _gaps(found: _Found, generation: str) -> list[Broken]:
    """Shards that are missing between others; one may have any number, so a gap is one entry."""
    missing = []
    for before, number in pairwise([-1, *sorted(found.shards[generation])]):
        if number > before + 1:
            more = f", and so are the {number - before - 2:,} after it" if number > before + 2 else ""
            missing.append((found.folder.join(shard_name(generation, before + 1)), f"it is missing{more}"))
    return missing


def _left_of(manifest: bytes | None) -> dict[str, Any]:
    """What can be read of a manifest that is broken, unchecked; empty where it is no JSON object."""
    try:
        document = orjson.loads(manifest or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _only_generation(found: _Found) -> str:
    if not found.shards:
        what = "no complete shard is here, and no readable manifest: there is nothing to repair"
        fix = "run the command that was writing here, with --resume or --overwrite"
        raise NoData(what, where=found.folder.url, fix=fix)
    if len(found.shards) > 1:
        what = f"shards of {len(found.shards)} writes are here, and nothing readable tells which of them is the dataset"
        raise UsageError(what, where=found.folder.url, fix=f"--keep {' or --keep '.join(sorted(found.shards))}")
    return next(iter(found.shards))


def _two_datasets(found: _Found, manifest: Manifest, begun: str) -> UsageError:
    there = f"a dataset ({manifest.counts.episodes} episodes in {len(manifest.shards)} shards)"
    what = f"{there} was being overwritten, and {len(found.shards[begun])} complete shards of the new one are here"
    fix = "--keep old for the one that was there, --keep new for what there is of the new one; the other goes to quarantine/"
    return UsageError(what, where=found.folder.url, fix=fix)


# ---- what is to be done ----


@dataclass(slots=True, eq=False)
class _Plan:
    """One repair."""

    found: _Found
    shards: list[Location]  # in reading order
    expected: Mapping[str, Shard]  # by path: what they must be to the last byte
    facts: Facts
    command: str
    dry_run: bool
    began: float
    rows: RowFormat
    sound: list[Adopted] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    statistics: StatisticsBuilder = field(default_factory=StatisticsBuilder)

    @property
    def folder(self) -> Location:
        """The dataset's."""
        return self.found.folder

    @property
    def kept(self) -> Manifest | None:
        """The manifest that is right as it is."""
        manifest = self.found.manifest
        mine = [adopted.shard.path for adopted in self.sound]
        return manifest if manifest and not self.broken and mine == [shard.path for shard in manifest.shards] else None

    @property
    def aside(self) -> list[Location]:
        """Files in `data/` that go to quarantine."""
        sound = {adopted.shard.path for adopted in self.sound}
        files = [place for numbers in self.found.shards.values() for place in numbers.values()]
        rest = (place for place in [*files, *self.found.others] if f"{DATA}/{place.name}" not in sound)
        return sorted(rest, key=lambda place: place.path)

    @property
    def removed(self) -> tuple[str, ...]:
        """Unreadable files, which are removed."""
        return (*(file.url for file in self.found.half_written), *map(str, self.found.uploads))

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.kept is None or self.found.note_bytes is not None or bool(self.aside or self.removed)

    @property
    def resumable(self) -> bool:
        """Whether `--resume` of the command that began it would continue."""
        kept = self.kept
        if kept is not None:
            return not kept.complete and UNFINISHED_WRITING in kept.provenance
        return self.facts.resumes is not None and not self.broken

    def adopted(self) -> int:
        """How many shards no manifest listed before."""
        listed = {shard.path for shard in self.found.manifest.shards} if self.found.manifest else set()
        return sum(one.shard.path not in listed for one in self.sound)

    def manifest(self, shards: Sequence[Shard]) -> Manifest:
        """The one that will be written."""
        facts, figures, left_out = self.facts, self.statistics, len(self.broken)
        assumptions = {**facts.assumptions, **({LEFT_OUT: left_out} if left_out else {})}
        before = {name: value for name, value in facts.provenance.items() if name != UNFINISHED_WRITING}
        repairs = before.get("repaired")
        this = {"at": now(), "command": self.command, "based_on": facts.said_by, "adopted": self.adopted()}
        this["broken"] = [place.name for place, _ in self.broken]
        provenance = {**before, "repaired": [*(repairs if isinstance(repairs, list) else []), this]}
        if self.resumable and facts.resumes is not None:
            provenance[UNFINISHED_WRITING] = facts.resumes.within_manifest(facts.environment and facts.environment.as_json())
        unfinished = figures.unfinished_with(assumptions)
        return Manifest(
            **{name: getattr(facts, name) for name in FACTS},
            complete=False,  # of what was asked for, shards say nothing
            counts=Counts(figures.episodes, figures.steps, figures.terminated, figures.truncated, unfinished),
            shards=tuple(shards),
            statistics=figures.as_json(),
            assumptions=assumptions,
            provenance=with_defaults(provenance, started=now()),
            episodes_lost=None if left_out else facts.episodes_lost,  # the ones in a shard that is gone are unknown
        )

    def result(self) -> RepairResult:
        """The report to the caller."""
        manifest = self.kept or self.manifest([adopted.shard for adopted in self.sound])
        there = {place.path for place in self.aside}
        gone = sum(place.path not in there for place, _ in self.broken)
        return RepairResult(
            out=self.folder.url,
            format=manifest.format,
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            adopted=self.adopted(),
            dropped=len(self.removed) + len(self.aside) + gone,
            changed=self.changes,
            complete=manifest.complete,
            resumable=self.resumable,
            broken=tuple({"path": place.url, "why": why} for place, why in self.broken),
            removed=self.removed,
            set_aside=tuple(place.url for place in self.aside),
            based_on=self.facts.said_by,
            dry_run=self.dry_run,
            seconds=time.monotonic() - self.began,
        )


def _read(plan: _Plan, on_progress: OnProgress) -> None:
    """Read each shard to its last episode: whole, or broken where it cannot be read, is not its manifest's, or repeats one."""
    reader, ids = ShardReader(plan.facts.format, *_spaces(plan.facts)), set[str]()
    for number, place in enumerate(plan.shards):
        check()
        statistics = plan.statistics.copy()
        try:
            adopted = adopt(place, reader, plan.rows, statistics)
            said = plan.expected.get(place.path)
            if said is not None and (said.bytes, said.sha256) != (adopted.shard.bytes, adopted.shard.sha256):
                what = f"its sha256 is {adopted.shard.sha256[:12]}..., the manifest says {said.sha256[:12]}..."
                raise BadData(what, where=place.url, fix="")
            again = ids.intersection(adopted.ids) or {name for name, times in Counter(adopted.ids).items() if times > 1}
            if again:
                raise BadData(f"episode {min(again)!r} is in it, and was before", where=place.url, fix="")
        except BadData as error:
            plan.broken.append((place, error.what))
        else:
            plan.sound.append(adopted)
            plan.statistics = statistics
            ids.update(adopted.ids)
        on_progress(Progress("reading shards", number + 1, len(plan.shards), "shards"))


def _act(plan: _Plan) -> None:
    """Carry it out. Raises Locked where another process was faster, StorageError."""
    found, folder, lock = plan.found, plan.folder, WritingLock(plan.folder)
    before = found.note
    kept = ("", {}, 0) if before is None else (before.generation, before.options, before.first_quarantine)
    try:
        lock.acquire(WritingNote.of_this_process(*kept, plan.command), instead_of=found.note_bytes)
    except Changed as err:
        what = "another process changed the dataset while it was being read"
        raise Locked(what, where=folder.url, fix="the same command again") from err
    try:
        for file in found.half_written:
            file.remove()
        for upload in found.uploads:
            upload.abort()
        if plan.kept is None:
            _write_manifest(plan, lock)
        for file in plan.aside:
            with lock.guard():
                set_aside(file, folder)
        keep_moves(plan.aside, folder)
        keep_names(folder.join(DATA))  # files without bytes have gone from it
        lock.release()
    finally:
        if lock.held and found.note_bytes is not None:
            lock.leave()  # it describes the dataset as the one that it replaced
        elif lock.held:
            lock.release()


def _write_manifest(plan: _Plan, lock: WritingLock) -> None:
    folder = plan.folder
    sequence = ShardSequence(folder, "", compression=plan.facts.compression, guard=lock.guard)
    for adopted in plan.sound:
        sequence.adopt(adopted.shard, adopted.schema)
    sequence.complete(plan.rows)
    manifest = plan.manifest(sequence.finished)
    keep_names(folder.join(DATA), folder.join(QUARANTINE))  # whose writer may have been killed before that
    with lock.guard():  # shards may have taken long
        if plan.found.manifest_bytes is not None:
            copy = free_place(folder, MANIFEST)
            folder.join(QUARANTINE).make_folder()
            write_whole(copy, plan.found.manifest_bytes, folder=folder)
        write_whole(folder.join(MANIFEST), manifest.to_bytes(), folder=folder)
        write_card(folder, manifest)
