"""`repair`: rebuild the manifest of a dataset from its complete shards, and report losses.

The shards are those in a readable manifest, plus complete ones that an interrupted `--append` or `--resume` added; without a
readable manifest, those of the writer's note; without a note, those of the only write in `data/`. If a dataset was being
overwritten, `repair` restores the old one; `--resume` of the overwriting command continues the new one.

No file that could hold an episode is deleted: broken shards (`--drop-broken`) and foreign files are moved to `quarantine/`.
Only unreadable files are removed: incomplete files and uploads. Everything is read before anything is changed, and changed only
under the writer's lock. If `repair` is killed at any point, another repair or `--resume` can continue.
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
"""Defaults for facts that shards do not record."""
FACTS: Final = ("format", "observation_space", "action_space", *DEFAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """The dataset after its repair, or as it would be (dry run). None: unknown, because only the note was removed."""

    out: str
    format: str | None = None  # "episodes" | "columns"
    episodes: int | None = None
    steps: int | None = None
    shards: int | None = None
    adopted: int = 0  # shards that were in no manifest before
    dropped: int  # incomplete files, uploads, and shards and files outside the dataset: the total of the lists below
    changed: bool  # False: nothing was wrong
    complete: bool | None = None  # whether it holds everything that was requested
    resumable: bool | None = None  # whether --resume can continue
    broken: tuple[dict[str, str], ...] = ()  # dropped shards: path, why
    removed: tuple[str, ...]  # incomplete files and uploads, which are unreadable
    set_aside: tuple[str, ...] = ()  # files moved to quarantine/, by their previous paths
    based_on: str | None = None  # origin of format, spaces and other facts that shards lack: "note", "manifest", "shards"
    dry_run: bool  # whether nothing was written
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of `--json`."""
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
    """Repair the dataset folder `out` after an interrupted write or damage.

    Without `drop_broken`, broken shards raise, by name. `force_unlock` only removes the note of a writer.

    Raises StorageNotFound, NoData if there is nothing to repair, Locked if a writer is active, BadData for broken shards,
    BadConfig for unknown spaces, UsageError if shards of several writes exist and nothing tells which belong to the dataset,
    or for other options with `force_unlock`, StorageError.
    """
    asked_env, folder, began = AskedEnvironment.of(dict(locals())), open_location(out, storage_options), time.monotonic()
    if force_unlock:
        if drop_broken or asked_env is not None:
            fix = "run --force-unlock alone first, then repair"
            raise UsageError("--force-unlock excludes --drop-broken and --env", where="--drop-broken or --env", fix=fix)
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
        what, fix = f"all shards are broken: {named}", RESTORE
        if plan.sound:
            what = f"{len(plan.broken):,} of {len(plan.broken) + len(plan.sound):,} shards are broken: {named}"
            fix = f"{RESTORE}; or move them to quarantine/ with --drop-broken"
        raise BadData(what, where=folder.url, fix=fix, result={**result.as_dict(), "changed": False})
    if result.changed and not dry_run:
        plan.carry_out(manifest)
    elif not dry_run:
        keep_names(folder)  # a killed repair may not have synced it
    return result


# ---- folder contents ----


class _Repair:
    """One repair: lists the folder, chooses and checks the dataset's shards, and carries out the changes."""

    def __init__(self, folder: Location, command: str) -> None:
        """List the folder. Raises Locked if its writer is active, NoData if it holds nothing of ours, StorageError."""
        self.folder, self.command, data = folder, command, folder.join(DATA)
        self.note_bytes, self.manifest_bytes = whole_file(folder.join(WRITING)), whole_file(folder.join(MANIFEST))
        self.note = WritingNote.if_any(self.note_bytes, where=folder.join(WRITING).url)  # None also if unreadable
        if self.note is not None:
            try:
                refuse_if_at_work(self.note, folder.join(WRITING))
            except Locked as error:
                error.fix = (
                    "wait for it, or stop it, then repair; if it ran on another machine and has ended, use --force-unlock first"
                )
                raise
        self.manifest: Manifest | None = None  # None also if unreadable
        with suppress(BadData):
            if self.manifest_bytes:
                self.manifest = Manifest.from_bytes(self.manifest_bytes, where=folder.join(MANIFEST).url)
        self.listed = {shard.path: shard for shard in (self.manifest.shards if self.manifest else ())}
        self.shards = shard_files(folder)
        is_other = self.note is not None and self.note.writes == TRAIN_BATCHES.noun
        if is_other or (self.note_bytes is None and self.manifest_bytes is None and not self.shards):
            if not folder.exists():
                raise folder.missing()
            fix = "name a dataset folder (with manifest.json or _writing.json); write train batches again instead"
            raise NoData("the folder holds no dataset, and no remains of one", where=folder.url, fix=fix)
        self.others = [  # foreign files in data/ that readers would include
            file
            for file in data_files(folder)
            if numbered(file, folder) is None
            and not any(part.startswith((".", "_")) for part in file.path[len(data.path) :].split("/"))
        ]
        self.half_written, self.uploads = [*filter(is_own_part, folder.children())], open_uploads(data)
        # set by `choose`:
        self.places: list[Location] = []  # the shards of the dataset, in reading order
        self.facts: Mapping[str, Any] = {}  # FACTS by name
        self.based_on = ""  # origin of the facts: "note" | "manifest" | "shards"
        self.resumes: WritingNote | None = None  # the note for --resume, if all its shards are sound
        # set by `read`:
        self.broken: list[tuple[Location, str]] = []  # broken shards, and why
        self.sound: list[Adopted] = []
        self.statistics = EpisodeStatistics()

    def choose(self, env: AskedEnvironment | None) -> None:
        """Find the shards of the dataset, and its facts.

        Raises NoData if there is no shard, UsageError if nothing tells which belong to the dataset, and as `_facts_of_shards`.
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
            what = f"the folder has shards of {len(self.shards)} writes, and nothing readable tells which belong to the dataset"
            fix = f"move all but one out of data/: shard-{', shard-'.join(sorted(self.shards))}"
            raise UsageError(what, where=self.folder.url, fix=fix)
        else:
            what = "nothing to repair: there is no complete shard and no readable manifest"
            fix = "run the command that was writing here with --resume or --overwrite"
            raise NoData(what, where=self.folder.url, fix=fix)

    def _written_by(self, generation: str) -> list[Location]:
        """The shards of one write, by number, including missing ones between them."""
        files = self.shards.get(generation, {})
        numbers = range(max(files, default=-1) + 1)
        return [files.get(number) or self.folder.join(shard_name(generation, number)) for number in numbers]

    def read(self, on_progress: OnProgress) -> None:
        """Read every shard completely; broken ones are unreadable, contradict the manifest, or repeat an episode."""
        rows, ids = row_format(*(self.facts[name] for name in FACTS[:3])), set[str]()
        for number, place in enumerate(self.places):
            check()
            try:
                adopted = adopt(place, rows, statistics := EpisodeStatistics(), lambda _: None)
                listed, have = self.listed.get(_path(place)), adopted.shard
                if listed is not None and (listed.bytes, listed.sha256) != (have.bytes, have.sha256):
                    what = f"its sha256 is {have.sha256[:12]}..., but the manifest says {listed.sha256[:12]}..."
                    raise BadData(what, where=place.url, fix="")
                twice = {name for name, times in Counter(adopted.ids).items() if times > 1}
                if again := twice | ids.intersection(adopted.ids):
                    raise BadData(f"episode {min(again)!r} is a duplicate", where=place.url, fix="")
            except StorageNotFound:
                self.broken.append((place, "it is missing"))
            except BadData as error:
                self.broken.append((place, error.what))
            else:
                self.sound.append(adopted)
                self.statistics.include(statistics)
                ids.update(adopted.ids)
            on_progress(Progress("reading shards", number + 1, len(self.places), "shards"))

    # ---- planned changes ----

    @property
    def kept(self) -> Manifest | None:
        """The existing manifest if it is correct, else None."""
        is_right = not self.broken and [adopted.shard.path for adopted in self.sound] == list(self.listed)
        return self.manifest if is_right else None

    @property
    def _resumable(self) -> bool:
        """Whether `--resume` of the writing command can continue."""
        if self.kept is not None:
            return not self.kept.complete and UNFINISHED_WRITING in self.kept.provenance
        return self.resumes is not None and not self.broken

    @property
    def _adopted(self) -> int:
        """The number of shards that were in no manifest before."""
        return sum(one.shard.path not in self.listed for one in self.sound)

    @property
    def _aside(self) -> list[Location]:
        """Files in `data/` to move to quarantine."""
        sound = {adopted.shard.path for adopted in self.sound}
        files = [*(file for files in self.shards.values() for file in files.values()), *self.others]
        return sorted((file for file in files if _path(file) not in sound), key=lambda file: file.path)

    def new_manifest(self) -> Manifest:
        """The manifest of the sound shards."""
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
            complete=False,  # shards do not tell what was requested
            counts=self.statistics.counts(assumptions),
            shards=tuple(adopted.shard for adopted in self.sound),
            statistics=self.statistics.as_json(),
            assumptions=assumptions,
            provenance=with_defaults(provenance, started=now()),
            episodes_lost=None if left_out else lost,  # the number of episodes in a dropped shard is unknown
        )

    def result(self, manifest: Manifest, *, dry_run: bool, seconds: float) -> RepairResult:
        """The result of the repair."""
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
        """Write `manifest` if it is new, and clean up. Raises Locked if another process was faster, StorageError."""
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
                keep_names(data, quarantine)  # a killed writer may not have synced them
                with lock.guard():  # reading the shards may have taken long
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
                lock.leave()  # the note describes the dataset like the one it replaced
            elif lock.held:
                lock.release()


def _path(shard: Location) -> str:
    return f"{DATA}/{shard.name}"


# ---- facts that shards do not record ----


def _facts_of_note(note: WritingNote, folder: Location) -> dict[str, Any]:
    """Facts from the options that `DatasetWriter` keeps in its note. Raises BadData if they are unreadable."""
    options, where = note.options, folder.join(WRITING).url
    try:
        return {
            **DEFAULTS,
            **{name: options[name] for name in ("action_scale", "compression", "reference") if name in options},
            "format": options["format"],
            **{name: options[name] and space_from_json(options[name], where=where) for name in FACTS[1:3]},
            "environment": options.get("environment") and EnvironmentRecord.from_json(options["environment"]),
            "meanings": Meanings.of(options.get("meanings", {}), where),
            "provenance": {"commands": [note.command], "started": note.started},
        }
    except (KeyError, TypeError, ValueError, BadConfig) as error:
        fix = f"run its command with --overwrite: {note.command}"
        raise BadData("the writer's note has no readable format or spaces", where=where, fix=fix) from error


def _facts_of_shards(places: Sequence[Location], folder: Location, asked: AskedEnvironment | None) -> dict[str, Any]:
    """Facts from the shards: format by their columns, compression, spaces as in `convert` or of the environment `asked`.

    Raises BadData if no shard is readable.
    """
    packed, compression = None, COMPRESSION
    for place in places:
        with suppress(BadData, StorageNotFound), opened(place) as file:
            packed = Columns.ITEM in file.schema_arrow.names
            codec = file.metadata.row_group(0).column(0).compression.lower() if file.num_row_groups else COMPRESSION
            compression = {"uncompressed": "none"}.get(codec, codec)
            break
    if packed is None:
        raise BadData("none of the shards can be read", where=folder.url, fix=RESTORE)
    env = None if asked is None else asked.among([(folder.url, None)])
    source = (RllibEpisodesSource if packed else RllibColumnsSource)([place for place in places if place.exists()], folder.url)
    try:
        with read_episodes(opened=[source], on_error="skip", env=env) as stream:  # only its spaces are used
            named = ("observation_space", "action_space", "spaces_inferred", "action_scale")
            known = {name: getattr(stream, name) for name in named}
    except NoData as err:
        raise BadData("no episode can be read from the shards", where=folder.url, fix=err.fix) from err
    known |= {"format": "episodes" if packed else "columns", "compression": compression}
    return {**DEFAULTS, **known, "environment": EnvironmentRecord.of(env)}
