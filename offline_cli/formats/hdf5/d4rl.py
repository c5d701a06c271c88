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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.flat_steps import ACTIONS, NEXT, OBS, REWARDS, TERMINALS, TIMEOUTS, FlatSteps, blocks, narrow
from offline_cli.formats.hdf5.safe import Dataset, Hdf5File
from offline_cli.formats.hdf5.writing import OURS, Hdf5Sink, check_hdf5, read_metadata
from offline_cli.formats.leaf_names import heads, tree_of_names
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS, chained, with_finals
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["D4RL_SINK", "open_d4rl"]

FORMAT: Final = "d4rl"
OLD_ENDS: Final = "episode_terminals"  # of d3rlpy's first version, whose files are otherwise the same
NEEDED: Final = (OBS, ACTIONS, REWARDS, TERMINALS)
KNOWN: Final = (*NEEDED, NEXT, TIMEOUTS, OLD_ENDS)
LOGP: Final = {"action_log_probs": "action_logp"}  # theirs to ours
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.ITEM})
LOOKED_AT: Final = 1 << 16  # rows whose observations are compared at a time
CHUNK: Final = 1 << 20  # bytes of rows that HDF5 stores together
FIX: Final = "write the file again with as many rows in each array"


def open_d4rl(files: Sequence[Location], context: OpenContext) -> D4rlSource:
    """The files, each with arrays of its own that are looked at when it is read. Raises BadData."""
    with Hdf5File(files[0]) as file:
        _Arrays(file, context.drop)
        ours = read_metadata(file.attributes(), file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **ours})
    return D4rlSource(files, context.location, info, drop=context.drop)


@dataclass(slots=True)
class D4rlSource(FileSource):
    """Files of steps, in the order given."""

    format: ClassVar[str] = FORMAT
    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: whole episodes, many at a time; none goes on in the next file."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            with self.scope.part() as held:
                opened = held.enter(Hdf5File(file, self.read_options.memory_limit))
                arrays = _Arrays(opened, self.drop)
                attributes = {f"@{name}": "an attribute of the file" for name in opened.attributes("", tally) if name != OURS}
                for name, why in {**arrays.left_out, **attributes}.items():
                    tally.drop_column(name, why)
                ends = arrays.ends(tally)
                starts = np.concatenate([[0], np.flatnonzero(ends[0] | ends[1]) + 1])
                for begin, stop in blocks(starts, arrays.row_bytes):
                    names = tuple(f"{prefix}-{number + at}" for at in range(begin, stop))
                    batch = arrays.episodes(starts[begin : stop + 1], names, ends, tally)
                    if self.info.action_space is None:
                        batch = replace(batch, actions=choices(batch.actions))
                    tally.rows_in += batch.num_steps
                    whole = np.ones(len(names), np.bool_)
                    yield Fragments(batch, Origins((file.url,), np.zeros(len(names), np.int64), starts[begin:stop], whole))
                    self.done += batch.nbytes
                number += len(starts) - 1
        self.done = self.size or self.done


class _Arrays:
    """The datasets of a file with a row a step, and why others are left out."""

    def __init__(self, file: Hdf5File, drop: frozenset[str]) -> None:
        """Raises BadData where arrays that are needed are missing, or disagree. `drop`: see `OpenContext`."""
        found, self.left_out, wrong = file.datasets(), dict[str, str](), list[str]()
        self.where, self.datasets = file.url, dict[str, Dataset]()
        self.rows = found[REWARDS].shape[0] if REWARDS in found and found[REWARDS].shape else -1
        for name, one in found.items():
            path, is_known = _dotted(name), name.partition("/")[0] in KNOWN
            if path in drop:
                self.left_out[path] = LEFT_OUT
            elif one.has_rows(self.rows) and (is_known or _extra_name(name) not in RESERVED):
                self.datasets[name] = one
            elif one.has_rows(self.rows):
                self.left_out[name] = "its name means something else in a dataset"
            elif is_known and one.said == "text" and one.shape[:1] == (self.rows,) and "." in path:
                fix = f"leave it out: convert ... --drop {path}"
                raise BadData(f"{name} holds texts, which episodes do not hold", where=file.url, fix=fix)
            else:
                self.left_out[name] = one.why_no_column(self.rows)
                wrong += [f"{name} is {one.said} {list(one.shape)}, and rewards have {self.rows} rows"] * is_known
        self.keys = heads(self.datasets)
        wrong = wrong or [f"no {key} are in the file" for key in NEEDED if key not in self.keys]
        obs, following = (
            {name.removeprefix(key): one.shape for name, one in self.datasets.items() if name.partition("/")[0] == key}
            for key in (OBS, NEXT)
        )
        if following and obs != following:
            wrong.append(f"{NEXT} are of another form than {OBS}")
        if wrong:
            raise BadData("; ".join(wrong), where=file.url, fix=FIX)

    @property
    def row_bytes(self) -> int:
        """Of one row of all arrays."""
        return sum(one.row_bytes for one in self.datasets.values())

    def ends(self, tally: Tally) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) which steps terminate, and which are truncated: the last one in any case."""
        terminateds = self._numbers(TERMINALS) != 0
        if TIMEOUTS in self.keys:
            truncateds = self._numbers(TIMEOUTS) != 0
        elif OLD_ENDS in self.keys:
            truncateds = (self._numbers(OLD_ENDS) != 0) & ~terminateds
        elif NEXT in self.keys:
            edges = [*range(0, self.rows, LOOKED_AT), self.rows]  # each part with one row more, to which its last one may lead
            parts = ((first, min(stop + 1, self.rows)) for first, stop in pairwise(edges))
            leads_on = [chained(self.tree(OBS, *part), self.tree(NEXT, *part)) for part in parts]
            truncateds = ~np.concatenate([*leads_on, [True]])[: self.rows] & ~terminateds
        else:
            truncateds = np.zeros_like(terminateds)
            tally.assume("missing-timeouts")
        if self.rows and not (terminateds[-1] or truncateds[-1]):
            truncateds[-1] = True
            tally.assume(UNFINISHED)
        return terminateds, truncateds

    def _numbers(self, name: str, first: int = 0, stop: int | None = None) -> NDArray[Any]:
        if name not in self.datasets:
            raise BadData(f"{name} is no array of the file", where=self.where, fix=FIX)
        return one_number_each(self.datasets[name].rows(first, stop), name, where=self.where, fix=FIX)

    def tree(self, key: str, first: int, stop: int) -> Tree:
        """Rows of the array of that name, or a Dict of those below it."""
        if key in self.datasets:
            return self.datasets[key].rows(first, stop)
        below = {name[len(key) + 1 :]: one for name, one in self.datasets.items() if name.startswith(f"{key}/")}
        return tree_of_names({name: one.rows(first, stop) for name, one in below.items()})

    def episodes(
        self, starts: NDArray[np.int64], names: tuple[str, ...], ends: tuple[NDArray[np.bool_], NDArray[np.bool_]], tally: Tally
    ) -> EpisodeBatch:
        """The episodes of these names, which begin at `starts` (E+1,) in the file; `ends` (N,) are of all rows."""
        first, stop, last = int(starts[0]), int(starts[-1]), starts[1:] - 1
        obs = self.tree(OBS, first, stop)
        following = self.tree(NEXT, first, stop) if NEXT in self.keys else obs
        whole = map_leaves(lambda acted, after: with_finals(acted, after, starts - first), obs, following)
        if following is not obs:
            broken = ~chained(obs, following)
            broken[last[:-1] - first] = False  # where the next episode begins
            rows = np.flatnonzero(broken) + first + 1
            tally.assume("broken-chain", len(rows), places=lambda: (f"{self.where} row {row}" for row in rows.tolist()))
        extra = {name: one for name, one in self.datasets.items() if name.partition("/")[0] not in KNOWN}
        return EpisodeBatch(
            ids=names,
            starts=starts - first,
            obs=whole,
            actions=self.tree(ACTIONS, first, stop),
            rewards=self._numbers(REWARDS, first, stop).astype(np.float64),
            terminated=ends[0][last],
            truncated=ends[1][last],
            extra={_extra_name(name): one.rows(first, stop) for name, one in extra.items()},
            final_missing=None if following is not obs else np.ones(len(names), np.bool_),
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
