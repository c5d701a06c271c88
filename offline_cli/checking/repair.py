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
from itertools import pairwise
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
from offline_cli.datasets.manifest import Environment, Manifest, now, with_defaults
from offline_cli.datasets.ownership import free_place, is_own_part, keep_names, numbered, set_aside, shard_files
from offline_cli.datasets.shards import Adopted, adopt
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.errors import BadConfig, BadData, Locked, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.parquet.reading import opened
from offline_cli.parquet.writing import COMPRESSIONS
from offline_cli.progress import OnProgress, Progress, no_progress
from offline_cli.spaces import space_from_json
from offline_cli.stop_signals import check
from offline_cli.storage.blanking import this_command
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.staging import open_uploads, whole_file, write_whole

LEFT_OUT: Final = "broken-shard-left-out"
"""Among the assumptions of a manifest: how many."""
RESTORE: Final = "restore it from a copy, or write the dataset again from its source"
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
PARTS: Final = ("format", "observation_space", "action_space", *DEFAULTS)


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
    result = plan.result(dry_run=dry_run, seconds=time.monotonic() - began)
    if plan.broken and not (drop_broken and plan.sound):
        named = "; ".join(f"{place.name}: {why}" for place, why in plan.broken[:3]) + "; ..." * (len(plan.broken) > 3)
        what, fix = f"no shard is whole, and nothing would be left: {named}", RESTORE
        if plan.sound:
            what = f"{len(plan.broken):,} of {len(plan.broken) + len(plan.sound):,} shards are broken: {named}"
            fix = f"{RESTORE}; or leave them out with --drop-broken, which moves them to quarantine/"
        raise BadData(what, where=folder.url, fix=fix, result={**result.as_dict(), "changed": False})
    if result.changed and not dry_run:
        plan.act()
    elif not dry_run:
        keep_names(folder)  # who made it right may have been killed before that
    return result


class _Repair:
    """One repair: what is in the folder, which shards are the dataset, what is wrong with them, and what is to be done."""

    def __init__(self, folder: Location, command: str) -> None:
        """List the folder. Raises Locked where its writer is at work, NoData where nothing of ours is there, StorageError."""
        self.folder, self._command = folder, command
        self._note_bytes, self._manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
        self._note = WritingNote.if_any(self._note_bytes, where=folder.join(WRITING).url)  # None also: it cannot be read
        if self._note is not None:
            try:
                refuse_if_at_work(self._note, folder.join(WRITING))
            except Locked as error:
                error.fix = (
                    "wait for it, or end it, and repair then; of one on another machine that has ended, --force-unlock first"
                )
                raise
        self._manifest: Manifest | None = None  # None also where it cannot be read
        with suppress(BadData):
            if self._manifest_bytes:
                self._manifest = Manifest.from_bytes(self._manifest_bytes, where=folder.join(MANIFEST).url)
        self._listed = {shard.path: shard for shard in (self._manifest.shards if self._manifest else ())}
        data, self._shards = folder.join(DATA), shard_files(folder)
        is_other = self._note is not None and self._note.writes == TRAIN_BATCHES.noun
        if is_other or (self._note_bytes is None and self._manifest_bytes is None and not self._shards):
            if not folder.exists():
                raise folder.missing()
            fix = "name the folder of a dataset, the one with manifest.json or _writing.json in it; batches are written again"
            raise NoData("no dataset is here, nor anything left of one", where=folder.url, fix=fix)
        self._others = [  # in data/, that readers of it would include
            file
            for file in (data.files() if data.exists() else [])
            if numbered(file, folder) is None
            and not any(part.startswith((".", "_")) for part in file.path[len(data.path) :].split("/"))
        ]
        self._half_written = [*filter(is_own_part, folder.children())]
        self._uploads = open_uploads(data)
        # by `choose`:
        self._places: list[Location] = []  # the shards of the dataset, in reading order
        self._parts: Mapping[str, Any] = {}  # what shards do not record, by the names of a manifest
        self._said_by = ""  # who says it: "note" | "manifest" | "shards"
        self._resumes: WritingNote | None = None  # what --resume would continue from, if all of its shards are whole
        # by `read`:
        self.broken: list[tuple[Location, str]] = []  # shards that cannot be part of it, and why
        self.sound: list[Adopted] = []
        self._statistics = EpisodeStatistics()

    def _path(self, shard: Location) -> str:
        return f"{DATA}/{shard.name}"

    # ---- which shards are the dataset, and what is known of it ----

    def choose(self, env: AskedEnvironment | None) -> None:
        """Raises NoData where no shard is there, UsageError where nothing says which are the dataset, and as
        `_parts_of_shards`.
        """
        note, manifest = self._note, self._manifest
        generations = set(map(generation_of, self._listed))
        if manifest is not None:
            found = {self._path(file): file for files in self._shards.values() for file in files.values()}
            self._parts, self._said_by = {name: getattr(manifest, name) for name in PARTS}, "manifest"
            self._places = [found[path] for path in self._listed if path in found]
            self.broken = [(self.folder.join(path), "it is missing") for path in self._listed if path not in found]
            if note is not None and (APPENDS_TO in note.options or note.generation in generations):
                self._places += [one for one in self._of(note.generation) if self._path(one) not in self._listed]
                self._resumes = None if APPENDS_TO in note.options else note
            return
        if note is not None and note.generation in self._shards:
            self._places, self._said_by, self._resumes = self._of(note.generation), "note", note
            self._parts = self._parts_of_note(note)
            return
        if len(self._shards) != 1:
            what = f"shards of {len(self._shards)} writes are here, and nothing readable tells which of them is the dataset"
            if self._shards:
                fix = f"move all but one out of data/: shard-{', shard-'.join(sorted(self._shards))}"
                raise UsageError(what, where=self.folder.url, fix=fix)
            what = "no complete shard is here, and no readable manifest: there is nothing to repair"
            fix = "run the command that was writing here, with --resume or --overwrite"
            raise NoData(what, where=self.folder.url, fix=fix)
        self._places, self._said_by = self._of(next(iter(self._shards))), "shards"
        self._parts = self._parts_of_shards(env)

    def _of(self, generation: str) -> list[Location]:
        """The shards of a write, by number; gaps between them are broken, one entry each."""
        files = self._shards.get(generation, {})
        for before, number in pairwise([-1, *sorted(files)]):
            place = self.folder.join(shard_name(generation, before + 1))
            if number > before + 1 and place.path not in {one.path for one, _ in self.broken}:
                more = f", and so are the {number - before - 2:,} after it" if number > before + 2 else ""
                self.broken.append((place, f"it is missing{more}"))
        return [file for _, file in sorted(files.items())]

    def _parts_of_note(self, note: WritingNote) -> dict[str, Any]:
        """From the options that `DatasetWriter` keeps in its note. Raises BadData where they cannot be read."""
        told, where = note.options, self.folder.join(WRITING).url
        try:
            spaces = {name: told[name] and space_from_json(told[name], where=where) for name in PARTS[1:3]}
            environment = told.get("environment") and Environment.from_json(told["environment"])
            more: dict[str, Any] = {"environment": environment, "meanings": Meanings.of(told.get("meanings", {}), where)}
            plain: dict[str, Any] = {
                "format": told["format"],
                **{name: told[name] for name in ("action_scale", "compression") if name in told},
            }
        except (KeyError, TypeError, ValueError, BadConfig) as error:
            fix = f"--overwrite, with its command: {note.command}"
            raise BadData("the note of the writer has no readable format or spaces", where=where, fix=fix) from error
        began = {"commands": [note.command], "started": note.started}
        return {**DEFAULTS, **plain, **spaces, **more, "provenance": began}

    def _parts_of_shards(self, asked: AskedEnvironment | None) -> dict[str, Any]:
        """Format by the columns, spaces as `convert` would have them of the same files. `asked`: an environment whose spaces
        are theirs. Raises BadData where none can be read, BadConfig where spaces are not known.
        """
        readable = [place for place in self._places if _opens(place)]
        if not readable:
            raise BadData("none of the shards can be read", where=self.folder.url, fix=RESTORE)
        with opened(readable[0]) as file:
            packed = Columns.ITEM in file.schema_arrow.names
            codec = str(file.metadata.row_group(0).column(0).compression).lower()
        env = None if asked is None else asked.among([(self.folder.url, None)])
        source = (RllibEpisodesSource if packed else RllibColumnsSource)(readable, self.folder.url)
        try:
            stream = read_episodes(opened=[source], on_error="skip", env=env)
        except NoData as err:
            raise BadData("no episode can be read from the shards", where=self.folder.url, fix=err.fix) from err
        stream.close()  # only its spaces are needed
        parts: dict[str, Any] = {
            **DEFAULTS,
            "format": "episodes" if packed else "columns",
            "observation_space": stream.observation_space,
            "action_space": stream.action_space,
            "spaces_inferred": stream.spaces_inferred,
            "action_scale": stream.action_scale,
            "environment": Environment.of(env),
            **({"compression": codec} if codec in COMPRESSIONS else {}),
        }
        try:
            with opened(readable[0]) as file:
                row_format(*(parts[name] for name in PARTS[:3])).check_columns(file, readable[0])
        except BadData as err:
            what = f"the spaces of the dataset are unknown, and they do not follow from its columns: {err.what}"
            raise BadConfig(what, where=readable[0].url, fix="name the environment with --env") from err
        return parts

    # ---- what is wrong with them ----

    def read(self, on_progress: OnProgress) -> None:
        """Read each shard to its last episode: broken are those that cannot be read, are not the manifest's, or repeat one."""
        rows, ids = row_format(*(self._parts[name] for name in PARTS[:3])), set[str]()
        for number, place in enumerate(self._places):
            check()
            try:
                adopted = adopt(place, rows, statistics := EpisodeStatistics(), lambda _: None)
                said, have = self._listed.get(self._path(place)), adopted.shard
                if said is not None and (said.bytes, said.sha256) != (have.bytes, have.sha256):
                    what = f"its sha256 is {have.sha256[:12]}..., the manifest says {said.sha256[:12]}..."
                    raise BadData(what, where=place.url, fix="")
                twice = {name for name, times in Counter(adopted.ids).items() if times > 1}
                if again := ids.intersection(adopted.ids) or twice:
                    raise BadData(f"episode {min(again)!r} is in it, and was before", where=place.url, fix="")
            except BadData as error:
                self.broken.append((place, error.what))
            else:
                self.sound.append(adopted)
                self._statistics.include(statistics)
                ids.update(adopted.ids)
            on_progress(Progress("reading shards", number + 1, len(self._places), "shards"))

    # ---- what is to be done ----

    @property
    def _kept(self) -> Manifest | None:
        """The manifest that is right as it is."""
        is_right = not self.broken and [adopted.shard.path for adopted in self.sound] == list(self._listed)
        return self._manifest if is_right else None

    @property
    def _aside(self) -> list[Location]:
        """Files in `data/` that go to quarantine."""
        sound = {adopted.shard.path for adopted in self.sound}
        files = [*(file for files in self._shards.values() for file in files.values()), *self._others]
        return sorted((file for file in files if self._path(file) not in sound), key=lambda file: file.path)

    @property
    def _resumable(self) -> bool:
        """Whether `--resume` of the command that began it would continue."""
        if (kept := self._kept) is not None:
            return not kept.complete and UNFINISHED_WRITING in kept.provenance
        return self._resumes is not None and not self.broken

    @property
    def _adopted(self) -> int:
        """How many shards no manifest listed before."""
        return sum(one.shard.path not in self._listed for one in self.sound)

    def _new_manifest(self) -> Manifest:
        parts, left_out = dict(self._parts), len(self.broken)
        assumptions = {**parts.pop("assumptions"), **({LEFT_OUT: left_out} if left_out else {})}
        provenance = {name: value for name, value in parts.pop("provenance").items() if name != UNFINISHED_WRITING}
        repairs = provenance.get("repaired")
        this = {"at": now(), "command": self._command, "based_on": self._said_by, "adopted": self._adopted}
        this["broken"] = [place.name for place, _ in self.broken]
        provenance["repaired"] = [*(repairs if isinstance(repairs, list) else []), this]
        if self._resumable and self._resumes is not None:
            environment = parts["environment"]
            provenance[UNFINISHED_WRITING] = self._resumes.within_manifest(environment and environment.as_json())
        lost = parts.pop("episodes_lost")
        return Manifest(
            **parts,
            complete=False,  # of what was asked for, shards say nothing
            counts=self._statistics.counts(assumptions),
            shards=tuple(adopted.shard for adopted in self.sound),
            statistics=self._statistics.as_json(),
            assumptions=assumptions,
            provenance=with_defaults(provenance, started=now()),
            episodes_lost=None if left_out else lost,  # the ones in a shard that is gone are unknown
        )

    def result(self, *, dry_run: bool, seconds: float) -> RepairResult:
        """The report to the caller."""
        manifest, aside = self._kept or self._new_manifest(), self._aside
        removed = (*(file.url for file in self._half_written), *map(str, self._uploads))
        gone = {place.path for place, _ in self.broken} - {place.path for place in aside}
        return RepairResult(
            out=self.folder.url,
            format=manifest.format,
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            adopted=self._adopted,
            dropped=len(removed) + len(aside) + len(gone),
            changed=self._kept is None or self._note_bytes is not None or bool(aside or removed),
            complete=manifest.complete,
            resumable=self._resumable,
            broken=tuple({"path": place.url, "why": why} for place, why in self.broken),
            removed=removed,
            set_aside=tuple(place.url for place in aside),
            based_on=self._said_by,
            dry_run=dry_run,
            seconds=seconds,
        )

    def act(self) -> None:
        """Carry it out. Raises Locked where another process was faster, StorageError."""
        lock, note, aside = WritingLock(self.folder), self._note, self._aside
        kept = ("", {}, 0) if note is None else (note.generation, note.options, note.first_quarantine)
        lock.acquire(WritingNote.of_this_process(*kept, self._command), instead_of=self._note_bytes)
        try:
            for file in self._half_written:
                file.remove()
            for upload in self._uploads:
                upload.abort()
            if self._kept is None:
                self._write_manifest(lock)
            for file in aside:
                with lock.guard():
                    set_aside(file, self.folder)
            keep_names(self.folder.join(QUARANTINE), self.folder.join(DATA))  # in this order
            lock.release()
        finally:
            if lock.held and self._note_bytes is not None:
                lock.leave()  # it describes the dataset as the one that it replaced
            elif lock.held:
                lock.release()

    def _write_manifest(self, lock: WritingLock) -> None:
        folder = self.folder
        manifest = self._new_manifest()
        keep_names(folder.join(DATA), folder.join(QUARANTINE))  # whose writer may have been killed before that
        with lock.guard():  # shards may have taken long
            if self._manifest_bytes is not None:
                copy = free_place(folder, MANIFEST)
                folder.join(QUARANTINE).make_folder()
                write_whole(copy, self._manifest_bytes, folder=folder)
            write_whole(folder.join(MANIFEST), manifest.to_bytes(), folder=folder)
            write_card(folder, manifest)


def _opens(place: Location) -> bool:
    try:
        with opened(place) as file:
            return bool(file.metadata.num_rows > 0)
    except BadData:
        return False
