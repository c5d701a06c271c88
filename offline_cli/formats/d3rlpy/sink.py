"""Episodes as one file of d3rlpy's layout, which `ReplayBuffer.load(path, ...)` reads.

d3rlpy knows arrays and tuples of arrays, so Dict observations are refused. Not kept: last observations, ids, infos, custom
data and extra outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import UnsupportedSpace
from offline_cli.formats.d3rlpy.reader import COLUMNS, FORMAT
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text
from offline_cli.formats.hdf5.writing import EpisodeSink, check_file, count_left_out, said_by_source
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.spaces import Space
from offline_cli.storage.locations import Location
from offline_cli.trees import Tree, equal_values

__all__ = ["D3RLPY"]

VERSION: Final = "2.1"
FORMS: Final = ("<f4", "<f8")


class D3rlpySink(EpisodeSink):
    """A `Sink`; see above."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        _check(context.observation_space, "observations")
        _check(context.action_space, "actions")
        said = said_by_source(context, FORMAT)
        self._is_theirs = bool(said)
        kind = said.get("rewards")
        self._rewards = kind if kind in FORMS else "<f8"

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: some datasets for each episode."""
        tally = self.context.tally
        count_left_out(batch, tally, extra=True, finals=False)
        if not self._is_theirs:
            tally.assume("eps-id-not-kept", len(batch))
            tally.assume("final-observation-not-kept", len(batch))
        with np.errstate(over="ignore"):
            rewards = batch.rewards.astype(self._rewards)
        tally.assume("rewards-rounded", int((~equal_values(rewards.astype(np.float64), batch.rewards)).sum()))
        obs, root = batch.acted_obs(view=True), self._file.root
        for episode in range(len(batch)):
            number, rows = self.episodes + episode, slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
            _put(root, f"observations_{number}", obs, rows)
            _put(root, f"actions_{number}", _columns(batch.actions), rows)
            root[f"rewards_{number}"] = rewards[rows].reshape(-1, 1)
            root[f"terminated_{number}"] = bool(batch.terminated[episode])
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        root = self._file.root
        root["columns"] = list(COLUMNS)
        root["num_episodes"] = self.episodes
        root["version"] = VERSION
        root.attrs[OURS] = metadata_text(self.context)
        self._file.commit()
        return self.written(1, self._file.bytes)


def _check(space: Space, what: str) -> None:
    """Raise UnsupportedSpace for what is neither an array nor a tuple of arrays."""
    parts = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    if any(isinstance(part, (spaces.Dict, spaces.Tuple)) for part in parts):
        fix = "choose another --to, or record vectors"
        raise UnsupportedSpace(f"d3rlpy has no {what} in a {type(space).__name__}", where=f"--to {FORMAT}", fix=fix)


def _columns(tree: Tree) -> Tree:
    """Actions of one number as (N, 1), the form that d3rlpy has."""

    def column(leaf: NDArray[Any]) -> NDArray[Any]:
        return leaf.reshape(-1, 1) if leaf.ndim == 1 else leaf

    return tuple(map(column, tree)) if isinstance(tree, tuple) else column(tree)


def _put(root: Any, name: str, tree: Tree, rows: slice) -> None:
    if isinstance(tree, tuple):
        for index, part in enumerate(tree):
            root[f"{name}_{index}"] = part[rows]
    else:
        root[name] = tree[rows]


D3RLPY: Final = SinkKind(
    FORMAT,
    "an HDF5 file of d3rlpy 2",
    D3rlpySink,
    check_file,
    {"overwrite"},
    "steps, terminations; not last observations, ids, infos, extra outputs, custom data, clocks",
)
