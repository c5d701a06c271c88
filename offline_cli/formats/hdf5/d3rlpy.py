"""d3rlpy's HDF5 layout (`ReplayBuffer.dump`, version 2.1): arrays of each episode by its number, `observations_0`, ...

* An episode has T observations: the last one, which its last action led to, is not in the file. One that did not terminate
  ended by a time limit.
* Several observations (`observations_0_0`, `observations_0_1`) are a Tuple. d3rlpy knows arrays and tuples of arrays, so Dict
  observations are refused when they are written.
* Discrete actions have a second dimension of 1 in the file, and none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.formats.hdf5.safe import Hdf5File, SafeDataset
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5, read_metadata
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written, count_finals, count_left_out
from offline_cli.formats.source import ENV_SCALE, SourceInfo
from offline_cli.formats.whole_episodes import EpisodeFiles, Reads, narrow, whole_episode
from offline_cli.scopes import Scope
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Tally
from offline_cli.trees import Tree, map_leaves

FORMAT: Final = "d3rlpy"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
READ, WRITTEN = "2.", "2.1"  # versions
FIX: Final = "write the file again with d3rlpy, or leave the episode out with --on-error skip"


def open_d3rlpy(files: Sequence[Location], context: OpenContext) -> EpisodeFiles:
    """The files. Raises BadData for one that is damaged."""
    with Hdf5File(files[0]) as file:
        ours = read_metadata(file.attributes(), file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **ours})
    return D3rlpySource(files, context.location, info)


@dataclass(slots=True)
class D3rlpySource(EpisodeFiles):
    """Files of a replay buffer each."""

    format: ClassVar = FORMAT

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """See `EpisodeFiles`. Raises BadData for another version."""
        found = held.enter(Hdf5File(file, self.read_options.memory_limit)).datasets()
        missing = [name for name in ("version", "columns", "num_episodes") if name not in found]
        if missing:
            raise BadData(f"no dataset {missing[0]}", where=file.url, fix=FIX)
        version, columns, count = (np.ravel(found[name].read()) for name in ("version", "columns", "num_episodes"))
        said, lacking = "".join(map(str, version)), sorted(set(COLUMNS).difference(map(str, columns)))
        if not said.startswith(READ) or lacking:
            fix = "load it with the version of d3rlpy that wrote it, and dump it with d3rlpy 2"
            what = f"a file of version {said[:20]!r}" + f", without {', '.join(lacking)}" * bool(lacking)
            raise BadData(what, where=file.url, fix=fix)
        for column in set(map(str, columns)).difference(COLUMNS):
            tally.drop_column(column, "d3rlpy has no such column")
        if count.dtype.kind not in "iu" or count.size != 1 or not 0 <= int(count[0]) <= len(found):
            raise BadData("num_episodes is not a number of episodes", where=file.url, fix=FIX)
        yield from (([number], partial(_episode, found, number, prefix, file.url)) for number in range(int(count[0])))


def _episode(found: Mapping[str, SafeDataset], number: int, prefix: str, url: str) -> EpisodeBatch:
    where = f"{url} episode {number}"
    obs, actions, rewards, terminated = (_column(found, f"{column}_{number}", where) for column in COLUMNS)
    if not isinstance(terminated, np.ndarray) or terminated.size != 1 or terminated.dtype.kind not in "biuf":
        raise BadEpisode("terminated is not one flag", where=where, fix=FIX)
    return whole_episode(
        f"{prefix}{number}",
        where,
        obs=obs,
        next_obs=obs,
        actions=actions,
        rewards=rewards,
        terminated=bool(terminated.item()),
        truncated=not terminated.item(),
    )


def _column(found: Mapping[str, SafeDataset], name: str, where: str) -> Tree:
    """One array, or one for each part of a Tuple. Raises BadEpisode."""
    if name in found:
        return found[name].read()
    parts = list[Any]()
    while f"{name}_{len(parts)}" in found:
        parts.append(found[f"{name}_{len(parts)}"].read())
    if not parts:
        raise BadEpisode(f"{name} is not in the file, whose num_episodes counts it", where=where, fix=FIX)
    return tuple(parts)


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
            self.root[f"rewards_{number}"] = narrow(batch.rewards[rows]).reshape(-1, 1)
            self.root[f"terminated_{number}"] = bool(batch.terminated[at])
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self.root.update({"columns": list(COLUMNS), "num_episodes": self.episodes, "version": WRITTEN})
        self.put_metadata(self.root)
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
