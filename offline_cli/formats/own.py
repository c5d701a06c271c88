"""Our own dataset folders as a source like any other; refuses what `Dataset.open` refuses (no manifest, other versions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.formats.memory import MEMORY_LIMIT
from offline_cli.formats.source import ROWS
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.dataset import Dataset
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally

__all__ = ["OwnSource"]


@dataclass(slots=True)
class OwnSource:
    """A committed dataset; its manifest says what foreign sources leave open."""

    dataset: Dataset
    location: str
    format: str  # episodes or columns
    observation_space: Space | None
    action_space: Space | None
    spaces_inferred: bool
    action_scale: str
    environment_id: str | None
    environment_kwargs: Mapping[str, Any]
    size: int | None
    memory_limit: int = MEMORY_LIMIT
    unit: str = ROWS
    done: int = 0
    scope: Scope = field(default_factory=Scope, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, location: Location, *, memory_limit: int = MEMORY_LIMIT) -> OwnSource:
        """The dataset at `location`; `memory_limit`: see `Dataset.batches`. Raises Uncommitted, BadData, StorageError."""
        dataset = Dataset.open(location)
        manifest = dataset.manifest
        return cls(
            dataset=dataset,
            location=location.url,
            format=manifest.format,
            observation_space=manifest.observation_space,
            action_space=manifest.action_space,
            spaces_inferred=manifest.spaces_inferred,
            action_scale=manifest.action_scale,
            environment_id=manifest.environment.id if manifest.environment else None,
            environment_kwargs=manifest.environment.kwargs if manifest.environment else {},
            size=manifest.counts.episodes if manifest.format == "episodes" else manifest.counts.steps,
            memory_limit=memory_limit,
        )

    @property
    def commands(self) -> list[str]:
        """The commands that made it, first to last."""
        return [str(line) for line in self.dataset.manifest.provenance.get("commands", [])]

    @property
    def longest(self) -> int | None:
        """See `Measured`."""
        found = self.dataset.manifest.statistics.get("length", {}).get("max")
        return None if found is None else int(found)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[EpisodeBatch]:
        """The episodes of its shards, whole; `rows_in` counts rows of their tables."""
        self.done = 0
        self.dataset.refuse_unexplained()
        with self.scope.part() as held:
            for batch in held.enter(self.dataset.batches(memory_limit=self.memory_limit)):
                rows = len(batch) if self.format == "episodes" else batch.num_steps
                self.done += rows
                tally.rows_in += rows
                yield batch

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()
