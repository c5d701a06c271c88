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

from offline_cli.errors import BadData, BadEpisode, NoData
from offline_cli.formats.hdf5.episode_groups import Recorded, batches, numbered, row_parts
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Form, Hdf5File, Node
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.minari.arrow_storage import IDS, STATISTICS, ArrowEpisodes, nested_rows
from offline_cli.formats.minari.metadata import FORMAT, HDF5, METADATA, Metadata, is_image
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import FileSource, Fragments, SourceInfo
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Lost, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["MinariSource", "open_minari"]

MAIN: Final = "main_data.hdf5"
PREFIX: Final = "episode_"
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
            names = numbered(file.members(), PREFIX)
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

    def episodes(self, names: Sequence[str]) -> Iterator[Recorded]:
        for name in names:
            self.tally.rows_in += 1
            try:
                yield from self._parts(int(name.removeprefix(PREFIX)), self.file.node(name, passed_over=STATISTICS))
            except BadEpisode as error:
                self.rejects.add(error)
                self.rejects.lose_episodes(Lost.UNREADABLE)

    def _parts(self, number: int, node: Node) -> Iterator[Recorded]:
        """The episode, in parts where it is large. Raises BadEpisode before the first of them."""
        missing = [key for key in FLAGS if len(node.datasets.get(key, ("", ()))[1]) != 1]
        if missing:
            raise BadEpisode(f"no rows of {' and '.join(missing)}", where=node.where, fix=FIX)
        steps = node.datasets["rewards"][1][0]
        spaces_of = self.info.observation_space, self.info.action_space
        obs = _leaves(node.datasets, "observations", spaces_of[0], node.where)
        actions = _leaves(node.datasets, "actions", spaces_of[1], node.where)
        wanted = {**dict.fromkeys(FLAGS, steps), **dict.fromkeys(obs, steps + 1), **dict.fromkeys(actions, steps)}
        for path, rows in wanted.items():
            form = node.datasets[path]
            if form[0] == TEXT or not form[1] or form[1][0] != rows:
                raise BadEpisode(
                    f"{path} is {form[0]} {list(form[1])}, and not {rows} rows of numbers", where=node.where, fix=FIX
                )
        extra = [path for path, (kind, shape) in node.datasets.items() if path.startswith(EXTRA) and shape[:1] == (steps,)]
        flags = [node.rows(key, 0, steps).astype(np.bool_) for key in FLAGS[1:]]
        ended = [bool(flag[-1]) if steps else False for flag in flags]
        if steps and not any(ended):
            self.tally.assume(UNFINISHED)
            ended[1] = True
        early = flags[0][:-1] | flags[1][:-1]
        self.tally.assume("end-flag-before-end", int(early.sum()))
        infos = self._infos(node, steps)
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
                obs=self._tree(spaces_of[0], "observations", node, first, stop + 1),
                actions=self._tree(spaces_of[1], "actions", node, first, stop),
                rewards=node.rows("rewards", first, stop).astype(np.float64),
                terminated=is_last and ended[0],
                truncated=is_last and ended[1],
                t_started=first,
                extra={path.removeprefix(EXTRA): node.rows(path, first, stop) for path in extra},
                infos=None if infos is None else infos[first : stop + 1],
                custom_data=data or None,
                agent_id=names_of["agent_id"],
                module_id=names_of["module_id"],
            )

    def _tree(self, space: Space | None, key: str, node: Node, first: int, stop: int) -> Tree:
        """Rows of the leaves, in the structure of the space."""
        if isinstance(space, spaces.Dict):
            parts = space.spaces.items()
            return {part: self._tree(inner, f"{key}/{part}", node, first, stop) for part, inner in parts}
        if isinstance(space, spaces.Tuple):
            numbers = enumerate(space.spaces)
            return tuple(self._tree(inner, f"{key}/_index_{i}", node, first, stop) for i, inner in numbers)
        if space is not None and self._has_frames(space):
            self.tally.assume("jpeg-frames", stop - first)
            return node.frames(key, first, stop, tuple(space.shape or ()))
        if node.datasets[key][0] == FRAMES:
            raise BadEpisode(f"{key} holds bytes of varying length", where=node.where, fix=FIX)
        return node.rows(key, first, stop)

    def _has_frames(self, space: Space | None) -> bool:
        return self.metadata.has_jpeg and space is not None and is_image(space)

    def _infos(self, node: Node, steps: int) -> list[dict[str, Any]] | None:
        """A dict for each observation; None where no info has a value for each."""
        columns: dict[str, Any] = {}
        for path, (kind, shape) in node.datasets.items():
            if not path.startswith("infos/"):
                continue
            if shape[:1] != (steps + 1,) or kind == FRAMES:
                self.tally.drop_column(path, why_no_column(kind, shape, steps + 1))
            elif kind == TEXT:
                columns[path.removeprefix("infos/")] = node.texts(path)
            else:
                columns[path.removeprefix("infos/")] = list(node.rows(path, 0, steps + 1))
        return nested_rows(columns) if columns else None

    def _tell_left_out(self, node: Node, used: set[str]) -> None:
        for path in node.datasets:
            if path not in used and not path.startswith("infos/"):
                self.tally.drop_column(path, "Minari has no such dataset")
        for attribute in node.left_out:
            self.tally.drop_column(f"@{attribute}", "an attribute that is neither numbers nor text")


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
