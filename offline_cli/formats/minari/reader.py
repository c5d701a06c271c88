"""Minari's datasets as sources: episodes of T+1 observations by the spaces of their metadata, in HDF5, Arrow or Parquet.

HDF5 has a group for each episode; Arrow and Parquet have a folder for each, with a table and a `metadata.json`. Their tables
have a row for each observation: of actions, rewards and flags the last row is padding.

Ids are Minari's own numbers, unless the episode names another (`eps_id`, which our sink writes). Infos are kept as infos; other
attributes of an episode (`seed`, `options/...`) are its custom data, without the statistics of rewards, which follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, NoData
from offline_cli.formats.action_shapes import one_number_each
from offline_cli.formats.arrow_files import record_batches
from offline_cli.formats.arrow_leaves import is_text, tree_of
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.episodes import EpisodeLayout, episodes_of, numbered, one_episode, why_left_out
from offline_cli.formats.hdf5.safe import FRAMES, Hdf5File, Values
from offline_cli.formats.leaf_names import tree_of_names
from offline_cli.formats.minari.metadata import (
    EXTRA,
    FORMAT,
    HDF5,
    IDS,
    MAIN,
    METADATA,
    STATISTICS,
    Metadata,
    dotted_path,
    metadata_of,
    read_metadata,
)
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.safe_json import from_json
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["MinariSource", "open_minari"]

PREFIX: Final = "episode_"
OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
FLAGS: Final = ("rewards", "terminations", "truncations")
SMALL: Final = 1 << 20  # bytes of the metadata of an episode
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


def open_minari(files: Sequence[Location], context: OpenContext) -> MinariSource:
    """The dataset among the files. Raises BadData where there are several, or its metadata are not Minari's."""
    found = [file for file in files if file.name == METADATA and b'"data_format"' in file.start(1 << 16)[0]]
    old = [] if found else [file for file in files if file.name.endswith(".hdf5")]
    if len(found or old) != 1:
        what = f"{len(found or old)} Minari datasets are here: {', '.join(file.url for file in (found or old)[:3])}"
        raise BadData(what, where=context.location, fix="name the folder of one, or several folders")
    if found:
        metadata, below = read_metadata(found[0], context.drop), found[0].url.removesuffix(METADATA)
        data = [file for file in files if file.url.startswith(below) and file is not found[0]]
    else:
        metadata, below, data = _of_old_file(old[0], context), old[0].url.rpartition("/")[0] + "/", old
    info = SourceInfo(
        format=FORMAT,
        location=context.location,
        observation_space=metadata.spaces[0],
        action_space=metadata.spaces[1],
        action_scale=ENV_SCALE,
        environment=metadata.environment,
        declared=(metadata.document,),
    )
    return MinariSource(data, context.location, info, metadata=metadata, folder=below)


def _of_old_file(file: Location, context: OpenContext) -> Metadata:
    """Of a file that Minari wrote before 0.5: they are attributes of its root."""
    with Hdf5File(file) as opened:
        attributes = opened.attributes()
    if not {"observation_space", "total_episodes"} & attributes.keys():
        what, fix = f"this is the file of a Minari dataset, without its {METADATA}", "name the folder that has both"
        raise BadData(what, where=file.url, fix=fix)
    return metadata_of({**attributes, "data_format": HDF5}, file.url, context.drop)


@dataclass(slots=True)
class MinariSource(FileSource):
    """The files of one dataset; `metadata` says how they are stored."""

    format: ClassVar[str] = FORMAT

    metadata: Metadata = field(kw_only=True)
    folder: str = field(kw_only=True)  # URL, with its last slash

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes. Raises NoData where the file of episodes is not there."""
        self.done = 0
        for path in self.metadata.dropped:
            tally.drop_column(path, LEFT_OUT)
        limit = self.read_options.memory_limit
        with self.scope.part() as held:
            layout: EpisodeLayout = _ArrowEpisodes(self.folder, self.files, limit, self.metadata, tally)
            if self.metadata.data_format == HDF5:
                main = next((file for file in self.files if file.name == MAIN or len(self.files) == 1), None)
                if main is None:
                    what, fix = f"{MAIN} is not beside {METADATA}", "name the folder that has both"
                    raise NoData(what, where=self.info.location, fix=fix)
                layout = _Hdf5Episodes(held.enter(Hdf5File(main, limit)), self.metadata, tally)
            said, found = self.metadata.episodes, len(layout.names())
            if said is not None and said != found:
                what = f"its metadata says {said} episodes, and {found} are here"
                fix = "copy the dataset again, or write it again with Minari"
                rejects.add(BadData(what, where=self.info.location, fix=fix), rows=1)
                rejects.lose_episodes(Lost.UNREADABLE, max(0, said - found))
            yield from episodes_of(self, layout, self.folder, tally, rejects)
        self.done = self.size or self.done


class _Hdf5Episodes:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, metadata: Metadata, tally: Tally) -> None:
        self._file, self._metadata, self._tally = file, metadata, tally

    def names(self) -> list[str]:
        """See `EpisodeLayout`."""
        return numbered(self._file.members(), PREFIX)

    def episode(self, name: str) -> tuple[int, EpisodeBatch]:
        """See `EpisodeLayout`."""
        node = self._file.node(name)
        values = node.values(without=[path for path in node.datasets if self._metadata.drops(path)])
        for path, (kind, _) in node.datasets.items():
            self._tally.assume("jpeg-frames", len(values[path]) if kind == FRAMES and path in values else 0)
        number, attributes = int(name.removeprefix(PREFIX)), self._file.attributes(name, self._tally, without=STATISTICS)
        return number, _episode(number, values, attributes, "_index_{}", self._metadata, node.where, self._tally)


class _ArrowEpisodes:
    """An `EpisodeLayout` of folders."""

    def __init__(self, folder: str, files: Sequence[Location], limit: int, metadata: Metadata, tally: Tally) -> None:
        """`folder`: URL of the one with `metadata.json`, with its last slash."""
        self._limit, self._metadata, self._tally = limit, metadata, tally
        self._files: dict[str, list[Location]] = {}
        for file in files:
            self._files.setdefault(file.url.removeprefix(folder).partition("/")[0], []).append(file)

    def names(self) -> list[str]:
        """See `EpisodeLayout`."""
        return numbered(self._files, "")

    def episode(self, name: str) -> tuple[int, EpisodeBatch]:
        """See `EpisodeLayout`. Raises MemoryLimitExceeded."""
        files = self._files[name]
        attributes = next((_object_in(file) for file in files if file.name == METADATA), {})
        tables = sorted((file for file in files if file.name != METADATA), key=lambda file: file.url)
        with Scope() as scope:
            found = [batch for file in tables for batch in record_batches(file, scope, memory_limit=self._limit)]
        where, values = (tables or files)[0].url, dict[str, Values]()
        try:
            table = pa.Table.from_batches(found) if found else pa.table({})
        except pa.ArrowException as error:
            raise BadEpisode(f"tables of two kinds: {str(error)[:200]}", where=where, fix=FIX) from error
        for part in table.schema:
            array, is_padded = pa.concat_arrays(table[part.name].chunks), part.name not in (OBSERVATIONS, INFOS)
            values |= dict(self._leaves(array[: len(array) - is_padded] if len(array) else array, part, part.name, where))
        values.pop("episode_id", None)
        return int(name), _episode(int(name), values, attributes, "{}", self._metadata, where, self._tally)

    def _leaves(self, array: pa.Array, field_: pa.Field, path: str, where: str) -> Iterator[tuple[str, Values]]:
        """Values by path, `/` between the names of structs; without those that were dropped. Raises BadData."""
        kind = array.type
        if self._metadata.drops(path):
            return
        if pa.types.is_struct(kind):
            for at, part in enumerate(array.flatten()):
                yield from self._leaves(part, kind.field(at), f"{path}/{kind.field(at).name}", where)
        elif is_text(kind) or pa.types.is_null(kind):
            yield path, array.to_pylist()
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            fix = "write the dataset as HDF5, or with jpeg_encoding=False; or --drop a part of it"
            raise BadData(f"{path} has JPEG frames, which are read from Minari's HDF5 files alone", where=where, fix=fix)
        else:
            values: NDArray[Any] = np.asarray(tree_of(array, field_, where=lambda row: f"{where} row {row}"))
            sides = (field_.metadata or {}).get(b"shape", b"").decode("ascii", "replace")
            yield path, _shaped(values, tuple(int(side) for side in sides.split(",") if side.isdigit()) or None)


def _object_in(file: Location) -> Mapping[str, Any]:
    """What `metadata.json` says of an episode. Raises BadData."""
    try:
        said = from_json(file.read_bytes()) if file.size() <= SMALL else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BadData("metadata of an episode that is not a JSON object", where=file.url, fix=FIX)
    return said


def _episode(
    number: int,
    values: Mapping[str, Values],
    attributes: Mapping[str, Any],
    tuple_key: str,
    metadata: Metadata,
    where: str,
    tally: Tally,
) -> EpisodeBatch:
    """The episode of arrays by path (`observations/pair/_index_0`); `tuple_key`: what a part of a Tuple is called."""
    missing = [key for key in FLAGS if not np.ndim(values.get(key, 0))]
    if missing:
        raise BadEpisode(f"no rows of {' and '.join(missing)}", where=where, fix=FIX)
    steps, used = len(values[FLAGS[0]]), {*FLAGS}
    obs, actions = (
        _tree(values, space, key, tuple_key, where, used)
        for key, space in zip((OBSERVATIONS, ACTIONS), metadata.spaces, strict=True)
    )
    infos, extra = dict[str, Any](), dict[str, Any]()
    for path, one in values.items():
        head, _, rest = path.partition("/")
        if path in used:
            continue
        if head in (OBSERVATIONS, ACTIONS):
            raise BadEpisode(f"a dataset that the space does not have: {path[:80]}", where=where, fix=FIX)
        if head == INFOS and np.ndim(one) and len(one) == steps + 1:
            infos[rest] = one
        elif head == EXTRA and not isinstance(one, list) and one.shape[:1] == (steps,):
            extra[rest] = one
        else:
            tally.drop_column(path, why_left_out(one, steps + 1) if head == INFOS else "Minari has no such dataset")
    rewards, terminations, truncations = (one_number_each(np.asarray(values[key]), key, where=where, fix=FIX) for key in FLAGS)
    if len(terminations) != steps or len(truncations) != steps:
        raise BadEpisode("terminations and truncations have other rows than rewards", where=where, fix=FIX)
    tally.assume("end-flag-before-end", int(np.logical_or(terminations, truncations)[:-1].sum()))
    terminated, truncated = (bool(steps and flags[-1]) for flags in (terminations, truncations))
    if steps and not (terminated or truncated):
        truncated = True
        tally.assume(UNFINISHED)
    ids = {key: name if isinstance(name := attributes.get(key), str) else None for key in IDS}
    return one_episode(
        ids[IDS[0]] or str(number),
        steps,
        where=where,
        tally=tally,
        obs=obs,
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        extra=tree_of_names(extra),
        infos=_rows(tree_of_names(infos)) if infos else None,
        custom_data={name: one for name, one in attributes.items() if name not in (*IDS, *STATISTICS)},
        **{f"{key}s": (ids[key],) for key in IDS[1:] if ids[key] is not None},
    )


def _tree(values: Mapping[str, Values], space: Space | None, path: str, tuple_key: str, where: str, used: set[str]) -> Tree:
    """Arrays in the structure and the shapes of the space; in that of the names, where none is known. Raises BadEpisode."""

    def part(inner: Space | None, key: str) -> Tree:
        return _tree(values, inner, f"{path}/{key}", tuple_key, where, used)

    if isinstance(space, spaces.Dict):
        return {key: part(inner, key) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(part(inner, tuple_key.format(at)) for at, inner in enumerate(space.spaces))
    below = dict.fromkeys(one[len(path) + 1 :].partition("/")[0] for one in values if one.startswith(f"{path}/"))
    if space is None and below:
        parts, keys = {key: part(None, key) for key in below}, [tuple_key.format(at) for at in range(len(below))]
        return tuple(parts[key] for key in keys) if set(keys) == set(parts) else parts
    if path not in values:
        raise BadEpisode(f"no dataset {path}, which the space has", where=where, fix=FIX)
    used.add(path)
    found = values[path]
    if isinstance(found, list):
        dotted = dotted_path(path)
        what, fix = f"{dotted} holds texts, which episodes do not hold", f"convert ... --drop {dotted}"
        raise BadEpisode(what, where=where, fix=fix)
    return _shaped(found, None if space is None else tuple(space.shape or ()))


def _shaped(values: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Rows of another shape of as many numbers; those that do not fit are found where episodes meet their space."""
    fits = shape is not None and values.ndim and math.prod(values.shape[1:]) == math.prod(shape)
    return values.reshape(len(values), *(shape or ())) if fits else values


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict a row, of columns or nested dicts of columns."""
    whole = {name: _rows(part) if isinstance(part, dict) else part for name, part in columns.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
