"""The dataset that a write adds to: its shards stay as they are; of their bytes only ids, lengths and returns are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset
from offline_cli.datasets.file_names import generation_of
from offline_cli.datasets.manifest import CHANGES, IDENTITY, Manifest
from offline_cli.errors import BadConfig
from offline_cli.parquet.reading import opened
from offline_cli.source_code import allowed_changes, content_hash_of
from offline_cli.spaces import Space, describe, same_space
from offline_cli.storage.locations import Location

IN_ORDER: Final = ("commands", "sources", "source_formats", CHANGES)  # of a provenance, what is joined


class Base(Dataset):
    """The dataset that a write adds to, without the shards that the write itself has added before it was interrupted."""

    @staticmethod
    def without(folder: Location, manifest: Manifest, generation: str | None) -> Base:
        """`generation`: of the shards that are not part of it."""
        return Base(folder, manifest, tuple(one for one in manifest.shards if generation_of(one.path) != generation))

    @property
    def paths(self) -> frozenset[str]:
        """Of its shards, below the dataset folder."""
        return frozenset(shard.path for shard in self.shards)

    @property
    def identity(self) -> str:
        """A hash that no other content has: what `resume` compares, and what the names of the new shards depend on."""
        return content_hash_of([(shard.path, shard.sha256) for shard in self.shards])

    def refuse_other(
        self, row_format: str, compression: str, spaces: tuple[Space | None, Space | None], action_scale: str
    ) -> None:
        """Raise BadConfig, naming each difference, unless what is to be added is written as this dataset is."""
        known = self.manifest
        said = {"format": row_format, "compression": compression, "action_scale": action_scale}
        wrong = [f"{name} is {getattr(known, name)}, not {new}" for name, new in said.items() if getattr(known, name) != new]
        own = known.observation_space, known.action_space
        for name, space, new in zip(("observation", "action"), own, spaces, strict=True):
            if not same_space(space, new):
                wrong.append(f"the {name} space is {describe(space)}, not {describe(new)}")
        if wrong:
            fix = "write into a dataset of its own"
            raise BadConfig.of([f"in the dataset {one}" for one in wrong], where=self.location.url, fix=fix)

    def changes_to(self, identity: Mapping[str, Any], allow_changes: bool) -> list[str]:
        """How `identity` differs from what this dataset was recorded with. Raises as `allowed_changes` does."""
        known, fix = self.manifest.provenance.get(IDENTITY), "undo the change, write into a dataset of its own"
        before = known if isinstance(known, dict) else {}
        return allowed_changes(before, identity, allow_changes, where=self.location.url, fix=fix)

    def with_added(self, added: Manifest) -> Manifest:
        """The manifest of both; of `added`, shards, assumptions, losses and provenance are those of the write alone."""
        before, lost = self.manifest, (self.manifest.episodes_lost, added.episodes_lost)
        if len(self.shards) < len(before.shards):  # the write was killed between its manifest and its end
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

    def ids(self) -> Iterator[Sequence[str]]:
        """Ids of the episodes, shard by shard. Raises BadData, StorageError."""
        with self.plain(agents=False) as tables:
            yield from (table.column(Columns.EPS_ID).to_pylist() for table in tables)

    def schema(self) -> Any:
        """The pa.Schema of its shards; None: it has none. Raises BadData, StorageError."""
        if not self.shards:
            return None
        with opened(self.location.join(self.shards[0].path), size=self.shards[0].bytes) as file:
            return file.schema_arrow
