"""Minari's datasets as sources: episodes of T+1 observations by the spaces of `metadata.json`.

Ids are Minari's own numbers, unless the episode names another (`eps_id`, which our sink writes). Infos are kept as infos; other
attributes of an episode (`seed`, `options/...`) are its custom data, without the statistics of rewards, which follow from
them. HDF5 is read here; Arrow and Parquet in `arrow_storage.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, NoData
from offline_cli.files.locations import Location
from offline_cli.formats.hdf5.episode_groups import Recorded, batches, names_of_some, numbered, row_parts, values_of
from offline_cli.formats.hdf5.files import Hdf5File
from offline_cli.formats.hdf5.messages import FRAMES, TEXT
from offline_cli.formats.hdf5.nodes import Alike, Form, Node
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.minari.arrow_storage import IDS, STATISTICS, ArrowEpisodes, nested_rows
from offline_cli.formats.minari.metadata import FORMAT, HDF5, METADATA, Metadata, is_image
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import FileSource, Fragments, Origins, SourceInfo
from offline_cli.spaces import Space
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["MinariSource", "open_minari"]

MAIN: Final = "main_data.hdf5"
FLAGS: Final = ("rewards", "terminations", "truncations")
EXTRA: Final = "extra_model_outputs/"  # where our sink keeps these
FIX: Final = "write the episode again with Minari, or leave it out with --on-error skip"


def open_minari(files: Sequence[Location], context: OpenContext) -> MinariSource:
    """The dataset among the files. Raises BadData where there are several, or its `metadata.json` is not Minari's."""
    found = [file for file in files if file.name == METADATA and b'"data_format"' in file.start(1 << 16)[0]]
    if len(found) != 1:
        what = f"{len(found)} Minari datasets are here: {', '.join(file.url for file in found[:3])}"
        raise BadData(what, where=context.location, fix="name the folder of one, or several folders")
    metadata = Metadata.read(found[0])
    info = SourceInfo(
        format=FORMAT,
        location=context.location,
        observation_space=metadata.observation_space,
        action_space=metadata.action_space,
        action_scale="env",
        environment=metadata.environment,
        declared=(metadata.document,),
    )
    below = found[0].url.removesuffix(METADATA)
    data = [file for file in files if file.url.startswith(below) and file is not found[0]]
    return MinariSource(data, context.location, info, metadata=metadata, folder=below)


@dataclass(slots=True)
class MinariSource(FileSource):
    """The files of one dataset; `metadata` says how they are stored."""

    format: ClassVar[str] = FORMAT

    metadata: Metadata = field(kw_only=True)
    folder: str = field(kw_only=True)  # URL, with its last slash

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, large ones in parts. Raises NoData where the file of episodes is not there."""
        self.done = 0
        if self.metadata.data_format != HDF5:
            limit = self.read_options.memory_limit
            tables = ArrowEpisodes(self.folder, self.files, self.metadata, tally, self.scope, limit)
            names = tables.names()
            _check_count(len(names), self.metadata, self.info.location, rejects)
            yield from self._counted(batches(tables.episodes(names, rejects), self.folder))
            return
        main = next((file for file in self.files if file.name == MAIN), None)
        if main is None:
            raise NoData(f"{MAIN} is not beside {METADATA}", where=self.info.location, fix="name the folder that has both")
        with self.scope.part() as held:
            file = held.enter(Hdf5File(main))
            names = numbered(file.members(), "episode_")
            _check_count(len(names), self.metadata, main.url, rejects)
            reading = _Reading(file, self.metadata, self.info, tally, rejects)
            yield from self._counted(batches(reading.episodes(names), main.url))

    def _counted(self, found: Iterator[Fragments]) -> Iterator[Fragments]:
        for fragments in found:
            yield fragments
            self.done += fragments.batch.nbytes
        self.done = self.size or self.done


def _check_count(found: int, metadata: Metadata, url: str, rejects: Rejects) -> None:
    if metadata.episodes is not None and metadata.episodes != found:
        what = f"{METADATA} says {metadata.episodes} episodes, and {found} are here"
        rejects.add(BadData(what, where=url, fix="copy the dataset again, or write it again with Minari"), rows=1)
        rejects.lose_episodes(Lost.UNREADABLE, max(0, metadata.episodes - found))


@dataclass(slots=True)
class _Reading:
    file: Hdf5File
    metadata: Metadata
    info: SourceInfo
    tally: Tally
    rejects: Rejects

    def episodes(self, names: Sequence[str]) -> Iterator[Recorded | Fragments]:
        for part in self.file.alike(names, passed_over=STATISTICS):
            many = self._many(part) if isinstance(part, Alike) else None
            if many is not None:
                yield many
            else:
                yield from self._each(part.names if isinstance(part, Alike) else part)

    def _each(self, names: Sequence[str]) -> Iterator[Recorded]:
        nodes = self.file.load(names, passed_over=STATISTICS)
        for name, node in zip(names, nodes, strict=True):
            self.tally.rows_in += 1
            try:
                yield from self._parts(name, _number(name), node)
            except BadEpisode as error:
                self.rejects.add(error)
                self.rejects.lose_episodes(Lost.UNREADABLE)

    def _many(self, alike: Alike) -> Fragments | None:
        """Episodes of one form, joined at once; None where one of them is not as it should be, or has frames."""
        joined, rows, (seen, done) = alike.joined, alike.rows, self.info.spaces
        if any(len(joined.datasets.get(key, ("", ()))[1]) != 1 for key in FLAGS):
            return None
        steps = rows["rewards"]
        try:
            obs = _leaves(joined.datasets, "observations", seen, self.file.url)
            actions = _leaves(joined.datasets, "actions", done, self.file.url)
        except BadEpisode:
            return None
        extra = [path for path in rows if path.startswith(EXTRA)]
        wanted = {**dict.fromkeys((*FLAGS, *extra, *actions), steps), **dict.fromkeys(obs, steps + 1)}
        wanted |= {path: steps + 1 for path in rows if path.startswith("infos/")}
        has_frames = any(self._has_frames(space) for space in (*obs.values(), *actions.values()))
        if has_frames or any(not np.array_equal(rows[path], count) for path, count in wanted.items()):
            return None
        starts = np.concatenate([[0], np.cumsum(steps)])
        flags = [joined.values[key].astype(np.bool_) for key in FLAGS[1:]]
        ended, early = [flag[starts[1:] - 1] for flag in flags], flags[0] | flags[1]
        unfinished, early[starts[1:] - 1] = ~(ended[0] | ended[1]), False
        self.tally.rows_in += len(alike.names)
        self.tally.assume(UNFINISHED, int(unfinished.sum()))
        self.tally.assume("end-flag-before-end", int(early.sum()))
        self._tell_left_out(joined, set(wanted))
        total, own = int(starts[-1]), alike.attributes
        data = [{key: value for key, value in one.items() if key not in IDS} for one in own]
        numbers = [_number(name) for name in alike.names]
        ids = (one.get("eps_id") for one in own)
        batch = EpisodeBatch(
            ids=tuple(one if isinstance(one, str) else str(number) for one, number in zip(ids, numbers, strict=True)),
            starts=starts,
            obs=self._tree(seen, "observations", "", joined, 0, total + len(own)),
            actions=self._tree(done, "actions", "", joined, 0, total),
            rewards=joined.values["rewards"].astype(np.float64),
            terminated=ended[0],
            truncated=ended[1] | unfinished,
            extra={path.removeprefix(EXTRA): joined.values[path] for path in extra},
            infos=self._infos("", joined, total + len(own) - 1),
            agent_ids=names_of_some([one.get("agent_id") for one in own]),
            module_ids=names_of_some([one.get("module_id") for one in own]),
            custom_data=tuple(data) if any(data) else None,
        )
        return Fragments(batch, Origins((self.file.url,), np.zeros(len(own), np.int64), np.array(numbers)))

    def _parts(self, name: str, number: int, node: Node) -> Iterator[Recorded]:
        """The episode, in parts where it is large. Raises BadEpisode before the first of them."""
        where = f"{self.file.url} {name}"
        missing = [key for key in FLAGS if len(node.datasets.get(key, ("", ()))[1]) != 1]
        if missing:
            raise BadEpisode(f"no rows of {' and '.join(missing)}", where=where, fix=FIX)
        steps = node.datasets["rewards"][1][0]
        spaces_of = self.info.observation_space, self.info.action_space
        obs = _leaves(node.datasets, "observations", spaces_of[0], where)
        actions = _leaves(node.datasets, "actions", spaces_of[1], where)
        wanted = {**dict.fromkeys(FLAGS, steps), **dict.fromkeys(obs, steps + 1), **dict.fromkeys(actions, steps)}
        for path, rows in wanted.items():
            form = node.datasets[path]
            if form[0] == TEXT or not form[1] or form[1][0] != rows:
                raise BadEpisode(f"{path} is {form[0]} {list(form[1])}, and not {rows} rows of numbers", where=where, fix=FIX)
        extra = [path for path, (kind, shape) in node.datasets.items() if path.startswith(EXTRA) and shape[:1] == (steps,)]
        read = values_of(self.file, name, node)
        flags = [read(key, 0, steps).astype(np.bool_) for key in FLAGS[1:]]
        ended = [bool(flag[-1]) if steps else False for flag in flags]
        if steps and not any(ended):
            self.tally.assume(UNFINISHED)
            ended[1] = True
        early = flags[0][:-1] | flags[1][:-1]
        self.tally.assume("end-flag-before-end", int(early.sum()))
        infos = self._infos(name, node, steps)
        self._tell_left_out(node, {*wanted, *extra})
        data = {key: value for key, value in node.attributes.items() if key not in IDS}
        names_of = {key: node.attributes.get(key) for key in IDS}
        frames = {path: space.shape for leaves in (obs, actions) for path, space in leaves.items() if self._has_frames(space)}
        forms = [("|u1", (0, *frames[path])) if path in frames else node.datasets[path] for path in (*wanted, *extra)]
        for first, stop in row_parts(steps, forms):
            is_last = stop == steps
            yield Recorded(
                id=str(names_of["eps_id"]) if isinstance(names_of["eps_id"], str) else str(number),
                number=number,
                obs=self._tree(spaces_of[0], "observations", name, node, first, stop + 1),
                actions=self._tree(spaces_of[1], "actions", name, node, first, stop),
                rewards=read("rewards", first, stop).astype(np.float64),
                terminated=is_last and ended[0],
                truncated=is_last and ended[1],
                t_started=first,
                extra={path.removeprefix(EXTRA): read(path, first, stop) for path in extra},
                infos=None if infos is None else infos[first : stop + 1],
                custom_data=data or None,
                agent_id=names_of["agent_id"],
                module_id=names_of["module_id"],
            )

    def _tree(self, space: Space | None, key: str, name: str, node: Node, first: int, stop: int) -> Tree:
        """Rows of the leaves, in the structure of the space."""
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
            return {part: self._tree(inner, f"{key}/{part}", name, node, first, stop) for part, inner in parts}
        if isinstance(space, spaces.Tuple):
            numbers = enumerate(space.spaces)
            return tuple(self._tree(inner, f"{key}/_index_{i}", name, node, first, stop) for i, inner in numbers)
        if space is not None and self._has_frames(space):
            self.tally.assume("jpeg-frames", stop - first)
            return self.file.frames(f"{name}/{key}", first, stop, tuple(space.shape or ()))
        if node.datasets[key][0] == FRAMES:
            raise BadEpisode(f"{key} holds bytes of varying length", where=f"{self.file.url} {name}", fix=FIX)
        return values_of(self.file, name, node)(key, first, stop)

    def _has_frames(self, space: Space | None) -> bool:
        return self.metadata.has_jpeg and space is not None and is_image(space)

    def _infos(self, name: str, node: Node, steps: int) -> list[dict[str, Any]] | None:
        """A dict for each observation; None where no info has a value for each."""
        columns: dict[str, Any] = {}
        for path, (kind, shape) in node.datasets.items():
            if not path.startswith("infos/"):
                continue
            if shape[:1] != (steps + 1,) or kind == FRAMES:
                self.tally.drop_column(path, why_no_column(kind, shape, steps + 1))
            elif kind == TEXT:
                columns[path.removeprefix("infos/")] = self.file.texts(f"{name}/{path}")
            else:
                columns[path.removeprefix("infos/")] = list(values_of(self.file, name, node)(path, 0, steps + 1))
        return nested_rows(columns) if columns else None

    def _tell_left_out(self, node: Node, used: set[str]) -> None:
        for path in node.datasets:
            if path not in used and not path.startswith("infos/"):
                self.tally.drop_column(path, "Minari has no such dataset")
        for attribute in node.left_out:
            self.tally.drop_column(f"@{attribute}", "an attribute that is neither numbers nor text")


def _number(name: str) -> int:
    return int(name.removeprefix("episode_"))


def _leaves(datasets: Mapping[str, Form], key: str, space: Space | None, where: str) -> dict[str, Any]:
    """The spaces of its leaves, by dataset. Raises BadEpisode for a leaf without a dataset, and for one without a leaf."""
    wanted = dict(leaf_names(space, key))
    found = [path for path in datasets if path == key or path.startswith(f"{key}/")]
    if sorted(found) != sorted(wanted):
        what = f"datasets {', '.join(sorted(found)) or 'none'} where the space has {', '.join(sorted(wanted))}"
        raise BadEpisode(what, where=where, fix=FIX)
    return wanted


def leaf_names(space: Space | None, key: str) -> Iterator[tuple[str, Space | None]]:
    """The datasets of a space below `key`, and the spaces of these."""
    if isinstance(space, spaces.Dict):
        for part, inner in space.spaces.items():
            yield from leaf_names(inner, f"{key}/{part}")
    elif isinstance(space, spaces.Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaf_names(inner, f"{key}/_index_{index}")
    else:
        yield key, space
