"""d3rlpy's HDF5 layout (`ReplayBuffer.dump`, version 2.1): arrays of each episode by its number, `observations_0`, ...

* An episode has T observations: the last one, which its last action led to, is not in the file. One that did not terminate
  ended by a time limit.
* Several observations (`observations_0_0`, `observations_0_1`) are a Tuple. d3rlpy knows arrays and tuples of arrays, so Dict
  observations are refused when they are written.
* Discrete actions have a second dimension of 1 in the file, and none here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gymnasium import spaces

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode, UnsupportedSpace
from offline_cli.formats.hdf5.episodes import Column, EpisodeDatasets, fragments_of_files
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import TEXT, Hdf5File
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5
from offline_cli.formats.left_out import count_finals, count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, SourceInfo
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["D3RLPY_SINK", "open_d3rlpy"]

FORMAT: Final = "d3rlpy"
COLUMNS: Final = ("observations", "actions", "rewards", "terminated")
READ, WRITTEN = "2.", "2.1"  # versions
MOST: Final = 10_000_000  # episodes
FIX: Final = "write the file again with d3rlpy, or leave the episode out with --on-error skip"


def open_d3rlpy(files: Sequence[Location], context: OpenContext) -> D3rlpySource:
    """The files. Raises BadData for one of another version."""
    with Hdf5File(files[0]) as file:
        said = read_metadata(file.top.attributes, file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **said})
    return D3rlpySource(files, context.location, info)


@dataclass(slots=True)
class D3rlpySource(FileSource):
    """Files of episodes, in the order given."""

    format: ClassVar[str] = FORMAT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes in the order of their numbers, large ones in parts."""
        return fragments_of_files(self, lambda file, prefix: _Episodes(file, prefix, tally), tally, rejects)


class _Episodes:
    """An `EpisodeLayout`."""

    def __init__(self, file: Hdf5File, prefix: str, tally: Tally) -> None:
        self._file, self._prefix, self._tally = file, prefix, tally
        self._members = set(file.members())

    def names(self) -> range:
        """Numbers. Raises BadData for another version, and where an episode is not there."""
        version = "".join(self._file.node("version").texts())
        columns = set(self._file.node("columns").texts())
        if not version.startswith(READ) or not columns.issuperset(COLUMNS):
            missing = f", without {', '.join(sorted(set(COLUMNS) - columns))}" if not columns.issuperset(COLUMNS) else ""
            fix = "load it with the version of d3rlpy that wrote it, and dump it with d3rlpy 2"
            raise BadData(f"a file of version {version[:20]!r}{missing}", where=self._file.url, fix=fix)
        for column in columns - set(COLUMNS):
            self._tally.drop_column(column, "d3rlpy has no such column")
        node = self._file.node("num_episodes")
        kind, shape = node.datasets.get("", (TEXT, ()))
        total = int(node.rows("", 0, 1)) if kind[1] in "iu" and not shape else -1
        if not 0 <= total <= MOST:
            raise BadData("num_episodes is not a number of episodes", where=self._file.url, fix=FIX)
        for number in range(total):
            for column in COLUMNS:
                self._paths(column, number)
        return range(total)

    def _paths(self, column: str, number: int) -> list[str]:
        """Datasets of one column of an episode: one, or one for each part of a Tuple. Raises BadData without any."""
        path = f"{column}_{number}"
        if path in self._members:
            return [path]
        found: list[str] = []
        while f"{path}_{len(found)}" in self._members:
            found.append(f"{path}_{len(found)}")
        if not found:
            raise BadData(f"{path} is not in the file, whose num_episodes says that it is", where=self._file.url, fix=FIX)
        return found

    def episode(self, number: int) -> EpisodeDatasets:
        where = f"{self._file.url} episode {number}"
        trees: dict[str, Tree] = {}
        for column in COLUMNS:
            paths = self._paths(column, number)
            found = tuple(Column(self._file.node(path)) for path in paths)
            if any("" not in part.node.datasets for part in found):
                raise BadEpisode(f"{column} is a group, not numbers", where=where, fix=FIX)
            trees[column] = found[0] if paths == [f"{column}_{number}"] else found
        rewards, flag = trees["rewards"], trees["terminated"]
        if isinstance(rewards, tuple) or isinstance(flag, tuple) or flag.form[1] or not rewards.form[1]:
            raise BadEpisode("rewards or terminated of another form", where=where, fix=FIX)
        terminated = bool(flag.node.rows("", 0, 1))
        return EpisodeDatasets(
            id=f"{self._prefix}{number}",
            number=number,
            where=where,
            steps=rewards.form[1][0],
            obs=trees["observations"],
            actions=trees["actions"],
            rewards=rewards,
            terminated=terminated,
            truncated=not terminated,
        )


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
        obs = batch.acted_obs(view=True)
        actions = map_leaves(lambda leaf: leaf.reshape(-1, 1) if leaf.ndim == 1 else leaf, batch.actions)
        for at in range(len(batch)):
            number, rows = self.episodes + at, slice(int(batch.starts[at]), int(batch.starts[at + 1]))
            for column, tree in (("observations", obs), ("actions", actions)):
                parts = {f"_{part}": leaf for part, leaf in enumerate(tree)} if isinstance(tree, tuple) else {"": tree}
                for ending, leaf in parts.items():
                    self.root[f"{column}_{number}{ending}"] = leaf[rows]
            self.root[f"rewards_{number}"] = batch.rewards[rows].reshape(-1, 1)
            self.root[f"terminated_{number}"] = bool(batch.terminated[at])
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
