"""d3rlpy's HDF5 layout (version 2.1) as a source: arrays of each episode by its number, `observations_0`, `actions_0`, ...

An episode has T observations: the last one, which its last action led to, is not in the file. One that did not terminate ended
by a time limit. Several observations (`observations_0_0`, `observations_0_1`) are a Tuple. Discrete actions have a second
dimension of 1 in the file, and none here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.hdf5.episode_groups import Recorded, fragments_of_files, row_parts
from offline_cli.formats.hdf5.our_metadata import read_metadata
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Form, Hdf5File, Node
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally

__all__ = ["COLUMNS", "FORMAT", "D3rlpySource", "open_d3rlpy"]

FORMAT: Final = "d3rlpy"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
VERSION: Final = "2."
MOST: Final = 10_000_000  # episodes
FIX: Final = "write the file again with d3rlpy, or leave the episode out with --on-error skip"


def open_d3rlpy(files: Sequence[Location], context: OpenContext) -> D3rlpySource:
    """The files. Raises BadData for one of another version."""
    with Hdf5File(files[0]) as file:
        said = read_metadata(file.top.attributes, file.url)
        rewards = file.top.datasets.get("rewards_0", ("", ()))
    declared = {"format": FORMAT, "rewards": rewards[0]}
    known = {"action_scale": ENV_SCALE, **said}
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **known)
    return D3rlpySource(files, context.location, info)


@dataclass(slots=True)
class D3rlpySource(FileSource):
    """Files of episodes, in the order given."""

    format: ClassVar[str] = FORMAT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes in the order of their numbers, large ones in parts."""
        return fragments_of_files(self, lambda file, prefix: _Reading(file, prefix, tally, rejects).episodes())


@dataclass(slots=True)
class _Reading:
    file: Hdf5File
    prefix: str  # of ids, with its hyphen
    tally: Tally
    rejects: Rejects

    def episodes(self) -> Iterator[Recorded]:
        names = set(self.file.members())
        columns = self._check()
        for column in columns - set(COLUMNS):
            self.tally.drop_column(column, "d3rlpy has no such column")
        total = self._total()
        parts = [[self._paths(column, episode, names) for column in COLUMNS] for episode in range(total)]
        for episode, lists in enumerate(parts):
            found = [[(path, self.file.node(path)) for path in paths] for paths in lists]
            self.tally.rows_in += 1
            try:
                yield from self._parts(episode, found)
            except BadEpisode as error:
                self.rejects.add(error)
                self.rejects.lose_episodes(Lost.UNREADABLE)

    def _check(self) -> set[str]:
        """The columns. Raises BadData for another version, or without those that are needed."""
        version = "".join(self.file.node("version").texts())
        columns = set(self.file.node("columns").texts())
        if not version.startswith(VERSION) or not columns.issuperset(COLUMNS):
            missing = f", without {', '.join(sorted(set(COLUMNS) - columns))}" if not columns.issuperset(COLUMNS) else ""
            fix = "load it with the version of d3rlpy that wrote it, and dump it with d3rlpy 2"
            raise BadData(f"a file of version {version[:20]!r}{missing}", where=self.file.url, fix=fix)
        return columns

    def _total(self) -> int:
        node = self.file.node("num_episodes")
        kind, shape = node.datasets.get("", (TEXT, ()))
        total = int(node.rows("", 0, 1)) if kind[1] in "iu" and not shape else -1
        if not 0 <= total <= MOST:
            raise BadData("num_episodes is not a number of episodes", where=self.file.url, fix=FIX)
        return total

    def _paths(self, column: str, episode: int, names: set[str]) -> list[str]:
        """Datasets of one column of an episode: one, or one for each part of a Tuple. Raises BadData without any."""
        path = f"{column}_{episode}"
        if path in names:
            return [path]
        found: list[str] = []
        while f"{path}_{len(found)}" in names:
            found.append(f"{path}_{len(found)}")
        if not found:
            raise BadData(f"{path} is not in the file, which says {self._total()} episodes", where=self.file.url, fix=FIX)
        return found

    def _parts(self, episode: int, found: list[list[tuple[str, Node]]]) -> Iterator[Recorded]:
        where = f"{self.file.url} episode {episode}"
        forms: dict[str, Form] = {}
        for path, node in (pair for column in found for pair in column):
            if "" not in node.datasets or node.datasets[""][0] in (TEXT, FRAMES):
                raise BadEpisode(f"{path} does not hold numbers", where=where, fix=FIX)
            forms[path] = node.datasets[""]
        observations, actions, rewards, ends = found
        if len(rewards) != 1 or len(ends) != 1 or len(forms[ends[0][0]][1]):
            raise BadEpisode("rewards or terminated of another form", where=where, fix=FIX)
        shape = forms[rewards[0][0]][1]
        if not shape or shape[1:] not in ((), (1,)):
            raise BadEpisode(f"rewards of shape {list(shape)}", where=where, fix=FIX)
        steps = shape[0]
        for path, _ in (*observations, *actions):
            if forms[path][1][:1] != (steps,):
                raise BadEpisode(f"{path} is of shape {list(forms[path][1])}, rewards of {steps} rows", where=where, fix=FIX)
        terminated = bool(ends[0][1].rows("", 0, 1))
        wanted = [forms[path] for path, _ in (*observations, *actions, *rewards)]
        for first, stop in row_parts(steps, wanted):
            is_last = stop == steps
            obs = [_observations(node, first, stop, steps) for _, node in observations]
            acts = [_actions(node.rows("", first, stop)) for _, node in actions]
            yield Recorded(
                id=f"{self.prefix}{episode}",
                number=episode,
                obs=obs[0] if observations[0][0] == f"observations_{episode}" else tuple(obs),
                actions=acts[0] if actions[0][0] == f"actions_{episode}" else tuple(acts),
                rewards=rewards[0][1].rows("", first, stop).reshape(-1).astype(np.float64),
                terminated=is_last and terminated,
                truncated=is_last and not terminated,
                t_started=first,
                final_missing=is_last,
            )


def _observations(node: Node, first: int, stop: int, steps: int) -> NDArray[Any]:
    """Rows [first, stop] of observations; after the last of the file, that one again."""
    rows = node.rows("", first, min(steps, stop + 1))
    return rows if stop < steps else np.concatenate([rows, rows[-1:]])


def _actions(values: NDArray[Any]) -> NDArray[Any]:
    """Discrete actions without their second dimension."""
    return values.reshape(-1) if values.dtype.kind in "iu" and values.shape[1:] == (1,) else values
