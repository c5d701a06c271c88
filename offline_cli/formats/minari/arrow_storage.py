"""Minari's Arrow and Parquet storage: a folder for each episode, with its table and a `metadata.json`.

Tables have a row for each observation; of actions, rewards and flags the last row is padding. Files are opened as tables of
unknown origin are: what a message of Arrow or a footer of Parquet claims is checked before there is room made for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode, MemoryLimitExceeded
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.hdf5.episode_groups import Recorded, numbered
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.minari.metadata import ARROW, METADATA, Metadata
from offline_cli.formats.tables.arrow_messages import ArrowBound, arrow_batches, parquet_batches
from offline_cli.json_documents import from_json
from offline_cli.parquet.extension_types import extension_failures
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.failures import storage_failures
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["IDS", "STATISTICS", "ArrowEpisodes", "nested_rows"]

COLUMNS: Final = ("observations", "actions", "rewards", "terminations", "truncations")
EXTRA: Final = "extra_model_outputs"  # where our sink keeps these
KNOWN: Final = (*COLUMNS, "infos", EXTRA)
STATISTICS: Final = frozenset({"id", "total_steps", *(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))})
IDS: Final = ("eps_id", "agent_id", "module_id")
CHUNK: Final = 64 << 20  # bytes that are read at a time
ROWS: Final = 1 << 20
SMALL: Final = 1 << 20  # bytes of an episode's metadata
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


@dataclass(frozen=True, slots=True)
class ArrowEpisodes:
    """The episodes of a dataset, in the order of their numbers."""

    folder: str  # URL of the folder with `metadata.json`, with its last slash
    files: Sequence[Location]
    metadata: Metadata
    tally: Tally
    scope: Scope
    memory_limit: int = MEMORY_LIMIT

    def names(self) -> list[str]:
        """The folders of episodes, by number."""
        return numbered({file.url.removeprefix(self.folder).partition("/")[0] for file in self.files}, "")

    def episodes(self, names: Sequence[str], rejects: Rejects) -> Iterator[Recorded]:
        """Whole ones. Raises MemoryLimitExceeded, BadData unless `rejects` takes it."""
        by_folder: dict[str, list[Location]] = {}
        for file in self.files:
            by_folder.setdefault(file.url.removeprefix(self.folder).partition("/")[0], []).append(file)
        for name in names:
            self.tally.rows_in += 1
            try:
                yield self._episode(int(name), by_folder[name])
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)

    def _episode(self, number: int, files: Sequence[Location]) -> Recorded:
        tables = [file for file in files if file.name != METADATA]
        said = next((_said(file) for file in files if file.name == METADATA), {})
        if not tables:
            raise BadEpisode("no table is here", where=files[0].url, fix=FIX)
        table = pa.concat_tables([self._table(file) for file in sorted(tables, key=lambda file: file.url)])
        where = tables[0].url
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing or not table.num_rows:
            what = f"no column {', '.join(missing)}" if missing else "no rows"
            raise BadEpisode(what, where=where, fix=FIX)
        for name in table.column_names:
            if name not in (*KNOWN, "episode_id"):
                self.tally.drop_column(name, "Minari has no such column")
        steps = table.num_rows - 1
        flags = [np.asarray(self._tree(table, name, where), np.bool_)[:-1] for name in COLUMNS[3:]]
        self.tally.assume("end-flag-before-end", int((flags[0][:-1] | flags[1][:-1]).sum()))
        ended = [bool(flag[-1]) if steps else False for flag in flags]
        if steps and not any(ended):
            self.tally.assume(UNFINISHED)
            ended[1] = True
        rewards = np.asarray(self._tree(table, "rewards", where), np.float64)
        if rewards.ndim != 1:
            raise BadEpisode(f"rewards of shape {list(rewards.shape)}", where=where, fix=FIX)
        actions = _in_space(self._tree(table, "actions", where), self.metadata.action_space, "actions", where)
        extra = self._tree(table, EXTRA, where) if EXTRA in table.column_names else {}
        data = {key: value for key, value in said.items() if key not in STATISTICS and key not in IDS}
        eps_id = said.get("eps_id")
        return Recorded(
            id=eps_id if isinstance(eps_id, str) else str(number),
            number=number,
            obs=_in_space(self._tree(table, "observations", where), self.metadata.observation_space, "observations", where),
            actions=map_leaves(lambda leaf: leaf[:-1], actions),
            rewards=rewards[:-1],
            terminated=ended[0],
            truncated=ended[1],
            extra={name: map_leaves(lambda leaf: leaf[:-1], tree) for name, tree in extra.items()},
            infos=self._infos(table, where),
            custom_data=data or None,
            agent_id=said.get("agent_id"),
            module_id=said.get("module_id"),
        )

    def _table(self, file: Location) -> pa.Table:
        """Raises BadData for damaged bytes, UnsafeData and MemoryLimitExceeded for what would take too much."""
        size, found = file.size(), []
        if size > EpisodeLimit.within(self.memory_limit).most:
            what = f"an episode of {size / 1e6:,.0f} MB is too large for the memory limit"
            raise MemoryLimitExceeded(what, where=file.url, fix="raise --memory-limit")
        with storage_failures(file.url, "reading it"), self.scope.part() as held, extension_failures():
            stream = held.enter(file.open())
            try:
                if self.metadata.data_format == ARROW:
                    bound = ArrowBound(file.url, size, self.memory_limit)
                    batches = arrow_batches(stream, None, CHUNK, ROWS, is_stream=False, bound=bound)
                else:
                    batches = parquet_batches(stream, None, CHUNK, ROWS, size=size, url=file.url, scope=held)
                found = [batch for batch, _ in batches]
            except (pa.ArrowException, OSError, ValueError, IndexError) as error:
                raise BadData(f"a damaged table: {str(error)[:300]}", where=file.url, fix=FIX) from error
        return pa.Table.from_batches(found) if found else pa.table({})

    def _tree(self, table: pa.Table, name: str, where: str) -> Tree:
        field = table.schema.field(name)
        if _has_bytes(field.type):
            what = f"{name} has JPEG frames, which are read from Minari's HDF5 files alone"
            raise BadData(what, where=where, fix="write the dataset as HDF5, or with jpeg_encoding=False")
        return tree_of(table.column(name), field, where=lambda row: f"{where} row {row}")

    def _infos(self, table: pa.Table, where: str) -> list[dict[str, Any]] | None:
        if "infos" not in table.column_names:
            return None
        columns = dict(_info_columns(table.column("infos").combine_chunks(), table.schema.field("infos"), "", where))
        return nested_rows(columns) if columns else None


def _said(file: Location) -> dict[str, Any]:
    """What `metadata.json` says of an episode. Raises BadData."""
    try:
        said = from_json(file.read_bytes()) if file.size() <= SMALL else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BadData("metadata of an episode that is not a JSON object", where=file.url, fix=FIX)
    return said


def _has_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_text(kind))


def _in_space(tree: Tree, space: Space | None, key: str, where: str) -> Tree:
    """A tree by struct fields in the structure and shapes of the space. Raises BadEpisode."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {str(i): one for i, one in enumerate(space.spaces)}
        if not isinstance(tree, dict) or tree.keys() != parts.keys():
            have = ", ".join(tree) if isinstance(tree, dict) else "an array"
            raise BadEpisode(f"{key} is {have} where the space has {', '.join(parts)}", where=where, fix=FIX)
        found = {name: _in_space(tree[name], part, f"{key}.{name}", where) for name, part in parts.items()}
        return tuple(found.values()) if isinstance(space, spaces.Tuple) else found
    if not isinstance(tree, np.ndarray):
        raise BadEpisode(f"{key} is a struct where the space has an array", where=where, fix=FIX)
    shape = () if space is None or space.shape is None else space.shape
    if space is None or tree.shape[1:] == shape:
        return tree
    if math.prod(tree.shape[1:]) != math.prod(shape):
        raise BadEpisode(f"{key} is of shape {list(tree.shape[1:])}, the space of {list(shape)}", where=where, fix=FIX)
    return tree.reshape(len(tree), *shape)


def _info_columns(array: pa.Array, field: pa.Field, name: str, where: str) -> Iterator[tuple[str, Sequence[Any]]]:
    """Values of each key of the infos, those of nested ones by `/`. Raises BadEpisode."""
    if pa.types.is_struct(array.type):
        for i, part in enumerate(array.flatten()):
            inner = array.type.field(i)
            yield from _info_columns(part, inner, f"{name}/{inner.name}" if name else inner.name, where)
    elif is_text(array.type) or pa.types.is_null(array.type):
        yield name, array.to_pylist()
    else:
        values: NDArray[Any] = np.asarray(tree_of(array, field, where=lambda row: f"{where} row {row}"))
        sides = (field.metadata or {}).get(b"shape", b"").decode("ascii", "replace")
        shape = [int(side) for side in sides.split(",") if side.isdigit()] if "shape" in str(field.metadata) else None
        if shape is not None and int(np.prod(shape)) == int(np.prod(values.shape[1:])):
            values = values.reshape(len(values), *shape)
        yield name, list(values)


def nested_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """One dict a row; `/` in a column's name divides keys of nested dicts."""
    heads: dict[str, dict[str, Sequence[Any]]] = {}
    for path, values in columns.items():
        head, _, rest = path.partition("/")
        heads.setdefault(head, {})[rest] = values
    whole = {head: parts[""] if "" in parts else nested_rows(parts) for head, parts in heads.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
