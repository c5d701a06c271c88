"""D4RL's HDF5 layout: flat arrays of all steps, whose `terminals` and `timeouts` end episodes.

* Observations are those that were acted on; an episode's last one is in no row, unless the file has `next_observations`.
* Without `timeouts`, an episode ends at `terminals`, and where `next_observations` do not lead to the next row; where there
  are neither, time limits are not known, which is counted (`missing-timeouts`).
* Further arrays of one row a step (`infos/qpos`) are extra model outputs; `infos/action_log_probs` is `action_logp`, RLlib's
  name. What has other rows (`metadata/...`) is left out by name.
* Written are the arrays above. `next_observations` are left out where the final observation of an episode is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.hdf5.safe import Hdf5File, SafeDataset
from offline_cli.formats.hdf5.writing import OURS, Hdf5Sink, check_hdf5, read_metadata
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written, count_left_out, tree_of_names
from offline_cli.formats.source import ENV_SCALE, LEFT_OUT, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS, chained, one_number_each, with_finals
from offline_cli.formats.whole_episodes import (
    ACTIONS,
    NEXT,
    OBS,
    REWARDS,
    TERMINALS,
    TIMEOUTS,
    EpisodeFiles,
    FlatSteps,
    Reads,
    blocks,
    narrow,
)
from offline_cli.scopes import Scope
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Tally
from offline_cli.trees import Tree, map_leaves

FORMAT: Final = "d4rl"
OLD_ENDS: Final = "episode_terminals"  # of d3rlpy's first version, whose files are otherwise the same
NEEDED: Final = (OBS, ACTIONS, REWARDS, TERMINALS)
KNOWN: Final = (*NEEDED, NEXT, TIMEOUTS, OLD_ENDS)
LOGP: Final = {"action_log_probs": "action_logp"}  # theirs to ours
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.ITEM})
COMPARED: Final = 1 << 16  # rows whose observations are compared at a time
CHUNK: Final = 1 << 20  # bytes of rows that HDF5 stores together
FIX: Final = "write the file again with as many rows in each array"


def open_d4rl(files: Sequence[Location], context: OpenContext) -> EpisodeFiles:
    """The files, each with arrays of its own that are looked at when it is read. Raises BadData."""
    with Hdf5File(files[0]) as file:
        ours = read_metadata(file.attributes(), file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **ours})
    return D4rlSource(files, context.location, info, drop=context.drop)


@dataclass(slots=True)
class D4rlSource(EpisodeFiles):
    """Files of steps."""

    format: ClassVar = FORMAT
    rows_are_steps: ClassVar = True

    def episodes(self, file: Location, prefix: str, held: Scope, tally: Tally) -> Reads:
        """See `EpisodeFiles`."""
        opened = held.enter(Hdf5File(file, self.read_options.memory_limit))
        for name in opened.attributes("", tally):
            if name != OURS:
                tally.drop_column(f"@{name}", "an attribute of the file")
        yield from blocks(_Steps(opened.datasets(), file.url, self.drop, tally), prefix)


class _Steps:
    """The datasets of a file with a row a step: `FlatArrays`."""

    def __init__(self, found: Mapping[str, SafeDataset], where: str, drop: frozenset[str], tally: Tally) -> None:
        """Raises BadData where arrays that are needed are missing, or disagree. `drop`: see `OpenContext`."""
        self._where, self._tally, self._datasets = where, tally, dict[str, SafeDataset]()
        kept = {name.partition("/")[0] for name in found if _dotted(name) not in drop}
        missing = [key for key in NEEDED if key not in kept]
        if missing or REWARDS not in found or not found[REWARDS].shape:
            raise BadData(f"no {' and no '.join(missing or [REWARDS])} in the file", where=where, fix=FIX)
        self._rows = found[REWARDS].shape[0]
        for name, one in found.items():
            head, dotted = name.partition("/")[0], _dotted(name)
            why = LEFT_OUT if dotted in drop else "" if one.has_rows(self._rows) else one.why_no_column(self._rows)
            if head in KNOWN and why and why != LEFT_OUT:
                fix = f"leave it out: convert ... --drop {dotted}" if "." in dotted and one.dtype is None else FIX
                raise BadData(f"{name} is {why}, of rewards", where=where, fix=fix)
            if head not in KNOWN and not why and _extra_name(name) in RESERVED:
                why = "its name means something else in a dataset"
            if why:
                tally.drop_column(dotted if why == LEFT_OUT else name, why)
            else:
                self._datasets[name] = one
        self._keys = {name.partition("/")[0] for name in self._datasets}
        if NEXT in self._keys and self._forms(NEXT) != self._forms(OBS):
            raise BadData(f"{NEXT} are of another form than {OBS}", where=where, fix=FIX)
        self.row_bytes = sum(one.row_bytes for one in self._datasets.values())
        self._terminateds, self._truncateds = self._ends()
        self.starts = np.concatenate([[0], np.flatnonzero(self._terminateds | self._truncateds) + 1])

    def _forms(self, key: str) -> dict[str, tuple[int, ...]]:
        return {name[len(key) :]: one.shape for name, one in self._datasets.items() if name.partition("/")[0] == key}

    def _ends(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) which steps terminate, and which are truncated: the last one in any case."""
        terminateds = self._numbers(TERMINALS) != 0
        if TIMEOUTS in self._keys:
            truncateds = self._numbers(TIMEOUTS) != 0
        elif OLD_ENDS in self._keys:
            truncateds = (self._numbers(OLD_ENDS) != 0) & ~terminateds
        elif NEXT in self._keys:
            edges = [*range(0, self._rows, COMPARED), self._rows]  # each part with one row more, to which its last may lead
            parts = [(first, min(stop + 1, self._rows)) for first, stop in pairwise(edges)]
            leads_on = [chained(self._tree(OBS, *part), self._tree(NEXT, *part)) for part in parts]
            truncateds = ~np.concatenate([*leads_on, [True]])[: self._rows] & ~terminateds
        else:
            truncateds = np.zeros_like(terminateds)
            self._tally.assume("missing-timeouts")
        if self._rows and not (terminateds[-1] or truncateds[-1]):
            truncateds[-1] = True
            self._tally.assume(UNFINISHED)
        return terminateds, truncateds

    def _numbers(self, name: str, first: int = 0, stop: int | None = None) -> NDArray[Any]:
        if name not in self._datasets:
            raise BadData(f"{name} is no array of the file", where=self._where, fix=FIX)
        return one_number_each(self._datasets[name].rows(first, stop), name, where=self._where, fix=FIX)

    def _tree(self, key: str, first: int, stop: int) -> Tree:
        """Rows of the array of that name, or a Dict of those below it."""
        if key in self._datasets:
            return self._datasets[key].rows(first, stop)
        below = {name[len(key) + 1 :]: one for name, one in self._datasets.items() if name.startswith(f"{key}/")}
        return tree_of_names({name: one.rows(first, stop) for name, one in below.items()})

    def episodes(self, begin: int, stop: int, ids: tuple[str, ...]) -> EpisodeBatch:
        """See `FlatArrays`."""
        first, end, last = int(self.starts[begin]), int(self.starts[stop]), self.starts[begin + 1 : stop + 1] - 1
        starts = self.starts[begin : stop + 1] - first
        obs = self._tree(OBS, first, end)
        following = self._tree(NEXT, first, end) if NEXT in self._keys else obs
        whole = map_leaves(lambda acted, after: with_finals(acted, after, starts), obs, following)
        if following is not obs:
            broken = ~chained(obs, following)
            broken[last[:-1] - first] = False  # where the next episode begins
            rows = np.flatnonzero(broken) + first + 1
            self._tally.assume("broken-chain", len(rows), places=lambda: (f"{self._where} row {row}" for row in rows.tolist()))
        extra = {name: one for name, one in self._datasets.items() if name.partition("/")[0] not in KNOWN}
        return EpisodeBatch(
            ids=ids,
            starts=starts,
            obs=whole,
            actions=self._tree(ACTIONS, first, end),
            rewards=self._numbers(REWARDS, first, end).astype(np.float64),
            terminated=self._terminateds[last],
            truncated=self._truncateds[last],
            extra={_extra_name(name): one.rows(first, end) for name, one in extra.items()},
            final_missing=None if following is not obs else np.ones(len(ids), np.bool_),
        )


def _dotted(name: str) -> str:
    """The path of a leaf, as `--drop` takes it."""
    head, slash, rest = name.partition("/")
    ours = {OBS: Columns.OBS, NEXT: Columns.OBS}.get(head, head)
    return f"{ours}{slash}{rest}".replace("/", ".")


def _extra_name(name: str) -> str:
    short = name.removeprefix("infos/")
    return LOGP.get(short, short.replace("/", "_"))


class D4rlSink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._steps = FlatSteps(context.tally)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: rows at the end of each array."""
        count_left_out(batch, self.context.tally)
        theirs = {ours: name for name, ours in LOGP.items()}
        extra = {f"infos/{theirs.get(name, name)}": tree for name, tree in batch.extra.items()}
        for name, values in self._steps.arrays(batch, extra).items():
            dataset = self.root[name] if name in self.root else self._dataset(name, values[:0])
            first = dataset.shape[0]
            dataset.resize(first + len(values), axis=0)
            dataset[first:] = values
        self.count(batch)

    def _dataset(self, name: str, values: NDArray[np.generic]) -> Any:
        """A dataset of these values, to which rows can be added."""
        row = values.shape[1:]
        chunk = (max(1, CHUNK // max(1, values.itemsize * math.prod(row))), *row)
        return self.root.create_dataset(name, data=values, maxshape=(None, *row), chunks=chunk)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        if not self._steps.are_finals_known():
            self.root.pop(NEXT, None)
        if REWARDS in self.root:
            rewards = self.root.pop(REWARDS)[()]
            self._dataset(REWARDS, narrow(rewards))
        self.put_metadata(self.root)
        return self.store()


D4RL_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of D4RL's layout",
    D4rlSink,
    check_hdf5,
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, infos, custom data, clocks",
)
