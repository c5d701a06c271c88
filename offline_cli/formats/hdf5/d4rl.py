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
from offline_cli.formats.flat_steps import ACTIONS, NEXT, OBS, REWARDS, TERMINALS, TIMEOUTS, FlatSteps, blocks
from offline_cli.formats.hdf5.our_metadata import OURS, dtypes_of, in_dtype, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import TEXT, Hdf5File
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5
from offline_cli.formats.leaf_names import heads, tree_of_names
from offline_cli.formats.left_out import count_left_out, why_no_column
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import SinkContext, SinkKind, Written
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS, Keys, StepRows, chained, fragments_of_rows
from offline_cli.formats.tables.episodes import source_hash
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Rejects, Tally
from offline_cli.trees import Tree

__all__ = ["D4RL_SINK", "open_d4rl"]

FORMAT: Final = "d4rl"
OLD_ENDS: Final = "episode_terminals"  # of d3rlpy's first version, whose files are otherwise the same
NEEDED: Final = (OBS, ACTIONS, REWARDS, TERMINALS)
KNOWN: Final = (*NEEDED, NEXT, TIMEOUTS, OLD_ENDS)
TYPED: Final = (REWARDS, TERMINALS, TIMEOUTS)  # whose dtypes are written back
LOGP: Final = {"action_log_probs": "action_logp"}  # theirs to ours
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.ITEM})
LOOKED_AT: Final = 1 << 16  # rows whose observations are compared at a time
CHUNK: Final = 1 << 20  # bytes of rows that HDF5 stores together
FIX: Final = "write the file again with as many rows in each array"


def open_d4rl(files: Sequence[Location], context: OpenContext) -> D4rlSource:
    """The files, each with arrays of its own that are looked at when it is read. Raises BadData."""
    with Hdf5File(files[0]) as file:
        node, ours = _Arrays(file, context.drop).node, read_metadata(file.attributes(), file.url)
    declared = ({"format": FORMAT, "dtypes": dtypes_of(node, {name: name for name in TYPED})},)
    info = SourceInfo(format=FORMAT, location=context.location, declared=declared, **{"action_scale": ENV_SCALE, **ours})
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
                arrays.count_left_out(opened, tally)
                terminateds, truncateds = arrays.ends(tally)
                starts = np.concatenate([[0], np.flatnonzero(terminateds | truncateds) + 1])
                for begin, stop in blocks(starts, arrays.row_bytes):
                    names = tuple(f"{prefix}-{number + at}" for at in range(begin, stop))
                    first, last = int(starts[begin]), int(starts[stop])
                    flags = terminateds[first:last], truncateds[first:last]
                    rows = arrays.steps(first, last, names, starts[begin : stop + 1] - first, flags)
                    if self.info.action_space is None:
                        rows = replace(rows, actions=choices(rows.actions))
                    batch, at = fragments_of_rows(rows, tally)
                    tally.rows_in += last - first
                    zeros, numbers = np.zeros(last - first, np.int64), np.arange(first, last)
                    yield Fragments(batch, Origins.of_rows((file.url,), zeros, numbers, at))
                    self.done += batch.nbytes
                number += len(starts) - 1
        self.done = self.size or self.done


class _Arrays:
    """The datasets of a file with a row a step, and why others are left out."""

    def __init__(self, file: Hdf5File, drop: frozenset[str]) -> None:
        """Raises BadData where arrays that are needed are missing, or disagree. `drop`: see `OpenContext`."""
        self.node, self.names, self.left_out = file.node(), list[str](), dict[str, str]()
        self.rows = next(iter(self.node.datasets.get(REWARDS, ("", ()))[1]), -1)
        wrong = []
        for name, (kind, shape) in self.node.datasets.items():
            is_known, path = name.partition("/")[0] in KNOWN, _dotted(name)
            if path in drop:
                self.left_out[path] = LEFT_OUT
            elif self.node.has_rows(name, self.rows) and (is_known or _extra_name(name) not in RESERVED):
                self.names.append(name)
            elif self.node.has_rows(name, self.rows):
                self.left_out[name] = "its name means something else in a dataset"
            elif is_known and kind == TEXT and shape[:1] == (self.rows,) and "." in path:
                fix = f"leave it out: convert ... --drop {path}"
                raise BadData(f"{name} holds texts, which episodes do not hold", where=file.url, fix=fix)
            else:
                self.left_out[name] = why_no_column(kind, shape, self.rows)
                wrong += [f"{name} is {kind} {list(shape)}, and rewards have {self.rows} rows"] * is_known
        self.keys = heads(self.names)
        wrong = wrong or [f"no {key} are in the file" for key in NEEDED if key not in self.keys]
        if wrong:
            raise BadData("; ".join(wrong), where=file.url, fix=FIX)

    def count_left_out(self, file: Hdf5File, tally: Tally) -> None:
        """Name what becomes no part of an episode."""
        attributes = {f"@{name}": "an attribute of the file" for name in file.attributes("", tally) if name != OURS}
        for name, why in {**self.left_out, **attributes}.items():
            tally.drop_column(name, why)

    @property
    def row_bytes(self) -> int:
        """Of one row of all arrays."""
        forms = (self.node.datasets[name] for name in self.names)
        return sum(np.dtype(kind).itemsize * math.prod(shape[1:]) for kind, shape in forms)

    def ends(self, tally: Tally) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) which steps terminate, and which are truncated: the last one in any case."""
        terminateds = self._flags(TERMINALS)
        if TIMEOUTS in self.keys:
            truncateds = self._flags(TIMEOUTS)
        elif OLD_ENDS in self.keys:
            truncateds = self._flags(OLD_ENDS) & ~terminateds
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

    def _flags(self, key: str) -> NDArray[np.bool_]:
        return one_number_each(self.node.rows(key), key, where=self.node.where, fix=FIX).astype(np.bool_)

    def tree(self, key: str, first: int, stop: int) -> Tree:
        """Rows of the array of that name, or a Dict of those below it."""
        if key in self.names:
            return self.node.rows(key, first, stop)
        below = [name for name in self.names if name.startswith(f"{key}/")]
        return tree_of_names({name[len(key) + 1 :]: self.node.rows(name, first, stop) for name in below})

    def steps(
        self,
        first: int,
        stop: int,
        names: tuple[str, ...],
        starts: NDArray[np.int64],
        flags: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    ) -> StepRows:
        """Rows [first, stop), which are whole episodes of these names; `starts`: (E+1,) of these rows."""
        rewards = one_number_each(self.node.rows(REWARDS, first, stop), REWARDS, where=self.node.where, fix=FIX)
        extra = [name for name in self.names if name.partition("/")[0] not in KNOWN]
        return StepRows(
            keys=Keys(np.repeat(np.arange(len(names)), np.diff(starts)), names, (None,) * len(names), (None,) * len(names)),
            obs=self.tree(OBS, first, stop),
            next_obs=self.tree(NEXT, first, stop) if NEXT in self.keys else None,
            actions=self.tree(ACTIONS, first, stop),
            rewards=rewards.astype(np.float64),
            terminateds=flags[0],
            truncateds=flags[1],
            t=np.arange(stop - first) - np.repeat(starts[:-1], np.diff(starts)),
            extra={_extra_name(name): self.node.rows(name, first, stop) for name in extra},
            infos=None,
            reset_infos=None,
            file=np.zeros(stop - first, np.int64),
            follows=False,
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
        rows = max(1, CHUNK // max(1, values.itemsize * math.prod(values.shape[1:])))
        shape = values.shape[1:]
        return self.root.create_dataset(name, data=values, maxshape=(None, *shape), chunks=(rows, *shape))

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        if not self._steps.are_finals_known():
            self.root.pop(NEXT, None)
        for name in set(TYPED).intersection(self.root):
            values = self.root[name][()]
            typed = in_dtype(values, self.dtypes.get(name))
            if typed.dtype != values.dtype:
                del self.root[name]
                self._dataset(name, typed)
        self.root.attrs[OURS] = metadata_text(self.context)
        return self.store()


D4RL_SINK: Final = SinkKind(
    FORMAT,
    "an HDF5 file of D4RL's layout",
    D4rlSink,
    check_hdf5,
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, infos, custom data, clocks",
)
