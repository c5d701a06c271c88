"""Flat arrays of a row a step: a source of files that hold several episodes each, and episodes as such arrays for writing.

D4RL has them in HDF5, OGBench and others in NumPy archives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.action_shapes import choices
from offline_cli.formats.leaf_names import named_leaves
from offline_cli.formats.left_out import count_finals
from offline_cli.formats.source import FileSource, Fragments, Origins
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree

OBS, ACTIONS, REWARDS, TERMINALS = "observations", "actions", "rewards", "terminals"
NEXT, TIMEOUTS = "next_observations", "timeouts"
BLOCK: Final = 32 << 20  # bytes of rows that are read at a time


class FlatArrays(Protocol):
    """The arrays of one open file."""

    starts: NDArray[np.int64]  # (E+1,) the rows of episode e are starts[e]:starts[e+1]
    row_bytes: int  # of one row of all arrays

    def episodes(self, begin: int, stop: int, ids: tuple[str, ...]) -> EpisodeBatch:
        """Episodes [begin, stop), by these ids; they are asked for one block after the other. Raises BadData."""


@dataclass(slots=True)
class FlatFiles(FileSource):
    """Files in the order given; no episode goes on in the next one. A format derives its source from it."""

    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def opened(self, file: Location, held: Scope, tally: Tally) -> FlatArrays:
        """A file; `held` owns it. Raises BadData."""
        raise NotImplementedError

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, as many at a time as fit into `BLOCK`, or a single one."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            try:
                with self.scope.part() as held:
                    flat = self.opened(file, held, tally)
                    starts, rows, begin = flat.starts, max(1, BLOCK // max(1, flat.row_bytes)), 0
                    while begin < len(starts) - 1:
                        stop = max(begin + 1, int(np.searchsorted(starts, starts[begin] + rows, side="right")) - 1)
                        batch = flat.episodes(begin, stop, tuple(f"{prefix}-{number + at}" for at in range(begin, stop)))
                        if self.info.action_space is None:
                            batch = replace(batch, actions=choices(batch.actions))
                        tally.rows_in += int(starts[stop] - starts[begin])
                        whole = np.ones(len(batch), np.bool_)
                        yield Fragments(batch, Origins((file.url,), np.zeros(len(batch), np.int64), starts[begin:stop], whole))
                        begin = stop
                    number += len(starts) - 1
            except BadData as error:
                rejects.add(error)
                rejects.lose_episodes(Lost.UNREADABLE)
            self.done += file.size()


# ---- writing ----


def narrow(rewards: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
    """As float32, as other programs write them, where that changes none."""
    with np.errstate(over="ignore"):
        cast = rewards.astype(np.float32)
    return cast if np.array_equal(cast.astype(np.float64), rewards, equal_nan=True) else rewards


class FlatSteps:
    """Steps of batches as arrays by name. `next_observations` keep the final observation of each episode: they are for files
    in which each of these was recorded.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally, self._finals = tally, Tally()  # the second counts the final observations that are known
        self._are_known = True  # all of them

    def arrays(self, batch: EpisodeBatch, extra: Mapping[str, Tree]) -> dict[str, NDArray[Any]]:
        """Those of a batch; an extra output whose name is taken is left out."""
        count_finals(batch, self._finals)
        self._are_known &= not batch.final_obs_assumed.any()
        terminateds, truncateds = batch.step_flags()
        further = {path: leaf for name, tree in extra.items() for path, leaf in named_leaves(name, tree).items()}
        return {
            **further,
            **named_leaves(OBS, batch.acted_obs(view=True)),
            **named_leaves(ACTIONS, batch.actions),
            REWARDS: batch.rewards,
            **named_leaves(NEXT, batch.next_obs(view=True)),
            TERMINALS: terminateds,
            TIMEOUTS: truncateds,
        }

    def are_finals_known(self) -> bool:
        """Whether `next_observations` are to be written; to be asked once, at the end: it counts what is not kept."""
        if not self._are_known:
            self._tally.add(self._finals)
        return self._are_known
