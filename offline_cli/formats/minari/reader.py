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
from offline_cli.formats.hdf5.episodes import EpisodeLayout, JoinedEpisodes, StoredEpisode, episodes_of, numbered
from offline_cli.formats.hdf5.safe import Hdf5File, Values
from offline_cli.formats.leaf_names import tree_of_names
from offline_cli.formats.minari.metadata import (
    EXTRA,
    FORMAT,
    HDF5,
    IDS,
    MAIN,
    METADATA,
    Metadata,
    dotted_path,
    json_object,
    metadata_of,
)
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["MinariSource", "open_minari"]

PREFIX: Final = "episode_"
OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
REWARDS, TERMINATIONS, TRUNCATIONS = "rewards", "terminations", "truncations"
NEEDED: Final = (REWARDS, TERMINATIONS, TRUNCATIONS)
STATISTICS: Final = frozenset({"id", "total_steps", *(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))})
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


def open_minari(files: Sequence[Location], context: OpenContext) -> MinariSource:
    """The dataset among the files. Raises BadData where there are several, or its metadata are not Minari's."""
    found = [file for file in files if file.name == METADATA and b'"data_format"' in file.start(1 << 16)[0]]
    old = [] if found else [file for file in files if file.name.endswith(".hdf5")]
    if len(found or old) != 1:
        what = f"{len(found or old)} Minari datasets are here: {', '.join(file.url for file in (found or old)[:3])}"
        raise BadData(what, where=context.location, fix="name the folder of one, or several folders")
    place = (found or old)[0]
    document, folder = json_object(place) if found else _of_old_file(place), place.url.removesuffix(place.name)
    data = [file for file in files if file.url.startswith(folder) and file is not place] if found else old
    metadata = metadata_of(document, place.url, context.drop)
    info = SourceInfo(
        format=FORMAT,
        location=context.location,
        observation_space=metadata.spaces[0],
        action_space=metadata.spaces[1],
        action_scale=ENV_SCALE,
        environment=metadata.environment,
        declared=(metadata.document,),
    )
    return MinariSource(data, context.location, info, metadata=metadata, folder=folder)


def _of_old_file(file: Location) -> dict[str, Any]:
    """The metadata of a file that Minari wrote before 0.5: attributes of its root."""
    with Hdf5File(file) as opened:
        attributes = opened.attributes()
    if not {"observation_space", "total_episodes"} & attributes.keys():
        what, fix = f"this is the file of a Minari dataset, without its {METADATA}", "name the folder that has both"
        raise BadData(what, where=file.url, fix=fix)
    return {**attributes, "data_format": HDF5}


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
            layout: EpisodeLayout = _ArrowEpisodes(self.metadata, tally, self.folder, self.files, limit)
            if self.metadata.data_format == HDF5:
                main = next((file for file in self.files if file.name == MAIN or len(self.files) == 1), None)
                if main is None:
                    what, fix = f"{MAIN} is not beside {METADATA}", "name the folder that has both"
                    raise NoData(what, where=self.info.location, fix=fix)
                layout = _Hdf5Episodes(self.metadata, tally, held.enter(Hdf5File(main, limit)))
            said, found = self.metadata.episodes, len(layout.names())
            if said is not None and said != found:
                what = f"its metadata says {said} episodes, and {found} are here"
                fix = "copy the dataset again, or write it again with Minari"
                rejects.add(BadData(what, where=self.info.location, fix=fix), rows=1)
                rejects.lose_episodes(Lost.UNREADABLE, max(0, said - found))
            yield from episodes_of(self, layout, self.folder, tally, rejects)
        self.done = self.size or self.done


class _Episodes:
    """What both storages share: arrays by path (`observations/pair/_index_0`) to episodes. See `EpisodeLayout`."""

    tuple_key: ClassVar[str]  # what a part of a Tuple is called

    def __init__(self, metadata: Metadata, tally: Tally) -> None:
        self._metadata, self._tally = metadata, tally

    def batch(self, joined: JoinedEpisodes) -> EpisodeBatch:
        """See `EpisodeLayout`."""
        values, missing = joined.values, [key for key in NEEDED if key not in joined.values]
        if missing:
            raise BadEpisode(f"no rows of {' and '.join(missing)}", where=joined.where, fix=FIX)
        steps, used = joined.rows[REWARDS], {*NEEDED}
        obs, actions = (
            self._tree(joined, space, key, used)
            for key, space in zip((OBSERVATIONS, ACTIONS), self._metadata.spaces, strict=True)
        )
        joined.check_rows([path for path in used if not path.startswith(OBSERVATIONS)], steps)
        joined.check_rows([path for path in used if path.startswith(OBSERVATIONS)], steps + 1)
        infos, extra, dropped = dict[str, Any](), dict[str, Any](), dict[str, str]()
        for path in [one for one in values if one not in used]:
            head, _, rest = path.partition("/")
            if head in (OBSERVATIONS, ACTIONS):
                raise BadEpisode(f"a dataset that the space does not have: {path[:80]}", where=joined.where, fix=FIX)
            is_named = all(rest.split("/"))
            if head == INFOS and is_named and (joined.rows[path] == steps + 1).all():
                infos[rest] = values[path]
            elif head == EXTRA and is_named and joined.has_rows(path, steps):
                extra[rest] = values[path]
            else:
                dropped[path] = joined.why_left_out(path, steps + 1) if head == INFOS else "Minari has no such dataset"
        rewards, terminations, truncations = (
            one_number_each(np.asarray(values[key]), key, where=joined.where, fix=FIX) for key in NEEDED
        )
        starts, have_steps = joined.starts(steps), steps > 0
        last, terminated, truncated = (
            starts[1:][have_steps] - 1,
            np.zeros(len(joined), np.bool_),
            np.zeros(len(joined), np.bool_),
        )
        terminated[have_steps], truncated[have_steps] = terminations[last], truncations[last]
        ended, unfinished = np.logical_or(terminations, truncations), have_steps & ~terminated & ~truncated
        attributes = [dict(one.attributes) for one in joined.episodes]
        ids = [[said if isinstance(said := one.pop(key, None), str) else None for key in IDS] for one in attributes]
        names, agents, modules = zip(*ids, strict=True)
        made = EpisodeBatch(
            ids=tuple(name or str(one.number) for name, one in zip(names, joined.episodes, strict=True)),
            starts=starts,
            obs=obs,
            actions=actions,
            rewards=rewards.astype(np.float64),
            terminated=terminated,
            truncated=truncated | unfinished,
            extra=tree_of_names(extra),
            infos=_rows(tree_of_names(infos)) if infos else None,
            custom_data=tuple(attributes) if any(attributes) else None,
            agent_ids=agents if any(agents) else None,
            module_ids=modules if any(modules) else None,
        )
        self._tally.assume("end-flag-before-end", int(ended.sum() - ended[last].sum()))
        self._tally.assume(UNFINISHED, int(unfinished.sum()))
        for path, why in dropped.items():
            self._tally.drop_column(path, why)
        return made

    def _tree(self, joined: JoinedEpisodes, space: Space | None, path: str, used: set[str]) -> Tree:
        """Arrays in the structure and the shapes of the space; in that of the names, where none is known. Raises BadEpisode."""
        if isinstance(space, spaces.Dict):
            return {key: self._tree(joined, inner, f"{path}/{key}", used) for key, inner in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            keys = [f"{path}/{self.tuple_key.format(at)}" for at in range(len(space.spaces))]
            return tuple(self._tree(joined, inner, key, used) for key, inner in zip(keys, space.spaces, strict=True))
        below = dict.fromkeys(one[len(path) + 1 :].partition("/")[0] for one in joined.values if one.startswith(f"{path}/"))
        if space is None and below:
            keys = [self.tuple_key.format(at) for at in range(len(below))]
            parts = {key: self._tree(joined, None, f"{path}/{key}", used) for key in below}
            return tuple(parts[key] for key in keys) if set(keys) == set(parts) else parts
        if path not in joined.values:
            raise BadEpisode(f"no dataset {path}, which the space has", where=joined.where, fix=FIX)
        used.add(path)
        found = joined.values[path]
        if isinstance(found, list):
            dotted = dotted_path(path)
            what, fix = f"{dotted} holds texts, which episodes do not hold", f"convert ... --drop {dotted}"
            raise BadEpisode(what, where=joined.where, fix=fix)
        return found if space is None else _shaped(found, tuple(space.shape or ()))


class _Hdf5Episodes(_Episodes):
    tuple_key = "_index_{}"

    def __init__(self, metadata: Metadata, tally: Tally, file: Hdf5File) -> None:
        super().__init__(metadata, tally)
        self._file = file

    def names(self) -> list[str]:
        """See `EpisodeLayout`."""
        return numbered(self._file.members(), PREFIX)

    def stored(self, name: str) -> StoredEpisode:
        """See `EpisodeLayout`."""
        values: dict[str, Values] = {}
        for path, dataset in self._file.datasets(name).items():
            if not self._metadata.drops(path):
                found = dataset.read()
                values[path] = found if dataset.shape or isinstance(found, list) else np.atleast_1d(found)
                self._tally.assume("jpeg-frames", len(found) if dataset.is_frames else 0)
        attributes = self._file.attributes(name, self._tally, without=STATISTICS)
        return StoredEpisode(int(name.removeprefix(PREFIX)), f"{self._file.url} {name}", values, attributes)


class _ArrowEpisodes(_Episodes):
    """A folder for each episode below `folder`, a URL with its last slash."""

    tuple_key = "{}"

    def __init__(self, metadata: Metadata, tally: Tally, folder: str, files: Sequence[Location], limit: int) -> None:
        super().__init__(metadata, tally)
        self._limit = limit
        self._files: dict[str, list[Location]] = {}
        for file in files:
            self._files.setdefault(file.url.removeprefix(folder).partition("/")[0], []).append(file)

    def names(self) -> list[str]:
        """See `EpisodeLayout`."""
        return numbered(self._files, "")

    def stored(self, name: str) -> StoredEpisode:
        """See `EpisodeLayout`. Raises MemoryLimitExceeded."""
        files = self._files[name]
        attributes = next((json_object(file) for file in files if file.name == METADATA), {})
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
        kept = {key: value for key, value in attributes.items() if key not in STATISTICS}
        return StoredEpisode(int(name), where, values, kept)

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
            sides = (field_.metadata or {}).get(b"shape", b"").decode("ascii", "replace").split(",")
            shape = tuple(int(side) for side in sides if side.isdigit())
            yield path, _shaped(values, shape) if shape else values


def _shaped(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Rows of another shape of as many numbers; those that do not fit are found where episodes meet their space."""
    fits = math.prod(values.shape[1:]) == math.prod(shape)
    return values.reshape(len(values), *shape) if fits else values


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict a row, of columns or nested dicts of columns."""
    whole = {name: _rows(part) if isinstance(part, dict) else part for name, part in columns.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
