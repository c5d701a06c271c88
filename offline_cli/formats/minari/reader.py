"""Minari's datasets as sources: episodes of T+1 observations by the spaces of their metadata, in HDF5, Arrow or Parquet.

HDF5 has a group for each episode; Arrow and Parquet have a folder for each, with a table and a `metadata.json`. Their tables
have a row for each observation: of actions, rewards and flags the last row is padding. Parts of a Tuple are called `_index_0`
in HDF5 and `0` in tables.

Ids are Minari's own numbers, unless the episode names another (`eps_id`, which our sink writes). Infos are kept as infos; other
attributes of an episode (`seed`, `options/...`) are its custom data, without the statistics of rewards, which follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, NoData
from offline_cli.formats.arrow_leaves import is_text, record_batches, tree_of
from offline_cli.formats.hdf5.safe import Hdf5File, Values, numbered
from offline_cli.formats.minari.metadata import EXTRA, FORMAT, HDF5, IDS, MAIN, METADATA, Metadata, json_object, metadata_of
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import tree_of_names
from offline_cli.formats.source import ENV_SCALE, LEFT_OUT, Fragments, SourceInfo
from offline_cli.formats.step_rows import one_number_each
from offline_cli.formats.whole_episodes import EpisodeFiles, whole_episode, why_left_out
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree

OBSERVATIONS, ACTIONS, INFOS = "observations", "actions", "infos"
REWARDS, TERMINATIONS, TRUNCATIONS = "rewards", "terminations", "truncations"
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


class _Stored(NamedTuple):
    """One episode as its storage has it."""

    where: str
    values: dict[str, Values]  # by path: observations/pair/0
    attributes: dict[str, Any]


@dataclass(slots=True)
class MinariSource(EpisodeFiles):
    """The files of one dataset; `metadata` says how they are stored."""

    format: ClassVar = FORMAT
    metadata: Metadata = field(kw_only=True)
    folder: str = field(kw_only=True)  # URL, with its last slash

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes. Raises NoData where the file of episodes is not there."""
        self.done, said = 0, self.metadata.episodes
        for path in self.metadata.dropped:
            tally.drop_column(path, LEFT_OUT)
        with self.scope.part() as held:
            names, read = self._hdf5(held, tally) if self.metadata.data_format == HDF5 else self._folders()
            if said is not None and said != len(names):
                what = f"its metadata says {said} episodes, and {len(names)} are here"
                fix = "copy the dataset again, or write it again with Minari"
                rejects.add(BadData(what, where=self.info.location, fix=fix), rows=1)
                rejects.lose_episodes(Lost.UNREADABLE, max(0, said - len(names)))
            episodes = (([number], partial(self._episode, number, partial(read, name), tally)) for number, name in names)
            yield from self.joined(episodes, self.folder, tally, rejects)
        self.done = self.size or self.done

    def _hdf5(self, held: Scope, tally: Tally) -> tuple[list[tuple[int, str]], Callable[[str], _Stored]]:
        """The groups of episodes, and what reads one."""
        main = next((file for file in self.files if file.name == MAIN or len(self.files) == 1), None)
        if main is None:
            what, fix = f"{MAIN} is not beside {METADATA}", "name the folder that has both"
            raise NoData(what, where=self.info.location, fix=fix)
        opened = held.enter(Hdf5File(main, self.read_options.memory_limit))

        def read(name: str) -> _Stored:
            values = dict[str, Values]()
            for path, dataset in opened.datasets(name).items():
                values[path.replace("/_index_", "/")] = found = dataset.read()
                tally.assume("jpeg-frames", len(found) if dataset.is_frames else 0)
            return _Stored(f"{main.url} {name}", values, opened.attributes(name, tally, without=STATISTICS))

        return numbered(opened.members(), "episode_"), read

    def _folders(self) -> tuple[list[tuple[int, str]], Callable[[str], _Stored]]:
        """The folders of episodes, and what reads one."""
        folders: dict[str, list[Location]] = {}
        for file in self.files:
            folders.setdefault(file.url.removeprefix(self.folder).partition("/")[0], []).append(file)

        def read(name: str) -> _Stored:
            attributes = next((json_object(file) for file in folders[name] if file.name == METADATA), {})
            tables = sorted((file for file in folders[name] if file.name != METADATA), key=lambda file: file.url)
            where, limit = (tables or folders[name])[0].url, self.read_options.memory_limit
            with Scope() as scope:
                found = [batch for file in tables for batch in record_batches(file, scope, memory_limit=limit)]
            try:
                table = pa.Table.from_batches(found) if found else pa.table({})
            except pa.ArrowException as error:
                raise BadEpisode(f"tables of two kinds: {str(error)[:200]}", where=where, fix=FIX) from error
            kept = {key: value for key, value in attributes.items() if key not in STATISTICS}
            return _Stored(where, dict(_table_leaves(table, where)), kept)

        return numbered(folders, ""), read

    def _episode(self, number: int, read: Callable[[], _Stored], tally: Tally) -> EpisodeBatch:
        where, values, attributes = read()
        ids = [said if isinstance(said := attributes.pop(key, None), str) else None for key in IDS]
        obs, actions = (
            _tree(values, space, key, where) for key, space in zip((OBSERVATIONS, ACTIONS), self.metadata.spaces, strict=True)
        )
        rewards = values.pop(REWARDS, None)
        if not isinstance(rewards, np.ndarray):
            raise BadEpisode(f"no rows of {REWARDS}", where=where, fix=FIX)
        steps = len(rewards)
        terminations, truncations = (_flags(values, key, steps, where) for key in (TERMINATIONS, TRUNCATIONS))
        infos, extra, dropped = dict[str, Any](), dict[str, Any](), dict[str, str]()
        for path, one in values.items():
            head, _, rest = path.partition("/")
            if head == INFOS and rest and len(one) == steps + 1:
                infos[rest] = one
            elif head == EXTRA and rest and not why_left_out(one, steps):
                extra[rest] = one
            elif head == INFOS:
                dropped[path] = why_left_out(one, steps + 1)
            elif not f"{_dotted(path)}.".startswith(tuple(f"{name}." for name in self.metadata.dropped)):
                dropped[path] = "neither Minari nor the space has it"
        ended = terminations | truncations
        is_unfinished = steps > 0 and not ended[-1]
        made = whole_episode(
            ids[0] or str(number),
            where,
            obs=obs,
            actions=actions,
            rewards=rewards,
            terminated=bool(terminations[-1:].any()),
            truncated=bool(truncations[-1:].any()) or is_unfinished,
            extra=tree_of_names(extra),
            infos=_rows(tree_of_names(infos)) if infos else None,
            custom_data=(attributes,) if attributes else None,
            agent_ids=(ids[1],) if ids[1] else None,
            module_ids=(ids[2],) if ids[2] else None,
        )
        tally.assume("end-flag-before-end", int(ended[:-1].sum()))
        tally.assume(UNFINISHED, int(is_unfinished))
        for path, why in dropped.items():
            tally.drop_column(path, why)
        return made


def _table_leaves(table: pa.Table, where: str) -> Iterator[tuple[str, Values]]:
    """Values by path, without the padding of columns that have a row for each step."""
    for part in table.schema:
        if part.name != "episode_id":
            array = pa.concat_arrays(table[part.name].chunks)
            is_padded = len(array) > 0 and part.name not in (OBSERVATIONS, INFOS)
            yield from _leaves(array[: len(array) - is_padded], part, part.name, where)


def _leaves(array: pa.Array, field_: pa.Field, path: str, where: str) -> Iterator[tuple[str, Values]]:
    kind = array.type
    if pa.types.is_struct(kind):
        for at, part in enumerate(array.flatten()):
            yield from _leaves(part, kind.field(at), f"{path}/{kind.field(at).name}", where)
    elif is_text(kind) or pa.types.is_null(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        yield path, array.to_pylist()  # the bytes are JPEG frames, which are read from HDF5 alone
    else:
        values: NDArray[Any] = np.asarray(tree_of(array, field_, where=lambda row: f"{where} row {row}"))
        sides = (field_.metadata or {}).get(b"shape", b"").decode("ascii", "replace").split(",")
        shape = tuple(int(side) for side in sides if side.isdigit())
        yield path, _shaped(values, shape) if shape else values


def _tree(values: dict[str, Values], space: Space | None, path: str, where: str) -> Tree:
    """Takes the arrays of the space from `values`, in its structure and shapes; in that of the names, where none is known."""
    if isinstance(space, spaces.Dict):
        return {key: _tree(values, inner, f"{path}/{key}", where) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(values, inner, f"{path}/{at}", where) for at, inner in enumerate(space.spaces))
    if path in values:
        found = values.pop(path)
        return found if space is None or isinstance(found, list) else _shaped(found, tuple(space.shape or ()))
    keys = dict.fromkeys(one[len(path) + 1 :].partition("/")[0] for one in values if one.startswith(f"{path}/"))
    if space is not None or not keys:
        raise BadEpisode(f"no values of {path}, which each episode has", where=where, fix=FIX)
    parts = {key: _tree(values, None, f"{path}/{key}", where) for key in keys}
    numbers = [str(at) for at in range(len(parts))]
    return tuple(parts[key] for key in numbers) if set(numbers) == set(parts) else parts


def _flags(values: dict[str, Values], key: str, steps: int, where: str) -> NDArray[np.bool_]:
    """(T,) Takes them from `values`. Raises BadEpisode."""
    found = values.pop(key, None)
    if not isinstance(found, np.ndarray) or len(found) != steps:
        raise BadEpisode(f"no flag of {key} for each of {steps} rewards", where=where, fix=FIX)
    return np.asarray(one_number_each(found, key, where=where, fix=FIX) != 0)


def _dotted(path: str) -> str:
    """The path of an array as `--drop` takes it."""
    head, slash, rest = path.partition("/")
    return f"{Columns.OBS if head == OBSERVATIONS else head}{slash}{rest}".replace("/", ".")


def _shaped(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Rows of another shape of as many numbers; those that do not fit are found where episodes meet their space."""
    fits = math.prod(values.shape[1:]) == math.prod(shape)
    return values.reshape(len(values), *shape) if fits else values


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict a row, of columns or nested dicts of columns."""
    whole = {name: _rows(part) if isinstance(part, dict) else part for name, part in columns.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
