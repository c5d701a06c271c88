"""Minari's Arrow and Parquet storage: a folder for each episode, with its table and a `metadata.json`.

Tables have a row for each observation; of actions, rewards and flags the last row is padding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.action_shapes import one_number_each
from offline_cli.formats.arrow_files import record_batches, without_leaves
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.hdf5.episodes import ReadEpisode, numbered
from offline_cli.formats.minari.fields import EXTRA, IDS, STATISTICS, ends_of, nested_rows
from offline_cli.formats.minari.metadata import METADATA, Metadata
from offline_cli.json_documents import from_json
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["ArrowEpisodes"]

COLUMNS: Final = ("observations", "actions", "rewards", "terminations", "truncations")
SMALL: Final = 1 << 20  # bytes of an episode's metadata
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


class ArrowEpisodes:
    """The episodes of a dataset, in the order of their numbers."""

    def __init__(self, folder: str, files: Sequence[Location], metadata: Metadata, tally: Tally, memory_limit: int) -> None:
        """`folder`: URL of the one with `metadata.json`, with its last slash."""
        self._metadata, self._tally, self._limit = metadata, tally, memory_limit
        self._files: dict[str, list[Location]] = {}
        for file in files:
            self._files.setdefault(file.url.removeprefix(folder).partition("/")[0], []).append(file)

    def names(self) -> list[str]:
        """The folders of episodes, by number."""
        return numbered(self._files, "")

    def episodes(self, rejects: Rejects) -> Iterator[ReadEpisode]:
        """Whole ones. Raises MemoryLimitExceeded, BadData unless `rejects` takes it."""
        for name in self.names():
            self._tally.rows_in += 1
            try:
                yield self._episode(int(name), self._files[name])
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)

    def _episode(self, number: int, files: Sequence[Location]) -> ReadEpisode:
        said = next((_said(file) for file in files if file.name == METADATA), {})
        tables = sorted((file for file in files if file.name != METADATA), key=lambda file: file.url)
        with Scope() as scope:
            found = [batch for file in tables for batch in record_batches(file, scope, memory_limit=self._limit)]
        where = (tables or files)[0].url
        try:
            table = pa.Table.from_batches(found).combine_chunks() if found else pa.table({})
        except pa.ArrowException as error:
            raise BadEpisode(f"tables of two kinds: {str(error)[:200]}", where=where, fix=FIX) from error
        missing = [name for name in COLUMNS if name not in table.column_names]
        if missing or not table.num_rows:
            raise BadEpisode(f"no column {', '.join(missing)}" if missing else "no rows", where=where, fix=FIX)
        for name in table.column_names:
            if name not in (*COLUMNS, "infos", EXTRA, "episode_id"):
                self._tally.drop_column(name, "Minari has no such column")
        rewards, terminations, truncations = (
            one_number_each(self._tree(table, name, "", where), name, where=where, fix=FIX)[:-1] for name in COLUMNS[2:]
        )
        terminated, truncated = ends_of(terminations, truncations, self._tally)
        observation, action = self._metadata.spaces
        actions = _in_space(self._tree(table, "actions", "actions", where), action, "actions", where)
        extra = self._tree(table, EXTRA, "", where) if EXTRA in table.column_names else {}
        data = {key: value for key, value in said.items() if key not in STATISTICS and key not in IDS}
        eps_id = said.get("eps_id")
        return ReadEpisode(
            id=eps_id if isinstance(eps_id, str) else str(number),
            number=number,
            obs=_in_space(self._tree(table, "observations", "obs", where), observation, "observations", where),
            actions=map_leaves(lambda leaf: leaf[:-1], actions),
            rewards=rewards.astype(np.float64),
            terminated=terminated,
            truncated=truncated,
            extra={name: map_leaves(lambda leaf: leaf[:-1], tree) for name, tree in extra.items()},
            infos=self._infos(table, where),
            custom_data=data or None,
            agent_id=said.get("agent_id"),
            module_id=said.get("module_id"),
        )

    def _tree(self, table: pa.Table, name: str, path: str, where: str) -> Tree:
        """A column as a tree, without the parts that were dropped. `path`: dotted, as `--drop` takes it."""
        field = table.schema.field(name)
        array, field = without_leaves(table[name].combine_chunks(), field, path, self._metadata.dropped)
        if _has_bytes(field.type):
            what = f"{name} has JPEG frames or texts; frames are read from Minari's HDF5 files alone"
            raise BadData(
                what, where=where, fix="write the dataset as HDF5, or with jpeg_encoding=False; or --drop a part of it"
            )
        return tree_of(array, field, where=lambda row: f"{where} row {row}")

    def _infos(self, table: pa.Table, where: str) -> list[dict[str, Any]] | None:
        if "infos" not in table.column_names:
            return None
        columns = dict(_info_columns(table["infos"].combine_chunks(), table.schema.field("infos"), "", where))
        return nested_rows(columns) if columns else None


def _said(file: Location) -> Mapping[str, Any]:
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
        return any(_has_bytes(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_text(kind))


def _in_space(tree: Tree, space: Space | None, key: str, where: str) -> Tree:
    """A tree by struct fields in the structure and shapes of the space. Raises BadEpisode."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {str(at): one for at, one in enumerate(space.spaces)}
        if not isinstance(tree, dict) or tree.keys() != parts.keys():
            have = ", ".join(tree) if isinstance(tree, dict) else "an array"
            raise BadEpisode(f"{key} is {have} where the space has {', '.join(parts)}", where=where, fix=FIX)
        found = {name: _in_space(tree[name], part, f"{key}.{name}", where) for name, part in parts.items()}
        return tuple(found.values()) if isinstance(space, spaces.Tuple) else found
    if isinstance(tree, dict):
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
        for at, part in enumerate(array.flatten()):
            inner = array.type.field(at)
            yield from _info_columns(part, inner, f"{name}/{inner.name}" if name else inner.name, where)
    elif is_text(array.type) or pa.types.is_null(array.type):
        yield name, array.to_pylist()
    else:
        values = np.asarray(tree_of(array, field, where=lambda row: f"{where} row {row}"))
        sides = (field.metadata or {}).get(b"shape", b"").decode("ascii", "replace")
        shape = [int(side) for side in sides.split(",") if side.isdigit()]
        if shape and math.prod(shape) == math.prod(values.shape[1:]):
            values = values.reshape(len(values), *shape)
        yield name, list(values)
