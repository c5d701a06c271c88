"""The dataset that a write adds to: its shards stay as they are; of their bytes only ids, lengths and returns are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import generation_of
from offline_cli.datasets.manifest import CHANGES, IDENTITY, Manifest, Shard
from offline_cli.errors import BadConfig
from offline_cli.parquet.reading import opened
from offline_cli.source_code import allowed_changes, content_hash_of
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location

__all__ = ["Base"]

IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # of a provenance, what is joined


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """The dataset that a write adds to."""

    manifest: Manifest
    shards: Sequence[Shard]  # of the dataset without what the write adds

    @staticmethod
    def of(manifest: Manifest, added: str | None) -> Base:
        """`added`: the generation of shards that the write has added, if it was interrupted."""
        return Base(manifest, [shard for shard in manifest.shards if generation_of(shard.path) != added])

    @property
    def is_past(self) -> bool:
        """Whether the manifest lists what the write has added: it was killed between its commit and its end."""
        return len(self.shards) < len(self.manifest.shards)

    @property
    def paths(self) -> frozenset[str]:
        """Of its shards, below the dataset folder."""
        return frozenset(shard.path for shard in self.shards)

    @property
    def generations(self) -> frozenset[str]:
        """In the names of its shards."""
        return frozenset(map(generation_of, self.paths))

    @property
    def identity(self) -> str:
        """A hash that no other content has: what `resume` compares, and what the names of the new shards depend on."""
        return content_hash_of([(shard.path, shard.sha256) for shard in self.shards])

    def refuse_other(
        self, folder: Location, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless what is to be added is written as this dataset is."""
        known = self.manifest
        said = (("format", known.format, row_format), ("compression", known.compression, compression))
        wrong = [f"{name} is {ours}, not {theirs}" for name, ours, theirs in said if ours != theirs]
        own = known.observation_space, known.action_space
        for name, space, new in zip(("observation", "action"), own, spaces, strict=True):
            if not same_space(space, new):
                wrong.append(f"the {name} space is {describe(space)}, not {describe(new)}")
        if known.action_scale != scale:
            wrong.append(f"actions are of the scale {known.action_scale}, not {scale}")
        if wrong:
            fix = "write into a dataset of its own"
            raise BadConfig.of([f"in the dataset {one}" for one in wrong], where=folder.url, fix=fix)

    def changes_to(self, identity: Mapping[str, Any], folder: Location, allow_changes: bool) -> list[str]:
        """How `identity` differs from what this dataset was recorded with. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write into a dataset of its own"
        return allowed_changes(known if isinstance(known, dict) else {}, identity, allow_changes, where=folder.url, fix=fix)

    def with_added(self, added: Manifest) -> Manifest:
        """The manifest of both; of `added`, shards, assumptions, losses and provenance are those of the write alone."""
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if self.is_past:
            return before
        lists = ((name, before.provenance.get(name), added.provenance.get(name)) for name in IN_ORDER)
        lines = {name: [*one, *other] for name, one, other in lists if isinstance(one, list) and isinstance(other, list)}
        return replace(
            added,
            complete=added.complete and before.complete,
            shards=(*self.shards, *added.shards),
            assumptions=dict(Counter(before.assumptions) + Counter(added.assumptions)),
            episodes_lost=None if None in lost else sum(filter(None, lost)),
            provenance={**before.provenance, **added.provenance, **lines},
        )

    def plain(self, folder: Location) -> Iterator[Any]:
        """The plain columns of its episodes, as pa.Tables. Raises BadData, StorageError."""
        with Dataset(folder, self.manifest, tuple(self.shards)).plain(agents=False) as tables:
            yield from tables

    def ids(self, folder: Location) -> Iterator[Sequence[str]]:
        """Ids of the episodes, shard by shard. Raises BadData, StorageError."""
        yield from (table.column(Columns.EPS_ID).to_pylist() for table in self.plain(folder))

    def schema(self, folder: Location) -> Any:
        """The pa.Schema of its shards; None: it has none. Raises BadData, StorageError."""
        if not self.shards:
            return None
        with opened(folder.join(self.shards[0].path), size=self.shards[0].bytes) as file:
            return file.schema_arrow
