"""The plan of a repair, made before anything changes; its execution, under the writer's lease; and the result.

* `Plan`: what a repair will change. A dry run shows the same plan.
* `act`: carries a plan out. Raises where anything has changed since the plan was made. The order: half-written files and
  uploads are removed; shards get the columns that later ones have; manifests that will not stay are copied aside; the manifest
  is written; only then what is not part of the dataset moves to quarantine; all of it is synced before the note is removed.
  Killed at any point, the folder is one that another repair, or `--resume`, continues from.
* `RepairResult`: what a repair found and did, or would do; its fields are JSON values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from offline_cli.checking.repair.recovered_facts import FACTS, Examined, Known
from offline_cli.checking.repair.survey import Choice, Survey, survey
from offline_cli.datasets.file_names import DATA, MANIFEST, MANIFEST_PARTS, QUARANTINE
from offline_cli.datasets.lease import Changed, WritingLock
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.datasets.manifest import Counts, Manifest, Shard, now, with_defaults
from offline_cli.datasets.ownership import free_place, keep_moves, keep_names, manifest_parts, set_aside
from offline_cli.datasets.shard_list import parts_of, with_figures
from offline_cli.datasets.shard_sequence import ShardSequence
from offline_cli.datasets.target_folder import UNFINISHED_WRITING
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import write_whole

__all__ = ["LEFT_OUT", "Plan", "RepairResult", "act"]

LEFT_OUT = "broken-shard-left-out"
"""Among the assumptions of a manifest: how many."""


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

    def refused(self, otherwise: str | None = None) -> dict[str, Any]:
        """The result beside an error: nothing was changed. `otherwise`: the key of what could be done."""
        told = self.as_dict()
        kept = {name: told.pop(name) for name in ("out", "format", "broken", "dry_run", "seconds")}
        return {**kept, "changed": False, **({otherwise: told} if otherwise else {})}


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One repair."""

    found: Survey
    choice: Choice
    known: Known
    examined: Examined
    dry_run: bool
    command: str
    began: float  # time.monotonic()

    @property
    def folder(self) -> Location:
        """The dataset's."""
        return self.found.folder

    @property
    def kept_manifest(self) -> Manifest | None:
        """The manifest that is correct as it is."""
        is_whole = self.choice.expected and not self.examined.broken and self.choice.is_listed
        return self.choice.by_manifest if is_whole or not self.choice.shards else None  # one without shards lists them all

    @property
    def aside(self) -> list[Location]:
        """Files in `data/` that go to quarantine."""
        return [*(broken.place for broken in self.examined.broken if broken.is_there), *self.choice.rest(self.found)]

    @property
    def removed(self) -> list[str]:
        """Unreadable files, which are removed."""
        return [*(file.url for file in self.found.half_written), *map(str, self.found.uploads)]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.kept_manifest is None or self.found.note_bytes is not None or bool(self.aside or self.removed)

    @property
    def is_resumable(self) -> bool:
        """Whether `--resume` of the command that began it would continue."""
        kept = self.kept_manifest
        if kept is not None:
            return not kept.complete and UNFINISHED_WRITING in kept.provenance
        return self.known.go_on_from is not None and not self.examined.broken

    # ---- the manifest ----

    def manifest(self, rewritten: Sequence[Shard] | None = None) -> Manifest:
        """The one that will be written; `rewritten`: its shards where they are not as they were read."""
        kept, known, figures = self.kept_manifest, self.known, self.examined.statistics
        if kept is not None:
            return kept
        left_out = self.examined.left_out
        assumptions = {**known.assumptions, **({LEFT_OUT: left_out} if left_out else {})}
        unfinished = figures.unfinished_with(assumptions)
        return Manifest(
            **{name: getattr(known, name) for name in FACTS},
            complete=False,  # of what was asked for, shards say nothing
            counts=Counts(figures.episodes, figures.steps, figures.terminated, figures.truncated, unfinished),
            shards=tuple(adopted.shard for adopted in self.examined.sound) if rewritten is None else rewritten,
            statistics=figures.as_json(),
            assumptions=assumptions,
            provenance=self._provenance(),
            episodes_lost=None if left_out else known.episodes_lost,  # the ones in a shard that is gone are unknown
        )

    def _provenance(self) -> dict[str, Any]:
        before = {name: value for name, value in self.known.provenance.items() if name != UNFINISHED_WRITING}
        repairs = before.get("repaired")
        this = {
            "at": now(),
            "command": self.command,
            "based_on": self.known.said_by,
            "adopted": self._adopted(),
            "broken": [broken.place.name for broken in self.examined.broken],
        }
        known = {**before, "repaired": [*(repairs if isinstance(repairs, list) else []), this]}
        if self.is_resumable and self.known.go_on_from is not None:
            environment = self.known.environment and self.known.environment.as_json()
            known[UNFINISHED_WRITING] = self.known.go_on_from.within_manifest(environment)
        return with_defaults(known, started=now())

    def _adopted(self) -> int:
        listed = self.choice.by_manifest or self.found.manifest
        names = {shard.path for shard in listed.shards} if listed else set()
        return sum(adopted.shard.path not in names for adopted in self.examined.sound)

    # ---- in words ----

    def result(self) -> RepairResult:
        """The report to the caller."""
        manifest = self.manifest()
        broken = self.examined.broken
        return RepairResult(
            out=self.folder.url,
            format=manifest.format,
            episodes=manifest.counts.episodes,
            steps=manifest.counts.steps,
            shards=len(manifest.shards),
            adopted=self._adopted(),
            dropped=len(self.removed) + len(self.aside) + sum(one.count for one in broken if not one.is_there),
            changed=self.changes,
            complete=manifest.complete,
            resumable=self.is_resumable,
            broken=tuple({"path": one.place.url, "why": one.why} for one in broken),
            removed=tuple(self.removed),
            set_aside=tuple(place.url for place in self.aside),
            based_on=self.known.said_by,
            dry_run=self.dry_run,
            seconds=time.monotonic() - self.began,
        )


def act(plan: Plan) -> None:
    """Carry it out. Raises Changed where another process was faster, Locked, StorageError."""
    lock = WritingLock(plan.folder)
    lock.acquire(_note(plan.found, plan.command), instead_of=plan.found.note_bytes)
    try:
        if survey(plan.folder).files() != plan.found.files():
            raise Changed
        with lock.guard():
            _drop_half_written(plan.found, survey(plan.folder))
            _rewrite_manifest(plan, lock)
            for file in plan.aside:
                with lock.guard():
                    set_aside(file, plan.folder)
            keep_moves(plan.aside, plan.folder)
            keep_names(plan.folder.join(DATA))  # files without bytes have gone from it
            lock.release()
    finally:
        if lock.held and plan.found.note_bytes is not None:
            lock.leave()  # it describes the dataset as the one that it replaced
        elif lock.held:
            lock.release()


def _note(found: Survey, command: str) -> WritingNote:
    """One that `--resume` can continue from as from the present one."""
    before = found.note
    kept = ("", {}, 0) if before is None else (before.generation, before.options, before.first_quarantine)
    return WritingNote.of_this_process(*kept, command)


def _drop_half_written(planned: Survey, now: Survey) -> None:
    """Of what was planned, what is still there: parts of a beat come and go."""
    there = {file.path for file in now.half_written}
    for file in planned.half_written:
        if file.path in there:
            file.remove()
    for upload in planned.uploads:
        upload.abort()


def _rewrite_manifest(plan: Plan, lock: WritingLock) -> None:
    if plan.kept_manifest is not None:
        return
    sequence = ShardSequence(plan.folder, "", compression=plan.known.compression, guard=lock.guard)
    examined = plan.examined
    for adopted in examined.sound:
        sequence.adopt(adopted.shard, adopted.schema)
    sequence.complete(examined.rows)
    manifest = plan.manifest(with_figures(sequence.finished.sealed(), *examined.statistics.per_episode()))
    keep_names(plan.folder.join(DATA), plan.folder.join(QUARANTINE))  # whose writer may have been killed before that
    with lock.guard():  # shards may have taken long
        if plan.found.manifest_bytes is not None:
            copy = free_place(plan.folder, MANIFEST)
            plan.folder.join(QUARANTINE).make_folder()
            write_whole(copy, plan.found.manifest_bytes, folder=plan.folder)
        write_whole(plan.folder.join(MANIFEST), manifest.to_bytes(), folder=plan.folder)
        listed = {part.path for part in parts_of(manifest.shards)}
        replaced = [file for file in manifest_parts(plan.folder) if f"{MANIFEST_PARTS}/{file.name}" not in listed]
        for file in replaced:  # with the copy of the manifest that may list them
            set_aside(file, plan.folder)
        keep_moves(replaced, plan.folder)
        plan.folder.join(MANIFEST_PARTS).remove_empty_folder()
