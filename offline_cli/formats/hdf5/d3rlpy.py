"""d3rlpy's HDF5 layout (`ReplayBuffer.dump`, version 2.1): arrays of each episode by its number, `observations_0`, ...

* An episode has T observations: the last one, which its last action led to, is not in the file. One that did not terminate
  ended by a time limit.
* Several observations (`observations_0_0`, `observations_0_1`) are a Tuple. d3rlpy knows arrays and tuples of arrays, so Dict
  observations are refused when they are written.
* Discrete actions have a second dimension of 1 in the file, and none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.formats.hdf5.episodes import Hdf5Source, one_episode, with_final
from offline_cli.formats.hdf5.our_metadata import OURS, dtypes_of, in_dtype, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import Hdf5File
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5
from offline_cli.formats.left_out import count_finals, count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, SourceInfo
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["D3RLPY_SINK", "open_d3rlpy"]

FORMAT: Final = "d3rlpy"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
READ, WRITTEN = "2.", "2.1"  # versions
FIX: Final = "write the file again with d3rlpy, or leave the episode out with --on-error skip"


def open_d3rlpy(files: Sequence[Location], context: OpenContext) -> Hdf5Source:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        ours, dtypes = read_metadata(file.attributes(), file.url), dict[str, str]()
        if {"rewards_0", "terminated_0"} <= set(file.members()):
            for name in ("rewards", "terminated"):
                dtypes |= dtypes_of(file.node(f"{name}_0"), {name: ""})
    declared = ({"format": FORMAT, "dtypes": dtypes},)
    info = SourceInfo(format=FORMAT, location=context.location, declared=declared, **{"action_scale": ENV_SCALE, **ours})
    return Hdf5Source(files, context.location, info, layout=_Episodes)


class _Episodes:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, tally: Tally) -> None:
        self._file, self._prefix, self._tally = file, prefix, tally
        self._members = set(file.members())

    def names(self) -> range:
        """Numbers. Raises BadData for another version."""
        said, names = (np.ravel(self._file.node(name).read()).tolist() for name in ("version", "columns"))
        version, columns = "".join(map(str, said)), set(map(str, names))
        if not version.startswith(READ) or not columns.issuperset(COLUMNS):
            missing = f", without {', '.join(sorted(set(COLUMNS) - columns))}" if not columns.issuperset(COLUMNS) else ""
            fix = "load it with the version of d3rlpy that wrote it, and dump it with d3rlpy 2"
            raise BadData(f"a file of version {version[:20]!r}{missing}", where=self._file.url, fix=fix)
        for column in columns - set(COLUMNS):
            self._tally.drop_column(column, "d3rlpy has no such column")
        count = self._file.node("num_episodes").rows()
        if count.dtype.kind not in "iu" or count.ndim or not 0 <= int(count) <= len(self._members):
            raise BadData("num_episodes is not a number of episodes", where=self._file.url, fix=FIX)
        return range(int(count))

    def episode(self, number: int) -> tuple[int, EpisodeBatch]:
        """See `EpisodeLayout`."""
        where = f"{self._file.url} episode {number}"
        trees = {column: self._column(f"{column}_{number}", where) for column in COLUMNS}
        rewards, flag = trees["rewards"], trees["terminated"]
        if isinstance(rewards, tuple) or isinstance(flag, tuple) or flag.shape or not rewards.ndim:
            raise BadEpisode("rewards or terminated of another form", where=where, fix=FIX)
        terminated = bool(flag)
        return number, one_episode(
            f"{self._prefix}{number}",
            len(rewards),
            where=where,
            tally=self._tally,
            obs=with_final(trees["observations"], None, where),
            actions=trees["actions"],
            rewards=rewards,
            terminated=terminated,
            truncated=not terminated,
            final_missing=np.array([True]),
        )

    def _column(self, path: str, where: str) -> Tree:
        """A column of an episode: one dataset, or one for each part of a Tuple. Raises BadEpisode without any."""
        names = [path]
        if path not in self._members:
            names = []
            while f"{path}_{len(names)}" in self._members:
                names.append(f"{path}_{len(names)}")
        if not names:
            raise BadEpisode(f"{path} is not in the file, whose num_episodes counts it", where=where, fix=FIX)
        parts = tuple(self._file.node(name).rows() for name in names)
        return parts[0] if names == [path] else parts


class D3rlpySink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        _check(context.observation_space, "observations")
        _check(context.action_space, "actions")

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: some datasets for each episode."""
        count_left_out(batch, self.context.tally, extra=False)
        count_finals(batch, self.context.tally)
        actions = map_leaves(lambda leaf: leaf.reshape(-1, 1) if leaf.ndim == 1 else leaf, batch.actions)
        trees = {"observations": batch.acted_obs(view=True), "actions": actions}
        for at in range(len(batch)):
            number, rows = self.episodes + at, slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            for column, tree in trees.items():
                for part, leaf in enumerate(tree) if isinstance(tree, tuple) else [(None, tree)]:
                    self.root[f"{column}_{number}" if part is None else f"{column}_{number}_{part}"] = leaf[rows]
            rewards, terminated = batch.rewards[rows].reshape(-1, 1), batch.terminated[at]
            self.root[f"rewards_{number}"] = in_dtype(rewards, self.dtypes.get("rewards"))
            self.root[f"terminated_{number}"] = in_dtype(np.asarray(terminated), self.dtypes.get("terminated"))
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self.root.update({"columns": list(COLUMNS), "num_episodes": self.episodes, "version": WRITTEN})
        self.root.attrs[OURS] = metadata_text(self.context)
        return self.store()


def _check(space: Space, what: str) -> None:
    """Raise UnsupportedSpace for what is neither an array nor a tuple of arrays."""
    parts: Sequence[Any] = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    if any(isinstance(part, (spaces.Dict, spaces.Tuple)) for part in parts):
        fix = "choose another --to, or record vectors"
        raise UnsupportedSpace(f"d3rlpy has no {what} in a {type(space).__name__}", where=f"--to {FORMAT}", fix=fix)


D3RLPY_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of d3rlpy 2",
    D3rlpySink,
    check_hdf5,
    {"overwrite"},
    "steps, terminations; not last observations, ids, infos, extra outputs, custom data, clocks",
)
