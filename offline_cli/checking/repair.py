"""`repair`: the manifest of a dataset is built anew from its whole shards, and what is lost is said.

Which shards: those that a readable manifest lists, and complete ones that an interrupted `--append` or `--resume` added;
without such a manifest, those of the writer's note; without a note, those of the only write that is in `data/`. A dataset that
was being overwritten is the one that was there before: `--resume` of the command that was overwriting it continues the new one.

Nothing that could hold an episode is deleted: broken shards (`--drop-broken`) and files that are not part of the dataset are
moved to `quarantine/`. What is removed cannot be read by anybody: half-written files, uploads that were never completed.
Everything is read before anything is changed, and changed only while this process holds the lock. Killed at any point, the
folder is one that another repair, or `--resume`, continues from.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from offline_cli.checked_keywords import checked
from offline_cli.choices import COMPRESSION
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.card import write_card
from offline_cli.datasets.dataset import row_format
from offline_cli.datasets.file_names import (
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
from offline_cli.datasets.manifest import EnvironmentRecord, Manifest, now, with_defaults
from offline_cli.datasets.ownership import data_files, free_place, is_own_part, keep_names, numbered, set_aside, shard_files
from offline_cli.datasets.shards import Adopted, adopt
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.errors import BadConfig, BadData, Locked, NoData, StorageNotFound, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.parquet.reading import opened
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.spaces import space_from_json
from offline_cli.stop_signals import check
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import open_uploads, whole_file, write_whole

RESTORE: Final = "restore it from a copy, or write the dataset again from its source"
DEFAULTS: Final[Mapping[str, Any]] = {
    "spaces_inferred": False,
    "action_scale": "unknown",
    "environment": None,
    "meanings": NO_MEANINGS,
    "reference": None,
    "compression": COMPRESSION,
    "assumptions": {},
    "provenance": {},
    "episodes_lost": None,
}
"""Of what shards do not say."""
FACTS: Final = ("format", "observation_space", "action_space", *DEFAULTS)


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
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@checked
def repair(
    out: str,
    *,
    env: str | None = None,
    drop_broken: bool = False,
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
    BadConfig where the spaces are unknown, UsageError where shards of several writes are there and nothing says which are the
    dataset, or beside `force_unlock`, StorageError.
    """
    asked_env, folder, began = AskedEnvironment.of(dict(locals())), open_location(out, storage_options), time.monotonic()
    if force_unlock:
        if drop_broken or asked_env is not None:
            fix = "take the note away first, then repair"
            raise UsageError("--force-unlock does nothing else", where="--drop-broken or --env", fix=fix)
        if not folder.exists():
            raise folder.missing()
        removed = (folder.join(WRITING).url,) if unlock(folder, remove=True, dry_run=dry_run) else ()
        known: dict[str, Any] = {"dropped": len(removed), "changed": bool(removed), "removed": removed, "dry_run": dry_run}
        return RepairResult(out=folder.url, **known, seconds=time.monotonic() - began)
    plan = _Repair(folder, shlex.join(command) if command else this_command())
    plan.choose(asked_env)
    plan.read(on_progress)
    manifest = plan.kept or plan.new_manifest()
    result = plan.result(manifest, dry_run=dry_run, seconds=time.monotonic() - began)
    if plan.broken and not (drop_broken and plan.sound):
        named = "; ".join(f"{place.name}: {why}" for place, why in plan.broken[:3]) + "; ..." * (len(plan.broken) > 3)
        what, fix = f"no shard is whole, and nothing would be left: {named}", RESTORE
        if plan.sound:
            what = f"{len(plan.broken):,} of {len(plan.broken) + len(plan.sound):,} shards are broken: {named}"
            fix = f"{RESTORE}; or leave them out with --drop-broken, which moves them to quarantine/"
        raise BadData(what, where=folder.url, fix=fix, result={**result.as_dict(), "changed": False})
    if result.changed and not dry_run:
        plan.carry_out(manifest)
    elif not dry_run:
        keep_names(folder)  # who made it right may have been killed before that
    return result


# ---- what is in the folder ----


class _Repair:
    """One repair: what is in the folder, which shards are the dataset, what is wrong with them, and what is to be done."""

    def __init__(self, folder: Location, command: str) -> None:
        """List the folder. Raises Locked where its writer is at work, NoData where nothing of ours is there, StorageError."""
        self.folder, self.command, data = folder, command, folder.join(DATA)
        self.note_bytes, self.manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
        self.note = WritingNote.if_any(self.note_bytes, where=folder.join(WRITING).url)  # None also: it cannot be read
        if self.note is not None:
            try:
                refuse_if_at_work(self.note, folder.join(WRITING))
            except Locked as error:
                error.fix = (
                    "wait for it, or end it, and repair then; of one on another machine that has ended, --force-unlock first"
                )
                raise
        self.manifest: Manifest | None = None  # None also where it cannot be read
        with suppress(BadData):
            if self.manifest_bytes:
                self.manifest = Manifest.from_bytes(self.manifest_bytes, where=folder.join(MANIFEST).url)
        self.listed = {shard.path: shard for shard in (self.manifest.shards if self.manifest else ())}
        self.shards = shard_files(folder)
        is_other = self.note is not None and self.note.writes == TRAIN_BATCHES.noun
        if is_other or (self.note_bytes is None and self.manifest_bytes is None and not self.shards):
            if not folder.exists():
                raise folder.missing()
            fix = "name the folder of a dataset, the one with manifest.json or _writing.json in it; batches are written again"
            raise NoData("no dataset is here, nor anything left of one", where=folder.url, fix=fix)
        self.others = [  # in data/, that readers of it would include
            file
            for file in data_files(folder)
            if numbered(file, folder) is None
            and not any(part.startswith((".", "_")) for part in file.path[len(data.path) :].split("/"))
        ]
        self.half_written, self.uploads = [*filter(is_own_part, folder.children())], open_uploads(data)
        # by `choose`:
        self.places: list[Location] = []  # the shards of the dataset, in reading order
        self.facts: Mapping[str, Any] = {}  # FACTS by name
        self.based_on = ""  # who says them: "note" | "manifest" | "shards"
        self.resumes: WritingNote | None = None  # what --resume would continue from, if all of its shards are whole
        # by `read`:
        self.broken: list[tuple[Location, str]] = []  # shards that cannot be part of it, and why
        self.sound: list[Adopted] = []
        self.statistics = EpisodeStatistics()

    def choose(self, env: AskedEnvironment | None) -> None:
        """Find the shards of the dataset, and what is known of it.

        Raises NoData where no shard is there, UsageError where nothing says which are the dataset, and as `_facts_of_shards`.
        """
        note = self.note
        if self.manifest is not None:
            self.based_on, self.facts = "manifest", {name: getattr(self.manifest, name) for name in FACTS}
            self.places = [self.folder.join(path) for path in self.listed]
            if note is not None and (APPENDS_TO in note.options or note.generation in map(generation_of, self.listed)):
                self.places += [one for one in self._written_by(note.generation) if _path(one) not in self.listed]
                self.resumes = None if APPENDS_TO in note.options else note
        elif note is not None and note.generation in self.shards:
            self.places, self.resumes = self._written_by(note.generation), note
            self.based_on, self.facts = "note", _facts_of_note(note, self.folder)
        elif len(self.shards) == 1:
            self.places = self._written_by(next(iter(self.shards)))
            self.based_on, self.facts = "shards", _facts_of_shards(self.places, self.folder, env)
        elif self.shards:
            what = f"shards of {len(self.shards)} writes are here, and nothing readable tells which of them is the dataset"
            fix = f"move all but one out of data/: shard-{', shard-'.join(sorted(self.shards))}"
            raise UsageError(what, where=self.folder.url, fix=fix)
        else:
            what = "no complete shard is here, and no readable manifest: there is nothing to repair"
            fix = "run the command that was writing here, with --resume or --overwrite"
            raise NoData(what, where=self.folder.url, fix=fix)

    def _written_by(self, generation: str) -> list[Location]:
        """The shards of one write, by number, those missing between them included."""
        files = self.shards.get(generation, {})
        numbers = range(max(files, default=-1) + 1)
        return [files.get(number) or self.folder.join(shard_name(generation, number)) for number in numbers]

    def read(self, on_progress: OnProgress) -> None:
        """Read each shard to its last episode: broken are those that cannot be read, are not the manifest's, or repeat one."""
        rows, ids = row_format(*(self.facts[name] for name in FACTS[:3])), set[str]()
        for number, place in enumerate(self.places):
            check()
            try:
                adopted = adopt(place, rows, statistics := EpisodeStatistics(), lambda _: None)
                said, have = self.listed.get(_path(place)), adopted.shard
                if said is not None and (said.bytes, said.sha256) != (have.bytes, have.sha256):
                    what = f"its sha256 is {have.sha256[:12]}..., the manifest says {said.sha256[:12]}..."
                    raise BadData(what, where=place.url, fix="")
                twice = {name for name, times in Counter(adopted.ids).items() if times > 1}
                if again := twice | ids.intersection(adopted.ids):
                    raise BadData(f"episode {min(again)!r} is in it more than once, or was before", where=place.url, fix="")
            except StorageNotFound:
                self.broken.append((place, "it is missing"))
            except BadData as error:
                self.broken.append((place, error.what))
            else:
                self.sound.append(adopted)
                self.statistics.include(statistics)
                ids.update(adopted.ids)
            on_progress(Progress("reading shards", number + 1, len(self.places), "shards"))

    # ---- what is to be done ----

    @property
    def kept(self) -> Manifest | None:
        """The manifest that is right as it is."""
        is_right = not self.broken and [adopted.shard.path for adopted in self.sound] == list(self.listed)
        return self.manifest if is_right else None

    @property
    def _resumable(self) -> bool:
        """Whether `--resume` of the command that began it would continue."""
        if self.kept is not None:
            return not self.kept.complete and UNFINISHED_WRITING in self.kept.provenance
        return self.resumes is not None and not self.broken

    @property
    def _adopted(self) -> int:
        """How many shards no manifest listed before."""
        return sum(one.shard.path not in self.listed for one in self.sound)

    @property
    def _aside(self) -> list[Location]:
        """Files in `data/` that go to quarantine."""
        sound = {adopted.shard.path for adopted in self.sound}
        files = [*(file for files in self.shards.values() for file in files.values()), *self.others]
        return sorted((file for file in files if _path(file) not in sound), key=lambda file: file.path)

    def new_manifest(self) -> Manifest:
        """Of the sound shards."""
        facts, left_out = dict(self.facts), len(self.broken)
        assumptions = {**facts.pop("assumptions"), **({"broken-shard-left-out": left_out} if left_out else {})}
        provenance = {name: value for name, value in facts.pop("provenance").items() if name != UNFINISHED_WRITING}
        repairs, broken = provenance.get("repaired"), [place.name for place, _ in self.broken]
        this = {"at": now(), "command": self.command, "based_on": self.based_on, "adopted": self._adopted, "broken": broken}
        provenance["repaired"] = [*(repairs if isinstance(repairs, list) else []), this]
        if self.resumes is not None and self._resumable:
            environment = facts["environment"]
            provenance[UNFINISHED_WRITING] = self.resumes.within_manifest(environment and environment.as_json())
        lost = facts.pop("episodes_lost")
        return Manifest(
            **facts,
            complete=False,  # of what was asked for, shards say nothing
            counts=self.statistics.counts(assumptions),
            shards=tuple(adopted.shard for adopted in self.sound),
            statistics=self.statistics.as_json(),
            assumptions=assumptions,
            provenance=with_defaults(provenance, started=now()),
            episodes_lost=None if left_out else lost,  # the ones in a shard that is gone are unknown
        )

    def result(self, manifest: Manifest, *, dry_run: bool, seconds: float) -> RepairResult:
        """The report to the caller."""
        aside, removed = self._aside, (*(file.url for file in self.half_written), *map(str, self.uploads))
        gone = {place.path for place, _ in self.broken} - {place.path for place in aside}
        return RepairResult(
            out=self.folder.url,
            format=manifest.format,
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            adopted=self._adopted,
            dropped=len(removed) + len(aside) + len(gone),
            changed=self.kept is None or self.note_bytes is not None or bool(aside or removed),
            complete=manifest.complete,
            resumable=self._resumable,
            broken=tuple({"path": place.url, "why": why} for place, why in self.broken),
            removed=removed,
            set_aside=tuple(place.url for place in aside),
            based_on=self.based_on,
            dry_run=dry_run,
            seconds=seconds,
        )

    def carry_out(self, manifest: Manifest) -> None:
        """Write `manifest` where it is new, and tidy up. Raises Locked where another process was faster, StorageError."""
        folder, note = self.folder, self.note
        lock, data, quarantine = WritingLock(folder), folder.join(DATA), folder.join(QUARANTINE)
        kept = ("", {}, 0) if note is None else (note.generation, note.options, note.first_quarantine)
        lock.acquire(WritingNote.of_this_process(*kept, self.command), instead_of=self.note_bytes)
        try:
            for file in self.half_written:
                file.remove()
            for upload in self.uploads:
                upload.abort()
            if manifest is not self.manifest:
                keep_names(data, quarantine)  # whose writer may have been killed before that
                with lock.guard():  # shards may have taken long
                    if self.manifest_bytes is not None:
                        quarantine.make_folder()
                        write_whole(free_place(folder, MANIFEST), self.manifest_bytes, folder=folder)
                    write_whole(folder.join(MANIFEST), manifest.to_bytes(), folder=folder)
                    write_card(folder, manifest)
            for file in self._aside:
                with lock.guard():
                    set_aside(file, folder)
            keep_names(quarantine, data)  # in this order
            lock.release()
        finally:
            if lock.held and self.note_bytes is not None:
                lock.leave()  # it describes the dataset as the one that it replaced
            elif lock.held:
                lock.release()


def _path(shard: Location) -> str:
    return f"{DATA}/{shard.name}"


# ---- what shards do not record ----


def _facts_of_note(note: WritingNote, folder: Location) -> dict[str, Any]:
    """From the options that `DatasetWriter` keeps in its note. Raises BadData where they cannot be read."""
    told, where = note.options, folder.join(WRITING).url
    try:
        return {
            **DEFAULTS,
            **{name: told[name] for name in ("action_scale", "compression", "reference") if name in told},
            "format": told["format"],
            **{name: told[name] and space_from_json(told[name], where=where) for name in FACTS[1:3]},
            "environment": told.get("environment") and EnvironmentRecord.from_json(told["environment"]),
            "meanings": Meanings.of(told.get("meanings", {}), where),
            "provenance": {"commands": [note.command], "started": note.started},
        }
    except (KeyError, TypeError, ValueError, BadConfig) as error:
        fix = f"--overwrite, with its command: {note.command}"
        raise BadData("the note of the writer has no readable format or spaces", where=where, fix=fix) from error


def _facts_of_shards(places: Sequence[Location], folder: Location, asked: AskedEnvironment | None) -> dict[str, Any]:
    """Format by the columns, spaces as `convert` would have them of the same files, or those of the environment `asked`.

    Raises BadData where none can be read.
    """
    packed: bool | None = None
    for place in places:
        with suppress(BadData, StorageNotFound), opened(place) as file:
            packed = Columns.ITEM in file.schema_arrow.names
            break
    if packed is None:
        raise BadData("none of the shards can be read", where=folder.url, fix=RESTORE)
    env = None if asked is None else asked.among([(folder.url, None)])
    source = (RllibEpisodesSource if packed else RllibColumnsSource)([place for place in places if place.exists()], folder.url)
    try:
        with read_episodes(opened=[source], on_error="skip", env=env) as stream:  # only its spaces are needed
            named = ("observation_space", "action_space", "spaces_inferred", "action_scale")
            known = {name: getattr(stream, name) for name in named}
    except NoData as err:
        raise BadData("no episode can be read from the shards", where=folder.url, fix=err.fix) from err
    return {**DEFAULTS, **known, "format": "episodes" if packed else "columns", "environment": EnvironmentRecord.of(env)}
