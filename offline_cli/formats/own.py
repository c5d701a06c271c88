"""Our own dataset folders as a source like any other; raises where `Dataset.open` does (no manifest, other versions)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.manifest import Manifest
from offline_cli.files.locations import Location
from offline_cli.formats.memory import MEMORY_LIMIT
from offline_cli.formats.source import ROWS, Fragments, ReadOptions, SourceInfo, shares
from offline_cli.scopes import Scope
from offline_cli.tally import Rejects, Tally

__all__ = ["OwnSource", "info_of"]


@dataclass(slots=True)
class OwnSource:
    """A committed dataset; its manifest declares what foreign sources leave open."""

    dataset: Dataset
    info: SourceInfo
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
            info=info_of(manifest, location.url),
            size=manifest.counts.episodes if manifest.format == "episodes" else manifest.counts.steps,
            memory_limit=memory_limit,
        )

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`."""

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """The episodes of its shards, whole; `rows_in` counts rows of their tables."""
        self.done = 0
        self.dataset.refuse_unexplained()
        with self.scope.part() as held:
            for batch in held.enter(self.dataset.batches(memory_limit=self.memory_limit)):
                rows = len(batch) if self.info.format == "episodes" else batch.num_steps
                self.done += rows
                tally.rows_in += rows
                yield Fragments(batch)

    def close(self) -> None:
        """See `Source`."""
        self.scope.close()

    def partitions(self, count: int) -> Sequence[OwnSource]:
        """See `Source`: no episode lies in two shards."""
        parts = shares(self.dataset.manifest.shards, count)
        size = (lambda shard: shard.episodes) if self.info.format == "episodes" else (lambda shard: shard.steps)
        return [
            replace(self, dataset=replace(self.dataset, part=tuple(part)), size=sum(map(size, part)), done=0) for part in parts
        ]


def info_of(manifest: Manifest, location: str) -> SourceInfo:
    """What a manifest declares of the dataset at `location`."""
    environment, longest = manifest.environment, manifest.statistics.get("length", {}).get("max")
    return SourceInfo(
        format=manifest.format,
        location=location,
        observation_space=manifest.observation_space,
        action_space=manifest.action_space,
        spaces_inferred=manifest.spaces_inferred,
        action_scale=manifest.action_scale,
        environment_id=environment.id if environment else None,
        environment_kwargs=environment.kwargs if environment else {},
        longest=None if longest is None else int(longest),
        commands=tuple(str(line) for line in manifest.provenance.get("commands", [])),
        manifest=manifest,
    )
