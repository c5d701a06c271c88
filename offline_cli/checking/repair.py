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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

import orjson

from offline_cli.checked_keywords import checked
from offline_cli.choices import COMPRESSION
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_opened
from offline_cli.datasets.card import write_card
from offline_cli.datasets.file_names import (
    BATCHES,
    DATA,
    MANIFEST,
    QUARANTINE,
    TRAIN_BATCHES,
    UNFINISHED_WRITING,
    WRITING,
    generation_of,
    shard_name,
)
from offline_cli.datasets.lock import APPENDS_TO, WritingLock, WritingNote, refuse_if_at_work, unlock
from offline_cli.datasets.manifest import Environment, Manifest, Shard, now, valid_parts, with_defaults
from offline_cli.datasets.ownership import (
    free_place,
    is_own_part,
    is_regular,
    keep_moves,
    keep_names,
    numbered,
    set_aside,
    shard_files,
)
from offline_cli.datasets.reading import RowFormat, ShardReader, row_format
from offline_cli.datasets.shard_sequence import Adopted, adopt
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.environments import spaces_of_env
from offline_cli.errors import BadConfig, BadData, Locked, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.meanings import NO_MEANINGS
from offline_cli.parquet.shard_writing import COMPRESSIONS
from offline_cli.parquet.shards import opened
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
DEFAULTS: Final[Mapping[str, Any]] = {
    "spaces_inferred": False,
    "action_scale": "unknown",
    "environment": None,
    "meanings": NO_MEANINGS,
    "compression": COMPRESSION,
    "assumptions": {},
    "provenance": {},
    "episodes_lost": None,
}
"""Of what shards do not say."""
Broken = tuple[Location, str]  # a shard, and why it cannot be part of the dataset


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
    asked_env, folder, began = AskedEnvironment.of(dict(locals())), open_location(out, storage_options), time.monotonic()
    if force_unlock:
        if drop_broken or keep is not None or asked_env is not None:
            fix = "take the note away first, then repair"
            raise UsageError("--force-unlock does nothing else", where="--drop-broken, --keep or --env", fix=fix)
        if not folder.exists():
            raise folder.missing()
        removed = (folder.join(WRITING).url,) if unlock(folder, remove=True, dry_run=dry_run) else ()
        told: dict[str, Any] = {"dropped": len(removed), "changed": bool(removed), "removed": removed, "dry_run": dry_run}
        return RepairResult(out=folder.url, **told, seconds=time.monotonic() - began)
    said = shlex.join(command) if command else this_command()
    found = _found(folder)
    plan = _Plan(found, *_chosen(found, keep, asked_env), said)
    plan.read(on_progress)
    result = plan.result(dry_run=dry_run, seconds=time.monotonic() - began)
    if plan.broken and not (drop_broken and plan.sound):
        raise _refused(plan, result)
    if result.changed and not dry_run:
        plan.act()
    elif not dry_run:
        keep_names(folder)  # who made it right may have been killed before that
    return result


def _refused(plan: _Plan, result: RepairResult) -> BadData:
    named = "; ".join(f"{place.name}: {why}" for place, why in plan.broken[:3]) + ("; ..." if len(plan.broken) > 3 else "")
    rest = result.as_dict()
    told = {name: rest.pop(name) for name in ("out", "format", "broken", "dry_run", "seconds")} | {"changed": False}
    what, fix = f"no shard is whole, and nothing would be left: {named}", RESTORE
    if plan.sound:
        told["with_drop_broken"] = rest
        what = f"{len(plan.broken):,} of {len(plan.broken) + len(plan.sound):,} shards are broken: {named}"
        fix = f"{RESTORE}; or leave them out with --drop-broken, which moves them to quarantine/"
    return BadData(what, where=plan.found.folder.url, fix=fix, result=told)


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
    others: Sequence[Location]  # further files in data/ that readers of it would include
    half_written: Sequence[Location]
    uploads: Sequence[Upload]

    @property
    def listed(self) -> dict[str, Shard]:
        """What the manifest lists, by path in the storage."""
        return {self.folder.join(shard.path).path: shard for shard in (self.manifest.shards if self.manifest else ())}


def _found(folder: Location) -> _Found:
    """List the folder. Raises Locked where its writer is at work, NoData where nothing of ours is there, StorageError."""
    note_bytes, manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
    note = WritingNote.if_any(note_bytes, where=folder.join(WRITING).url)
    if note is not None:
        try:
            refuse_if_at_work(note, folder.join(WRITING))
        except Locked as error:
            fix = "wait for it, or end it, and repair then; of one on another machine that has ended, --force-unlock first"
            raise Locked(error.what, where=error.where, fix=fix, details=error.details) from error
        if note.writes == TRAIN_BATCHES.noun:
            raise NoData(f"an unfinished {note.writes} is here, which is not repaired", where=folder.url, fix=TRAIN_FIX)
    try:
        manifest = Manifest.from_bytes(manifest_bytes, where=folder.join(MANIFEST).url) if manifest_bytes else None
    except BadData:
        manifest = None
    listed = {shard.path for shard in manifest.shards} if manifest else set()
    data, shards = folder.join(DATA), shard_files(folder)
    empty = [
        numbers.pop(number)
        for numbers in shards.values()
        for number, file in [*numbers.items()]
        if f"{DATA}/{file.name}" not in listed and is_regular(file) and not file.size()
    ]
    shards = {generation: numbers for generation, numbers in shards.items() if numbers}
    others = [
        file
        for file in (data.files() if data.exists() else [])
        if numbered(file, folder) is None
        and not any(part.startswith((".", "_")) for part in file.path[len(data.path) :].split("/"))
    ]
    if note_bytes is None and manifest_bytes is None and not shards:
        if not folder.exists():
            raise folder.missing()
        if folder.join(BATCHES).exists():
            raise NoData(f"a {TRAIN_BATCHES.noun} is here, which is not repaired", where=folder.url, fix=TRAIN_FIX)
        fix = "name the folder of a dataset, the one with manifest.json or _writing.json in it"
        raise NoData("no dataset is here, nor anything left of one", where=folder.url, fix=fix)
    half_written = [*filter(is_own_part, folder.children()), *empty]
    return _Found(folder, note_bytes, note, manifest_bytes, manifest, shards, others, half_written, open_uploads(data))


# ---- which shards are the dataset, and what is known of it ----


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What shards do not record."""

    said_by: str  # "note" | "manifest" | "shards"
    parts: Mapping[str, Any]  # by the names of a manifest: `format`, the spaces, and those of DEFAULTS
    resumes: WritingNote | None = None  # the note that --resume would continue from, if all of its shards are whole

    @property
    def spaces(self) -> tuple[Any, Any]:
        return self.parts["observation_space"], self.parts["action_space"]


def _chosen(
    found: _Found, keep: str | None, env: AskedEnvironment | None
) -> tuple[list[Location], Mapping[str, Shard], _Facts, list[Broken]]:
    """The shards that are to be the dataset, what a manifest says of them by their paths, what is known of them, and those that
    are missing. `keep`: `old` or `new` of one that was being overwritten, or a generation.

    Raises NoData where no shard is there, UsageError where `keep` is needed, or names nothing, and as `_facts_of_shards` does.
    """
    folder, note, manifest, said = found.folder, found.note, found.manifest, found.listed
    if keep not in (None, "old", "new", *found.shards):
        fix = f"use old, new or {' or '.join(found.shards)}"
        raise UsageError(f"there are no shards of {keep!r}", where=f"--keep for {folder.url}", fix=fix)
    begun = note.generation if note is not None and note.generation in found.shards else None
    listed = {generation_of(shard.path) for shard in said.values()}
    appends = note is not None and APPENDS_TO in note.options
    if manifest is not None and keep is None and begun and listed and begun not in listed and not appends:
        raise _two_datasets(found, manifest, begun)
    if manifest is not None and keep in (None, "old") and (begun is None or listed - {begun}):
        there = {place.path for numbers in found.shards.values() for place in numbers.values()}
        places = [folder.join(shard.path) for shard in manifest.shards]
        missing = [(place, "it is missing") for place in places if place.path not in there]
        if appends and keep is None and begun is not None:
            added = sorted(found.shards[begun].items())
            places += [place for _, place in added if place.path not in said]
            missing += _gaps(found, begun)
        return [place for place in places if place.path in there], said, _Facts("manifest", _parts_of(manifest)), missing
    generation = keep if keep in found.shards else begun or _only_generation(found)
    assert generation is not None, "there are shards"
    places = [place for _, place in sorted(found.shards[generation].items())]
    facts = None
    if note is not None and note.generation == generation and note.options:
        said = {}  # they may have been written again since, with more columns
        facts = _facts_of_note(note, found if generation in listed else None, folder.join(WRITING).url)
    else:
        facts = _facts_of_broken(found.manifest_bytes)
    return places, said, facts or _facts_of_shards(folder, places, env), _gaps(found, generation)


def _gaps(found: _Found, generation: str) -> list[Broken]:
    """Shards that are missing between others; one may have any number, so a gap is one entry."""
    missing = []
    for before, number in pairwise([-1, *sorted(found.shards[generation])]):
        if number > before + 1:
            more = f", and so are the {number - before - 2:,} after it" if number > before + 2 else ""
            missing.append((found.folder.join(shard_name(generation, before + 1)), f"it is missing{more}"))
    return missing


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


def _parts_of(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in ("format", "observation_space", "action_space", *DEFAULTS)}


def _facts_of_note(note: WritingNote, committed: _Found | None, where: str) -> _Facts:
    """From the options that `DatasetWriter` keeps in its note; what it has counted is in the manifest, once it is `committed`.

    Raises BadData where they do not say format and spaces.
    """
    parts = {"provenance": {"commands": [note.command], "started": note.started}, **_known(note.options)}
    if "format" not in parts:
        what = "the note of the writer has no readable format or spaces"
        raise BadData(what, where=where, fix=f"the command that wrote it, with --overwrite: {note.command}")
    if committed is not None and committed.manifest is not None:
        parts |= {name: getattr(committed.manifest, name) for name in ("assumptions", "provenance", "episodes_lost")}
    return _Facts("note", {**DEFAULTS, **parts}, resumes=note)


def _facts_of_broken(manifest: bytes | None) -> _Facts | None:
    """What can be read of a broken manifest; None where format or spaces cannot."""
    try:
        document = orjson.loads(manifest or b"")
    except ValueError:
        return None
    parts = _known(document) if isinstance(document, dict) else {}
    return _Facts("manifest", {**DEFAULTS, **parts}) if "format" in parts else None


def _known(document: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a document that a manifest may have; no format where that, or the spaces, cannot be read."""
    parts = valid_parts(document, ("format", "observation_space", "action_space", *DEFAULTS))
    spaces = [parts.get(name) for name in ("observation_space", "action_space")]
    if len(parts.keys() & {"observation_space", "action_space"}) < 2 or (parts.get("format") == "columns" and None in spaces):
        parts.pop("format", None)
    if parts.get("compression") not in COMPRESSIONS:
        parts.pop("compression", None)
    return parts


def _facts_of_shards(folder: Location, shards: Sequence[Location], asked: AskedEnvironment | None) -> _Facts:
    """Format by the columns, spaces as `convert` would have them of the same files. `asked`: an environment whose spaces are
    theirs. Raises BadData where none can be read, BadConfig where spaces are not known.
    """
    readable = [place for place in shards if _opens(place)]
    if not readable:
        raise BadData("none of the shards can be read", where=folder.url, fix=RESTORE)
    first = readable[0]
    with opened(first) as file:
        packed = Columns.ITEM in file.schema_arrow.names
        codec = str(file.metadata.row_group(0).column(0).compression).lower()
    env = None if asked is None else asked.among([(folder.url, None)])
    source = (RllibEpisodesSource if packed else RllibColumnsSource)(readable, folder.url)
    try:
        stream = read_opened([source], on_error="skip", env=env, env_spaces=None if env is None else spaces_of_env(env))
    except NoData as err:
        raise BadData("no episode can be read from the shards", where=folder.url, fix=err.fix) from err
    stream.close()  # only its spaces are needed
    parts: dict[str, Any] = {
        "format": "episodes" if packed else "columns",
        "observation_space": stream.observation_space,
        "action_space": stream.action_space,
        "spaces_inferred": stream.spaces_inferred,
        "action_scale": stream.action_scale,
        "environment": Environment.of(env),
        **({"compression": codec} if codec in COMPRESSIONS else {}),
    }
    facts = _Facts("shards", {**DEFAULTS, **parts})
    try:
        with opened(first) as file:
            ShardReader(parts["format"], *facts.spaces).check_columns(file, first)
    except BadData as err:
        what = f"the spaces of the dataset are unknown, and they do not follow from its columns: {err.what}"
        raise BadConfig(what, where=first.url, fix="name the environment with --env") from err
    return facts


def _opens(place: Location) -> bool:
    try:
        with opened(place) as file:
            return bool(file.metadata.num_rows > 0)
    except BadData:
        return False


# ---- what is to be done ----


@dataclass(slots=True, eq=False)
class _Plan:
    """One repair."""

    found: _Found
    shards: list[Location]  # in reading order
    expected: Mapping[str, Shard]  # by path: what they must be to the last byte
    facts: _Facts
    broken: list[Broken]
    command: str
    sound: list[Adopted] = field(default_factory=list)
    statistics: EpisodeStatistics = field(default_factory=EpisodeStatistics)
    rows: RowFormat = field(init=False)

    def __post_init__(self) -> None:
        self.rows = row_format(self.facts.parts["format"], *self.facts.spaces, Tally())

    def read(self, on_progress: OnProgress) -> None:
        """Read each shard to its last episode: broken are those that cannot be read, are not the manifest's, or repeat one."""
        reader, ids = ShardReader(self.facts.parts["format"], *self.facts.spaces), set[str]()
        for number, place in enumerate(self.shards):
            check()
            try:
                adopted = adopt(place, reader, self.rows, statistics := EpisodeStatistics(), lambda _: None)
                self._refuse_other(adopted, place, ids)
            except BadData as error:
                self.broken.append((place, error.what))
            else:
                self.sound.append(adopted)
                self.statistics.include(statistics)
                ids.update(adopted.ids)
            on_progress(Progress("reading shards", number + 1, len(self.shards), "shards"))

    def _refuse_other(self, adopted: Adopted, place: Location, ids: set[str]) -> None:
        """Raise BadData where the shard is not the manifest's, or has an episode that is there already."""
        said, have = self.expected.get(place.path), adopted.shard
        if said is not None and (said.bytes, said.sha256) != (have.bytes, have.sha256):
            what = f"its sha256 is {have.sha256[:12]}..., the manifest says {said.sha256[:12]}..."
            raise BadData(what, where=place.url, fix="")
        if again := ids.intersection(adopted.ids) or {name for name, times in Counter(adopted.ids).items() if times > 1}:
            raise BadData(f"episode {min(again)!r} is in it, and was before", where=place.url, fix="")

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
    def resumable(self) -> bool:
        """Whether `--resume` of the command that began it would continue."""
        if (kept := self.kept) is not None:
            return not kept.complete and UNFINISHED_WRITING in kept.provenance
        return self.facts.resumes is not None and not self.broken

    @property
    def adopted(self) -> int:
        """How many shards no manifest listed before."""
        return sum(self.found.folder.join(one.shard.path).path not in self.found.listed for one in self.sound)

    def manifest(self, shards: Sequence[Shard]) -> Manifest:
        """The one that will be written."""
        parts, left_out, resumes = dict(self.facts.parts), len(self.broken), self.facts.resumes
        assumptions = {**parts.pop("assumptions"), **({LEFT_OUT: left_out} if left_out else {})}
        provenance = {name: value for name, value in parts.pop("provenance").items() if name != UNFINISHED_WRITING}
        repairs = provenance.get("repaired")
        this = {"at": now(), "command": self.command, "based_on": self.facts.said_by, "adopted": self.adopted}
        this["broken"] = [place.name for place, _ in self.broken]
        provenance["repaired"] = [*(repairs if isinstance(repairs, list) else []), this]
        if self.resumable and resumes is not None:
            environment = parts["environment"]
            provenance[UNFINISHED_WRITING] = resumes.within_manifest(environment and environment.as_json())
        lost = parts.pop("episodes_lost")
        return Manifest(
            **parts,
            complete=False,  # of what was asked for, shards say nothing
            counts=self.statistics.counts(assumptions),
            shards=tuple(shards),
            statistics=self.statistics.as_json(),
            assumptions=assumptions,
            provenance=with_defaults(provenance, started=now()),
            episodes_lost=None if left_out else lost,  # the ones in a shard that is gone are unknown
        )

    def result(self, *, dry_run: bool, seconds: float) -> RepairResult:
        """The report to the caller."""
        manifest, aside = self.kept or self.manifest([adopted.shard for adopted in self.sound]), self.aside
        removed = (*(file.url for file in self.found.half_written), *map(str, self.found.uploads))
        there = {place.path for place in aside}
        gone = sum(place.path not in there for place, _ in self.broken)
        return RepairResult(
            out=self.found.folder.url,
            format=manifest.format,
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            adopted=self.adopted,
            dropped=len(removed) + len(aside) + gone,
            changed=self.kept is None or self.found.note_bytes is not None or bool(aside or removed),
            complete=manifest.complete,
            resumable=self.resumable,
            broken=tuple({"path": place.url, "why": why} for place, why in self.broken),
            removed=removed,
            set_aside=tuple(place.url for place in aside),
            based_on=self.facts.said_by,
            dry_run=dry_run,
            seconds=seconds,
        )

    def act(self) -> None:
        """Carry it out. Raises Locked where another process was faster, StorageError."""
        found, folder, lock = self.found, self.found.folder, WritingLock(self.found.folder)
        before = found.note
        kept = ("", {}, 0) if before is None else (before.generation, before.options, before.first_quarantine)
        lock.acquire(WritingNote.of_this_process(*kept, self.command), instead_of=found.note_bytes)
        try:
            for file in found.half_written:
                file.remove()
            for upload in found.uploads:
                upload.abort()
            if self.kept is None:
                self._write_manifest(lock)
            for file in self.aside:
                with lock.guard():
                    set_aside(file, folder)
            keep_moves(self.aside, folder)
            keep_names(folder.join(DATA))  # files without bytes have gone from it
            lock.release()
        finally:
            if lock.held and found.note_bytes is not None:
                lock.leave()  # it describes the dataset as the one that it replaced
            elif lock.held:
                lock.release()

    def _write_manifest(self, lock: WritingLock) -> None:
        folder = self.found.folder
        manifest = self.manifest([adopted.shard for adopted in self.sound])
        keep_names(folder.join(DATA), folder.join(QUARANTINE))  # whose writer may have been killed before that
        with lock.guard():  # shards may have taken long
            if self.found.manifest_bytes is not None:
                copy = free_place(folder, MANIFEST)
                folder.join(QUARANTINE).make_folder()
                write_whole(copy, self.found.manifest_bytes, folder=folder)
            write_whole(folder.join(MANIFEST), manifest.to_bytes(), folder=folder)
            write_card(folder, manifest)
