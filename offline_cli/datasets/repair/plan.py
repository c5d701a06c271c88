"""What a repair will change, told before anything is; refuses to decide twice: a dry run shows the same plan."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from offline_cli.datasets.repair.choice import Choice
from offline_cli.datasets.repair.examining import Examined
from offline_cli.datasets.repair.known import Known
from offline_cli.datasets.repair.listing import said_of_shards
from offline_cli.datasets.repair.result import RepairResult
from offline_cli.datasets.repair.survey import Survey
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Counts, Manifest, Shard, now, with_defaults
from offline_cli.storage.target_folder import UNFINISHED_WRITING
from offline_cli.tally import UNFINISHED

__all__ = ["LEFT_OUT", "Plan"]

LEFT_OUT = "broken-shard-left-out"
"""Among the assumptions of a manifest: how many."""


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
        """The manifest that is right as it stands."""
        listed = self.choice.by_manifest
        return listed if listed is not None and self.choice.expected and not self.examined.broken else self._of_nothing()

    def _of_nothing(self) -> Manifest | None:
        """A manifest without shards lists them all."""
        listed = self.choice.by_manifest
        return listed if listed is not None and not self.choice.shards else None

    @property
    def aside(self) -> list[Location]:
        """Files in `data/` that go to quarantine."""
        return [*(broken.place for broken in self.examined.broken if broken.is_there), *self.choice.rest(self.found)]

    @property
    def removed(self) -> list[str]:
        """What nobody can read, and goes."""
        return [*(file.url for file in self.found.half_written), *map(str, self.found.uploads)]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return self.kept_manifest is None or self.found.note_bytes is not None or bool(self.aside or self.removed)

    @property
    def is_resumable(self) -> bool:
        """Whether `--resume` of the command that began it would go on."""
        kept = self.kept_manifest
        if kept is not None:
            return not kept.complete and UNFINISHED_WRITING in kept.provenance
        return self.known.go_on_from is not None and not self.examined.broken

    # ---- the manifest ----

    def manifest(self, rewritten: tuple[Shard, ...] | None = None) -> Manifest:
        """The one that will stand; `rewritten`: its shards where they are not as they were read."""
        kept, known, figures = self.kept_manifest, self.known, self.examined.statistics
        if kept is not None:
            return kept
        left_out = self.examined.left_out
        assumptions = {**known.assumptions, **({LEFT_OUT: left_out} if left_out else {})}
        unfinished = min(figures.episodes, figures.unfinished + assumptions.get(UNFINISHED, 0))
        return Manifest(
            format=known.format,
            complete=self._is_complete(),
            environment=known.environment,
            observation_space=known.observation_space,
            action_space=known.action_space,
            spaces_inferred=known.spaces_inferred,
            action_scale=known.action_scale,
            compression=known.compression,
            counts=Counts(figures.episodes, figures.steps, figures.terminated, figures.truncated, unfinished),
            shards=tuple(adopted.shard for adopted in self.examined.sound) if rewritten is None else rewritten,
            statistics=figures.as_json(),
            assumptions=assumptions,
            provenance=self._provenance(),
            episodes_lost=None if left_out else known.episodes_lost,  # nobody knows which ones were in a shard that is gone
        )

    def _is_complete(self) -> bool:
        """Whether the manifest that this one replaces says that all that was asked for is in shards that are all adopted."""
        adopted = {one.shard.path for one in self.examined.sound}
        return self.known.complete and not self.examined.broken and said_of_shards(self.found).keys() <= adopted

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
            environment = self.known.environment and asdict(self.known.environment)
            known[UNFINISHED_WRITING] = self.known.go_on_from.within_manifest(environment)
        return with_defaults(known, started=now())

    def _adopted(self) -> int:
        listed = self.choice.by_manifest or self.found.manifest
        names = {shard.path for shard in listed.shards} if listed else set()
        return sum(adopted.shard.path not in names for adopted in self.examined.sound)

    # ---- in words ----

    def result(self) -> RepairResult:
        """What the caller is told."""
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
