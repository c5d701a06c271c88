"""D4RL's HDF5 layout as a source: flat arrays of all steps, whose `terminals` and `timeouts` end episodes.

* Observations are those that were acted on; an episode's last one is in no row, unless the file has `next_observations`.
* Without `timeouts`, an episode ends at `terminals`, and where `next_observations` do not lead to the next row; where there
  are neither, time limits are not known, which is counted (`missing-timeouts`).
* Further arrays of one row a step (`infos/qpos`) are extra model outputs; `infos/action_log_probs` is `action_logp`, RLlib's
  name. What has other rows (`metadata/...`) is left out by name.

Blocks of rows are read, and cut into episodes by whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadData
from offline_cli.formats.hdf5.our_metadata import OURS, read_metadata
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Form, Hdf5File, Node
from offline_cli.formats.left_out import why_no_column
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.source import ENV_SCALE, FileSource, Fragments, Origins, SourceInfo
from offline_cli.formats.step_rows import END_FLAGS, Keys, StepRows, chained, fragments_of_rows
from offline_cli.formats.tables.ids import source_hash
from offline_cli.storage.locations import Location
from offline_cli.tally import UNFINISHED, Rejects, Tally
from offline_cli.trees import Tree, map_leaves

__all__ = ["FORMAT", "INFOS", "LOGP", "NEXT", "STEPS", "TIMEOUTS", "D4rlSource", "open_d4rl"]

FORMAT: Final = "d4rl"
STEPS: Final = ("observations", "actions", "rewards", "terminals")
TIMEOUTS: Final = "timeouts"
NEXT: Final = "next_observations"
OLD_ENDS: Final = "episode_terminals"  # of d3rlpy's first version, whose files are otherwise the same
INFOS: Final = "infos/"
LOGP: Final = {"action_log_probs": "action_logp"}
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.ITEM})
BLOCK: Final = 32 << 20  # bytes of rows that are read at a time
FIX: Final = "write the file again with as many rows in each array"


def open_d4rl(files: Sequence[Location], context: OpenContext) -> D4rlSource:
    """The files, each with a layout of its own that is looked at when it is read. Raises BadData."""
    with Hdf5File(files[0]) as file:
        layout = _Layout.of(file)
        said = read_metadata(file.top.attributes, file.url)
        unfinished = layout.ends_open()
    declared = {"format": FORMAT, "forms": layout.forms_kept, "names": layout.names, "open_end": unfinished}
    declared |= {"next": layout.has_next, "timeouts": TIMEOUTS in layout.datasets}
    known = {"action_scale": ENV_SCALE, **said}
    info = SourceInfo(format=FORMAT, location=context.location, declared=(declared,), **known)
    return D4rlSource(files, context.location, info)


@dataclass(slots=True)
class D4rlSource(FileSource):
    """Files of steps, in the order given."""

    format: ClassVar[str] = FORMAT

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: the steps of blocks of rows; an episode may go on in the next block, never in the next file."""
        self.done = 0
        prefix, numbers = source_hash(self.files), 0
        for file in self.files:
            with self.scope.part() as held:
                opened = held.enter(Hdf5File(file))
                layout = _Layout.of(opened)
                layout.count_left_out(tally)
                reading = _Reading(file.url, layout, tally, f"{prefix}-", numbers)
                for fragments in reading.fragments():
                    yield fragments
                    self.done += fragments.batch.nbytes
                numbers = reading.number
        self.done = self.size or self.done


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which arrays of a file are what."""

    node: Node  # the whole file
    rows: int
    datasets: Mapping[str, Form]  # those with a row a step
    left_out: Mapping[str, str]  # others, and why

    @classmethod
    def of(cls, file: Hdf5File) -> _Layout:
        """Raises BadData where arrays that are needed are missing, or disagree."""
        node = file.node()
        rows = next((shape[0] for name, (_, shape) in node.datasets.items() if name == "rewards" and shape), None)
        if rows is None:
            raise BadData("no rewards are in the file", where=file.url, fix=FIX)
        wrong = []
        datasets, left_out = {}, {}
        for name, (kind, shape) in node.datasets.items():
            head = name.partition("/")[0]
            if kind in (TEXT, FRAMES) or shape[:1] != (rows,):
                if head in (*STEPS, NEXT, TIMEOUTS):
                    wrong.append(f"{name} is {kind} {list(shape)}, and rewards have {rows} rows")
                left_out[name] = why_no_column(kind, shape, rows)
            elif head not in (*STEPS, NEXT, TIMEOUTS, OLD_ENDS) and _extra_name(name) in RESERVED:
                left_out[name] = "its name means something else in a dataset"
            else:
                datasets[name] = (kind, shape)
        wrong += [f"no {key} are in the file" for key in STEPS if not any(name.partition("/")[0] == key for name in datasets)]
        for key in ("rewards", "terminals", TIMEOUTS, OLD_ENDS):
            shape = datasets.get(key, ("", (rows,)))[1]
            if shape not in ((rows,), (rows, 1)):
                wrong.append(f"{key} are of shape {list(shape)}")
        if wrong:
            raise BadData(wrong[0] if len(wrong) == 1 else "; ".join(wrong), where=file.url, fix=FIX)
        return cls(node, rows, datasets, left_out)

    @property
    def has_next(self) -> bool:
        """Whether each step says what it led to."""
        return any(name.partition("/")[0] == NEXT for name in self.datasets)

    @property
    def extra(self) -> list[str]:
        """Datasets that are extra model outputs."""
        known = (*STEPS, NEXT, TIMEOUTS, OLD_ENDS)
        return [name for name in self.datasets if name.partition("/")[0] not in known]

    @property
    def names(self) -> dict[str, str]:
        """Of extra model outputs, their datasets by their names here."""
        return {_extra_name(name): name for name in self.extra}

    @property
    def forms_kept(self) -> dict[str, Any]:
        """dtypes and shapes of a row that an episode does not keep."""
        kept = ("rewards", "terminals", TIMEOUTS)
        return {name: [self.datasets[name][0], list(self.datasets[name][1][1:])] for name in kept if name in self.datasets}

    @property
    def row_bytes(self) -> int:
        """Of one step."""
        return max(1, sum(np.dtype(kind).itemsize * math.prod(shape[1:]) for kind, shape in self.datasets.values()))

    def ends_open(self) -> bool:
        """Whether the last step has no end flag."""
        if not self.rows:
            return False
        flags = [name for name in ("terminals", TIMEOUTS, OLD_ENDS) if name in self.datasets]
        return not any(bool(self.node.rows(name, self.rows - 1, self.rows).any()) for name in flags)

    def count_left_out(self, tally: Tally) -> None:
        """Name what becomes no part of an episode."""
        for name, why in self.left_out.items():
            tally.drop_column(name, why)
        for name in self.node.attributes:
            if name != OURS:
                tally.drop_column(f"@{name}", "an attribute of the file")
        if TIMEOUTS not in self.datasets and OLD_ENDS not in self.datasets and not self.has_next:
            tally.assume("missing-timeouts")


def _extra_name(name: str) -> str:
    short = name.removeprefix(INFOS)
    return LOGP.get(short, short.replace("/", "_"))


@dataclass(slots=True)
class _Reading:
    """One file, block after block."""

    url: str
    layout: _Layout
    tally: Tally
    prefix: str  # of ids, with its hyphen
    number: int  # of the episode that the next row belongs to
    t: int = 0  # of the next row in it

    def fragments(self) -> Iterator[Fragments]:
        """Whole episodes, in the order of the file; parts only of one that is larger than a block."""
        layout = self.layout
        each, first = max(1, BLOCK // layout.row_bytes), 0
        while first < layout.rows:
            stop = min(layout.rows, first + each)
            columns, flags = self._block(first, stop)
            rows = self._whole(flags[0] | flags[1]) if stop < layout.rows else stop - first
            if first + rows == layout.rows and not (flags[0][-1] or flags[1][-1]):
                flags[1][-1] = True
                self.tally.assume(UNFINISHED)
            batch, at = fragments_of_rows(self._rows(columns, flags[:, :rows], rows), self.tally)
            self.tally.rows_in += rows
            file, row = np.zeros(rows, np.int64), np.arange(first, first + rows)
            yield Fragments(batch, Origins.of_rows((self.url,), file, row, at))
            first += rows

    def _whole(self, ended: NDArray[np.bool_]) -> int:
        """Rows of a block up to its last end, or, where it continues an episode, its first: so episodes keep their order."""
        ends = np.flatnonzero(ended)
        return len(ended) if not len(ends) else int(ends[0 if self.t else -1]) + 1

    def _block(self, first: int, stop: int) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Columns of rows [first, stop), and (2, N) where they terminate and where they are truncated."""
        columns = {name: self.layout.node.rows(name, first, stop) for name in self.layout.datasets}
        terminateds = columns["terminals"].reshape(-1).astype(np.bool_)
        truncateds = np.zeros(stop - first, np.bool_)
        if TIMEOUTS in columns:
            truncateds = columns[TIMEOUTS].reshape(-1).astype(np.bool_)
        elif OLD_ENDS in columns:
            truncateds = columns[OLD_ENDS].reshape(-1).astype(np.bool_) & ~terminateds
        elif self.layout.has_next:
            obs, following = _tree(columns, "observations"), _tree(columns, NEXT)
            truncateds = ~np.append(chained(obs, following), self._leads_on(following, stop)) & ~terminateds
        return columns, np.stack([terminateds, truncateds])

    def _rows(self, columns: Mapping[str, NDArray[Any]], flags: NDArray[np.bool_], rows: int) -> StepRows:
        """The first rows of a block."""
        columns = {name: values[:rows] for name, values in columns.items()}
        ended = flags[0] | flags[1]
        codes, t = self._divided(ended)
        ids = tuple(f"{self.prefix}{self.number + code}" for code in range(int(codes[-1]) + 1))
        nobody = (None,) * len(ids)
        self.number += int(ended.sum())
        self.t = 0 if ended[-1] else int(t[-1]) + 1
        return StepRows(
            keys=Keys(codes, ids, nobody, nobody),
            obs=_tree(columns, "observations"),
            next_obs=_tree(columns, NEXT) if self.layout.has_next else None,
            actions=_tree(columns, "actions"),
            rewards=columns["rewards"].reshape(-1).astype(np.float64),
            terminateds=flags[0],
            truncateds=flags[1],
            t=t,
            extra={_extra_name(name): columns[name] for name in self.layout.extra},
            infos=None,
            reset_infos=None,
            file=np.zeros(rows, np.int64),
            follows=False,
        )

    def _divided(self, ended: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(N,) how many episodes of the block end before each row, and the timestep of each row."""
        codes = np.concatenate([[0], np.cumsum(ended[:-1])]).astype(np.int64)
        firsts = np.concatenate([[-self.t], np.flatnonzero(ended[:-1]) + 1])
        return codes, np.arange(len(ended)) - firsts[codes]

    def _leads_on(self, following: Tree, stop: int) -> bool:
        """Whether the row before `stop` leads to that row's observation; at the end of the file, where nobody knows, yes."""
        if stop >= self.layout.rows:
            return True
        names = [name for name in self.layout.datasets if name.partition("/")[0] == "observations"]
        after = _tree({name: self.layout.node.rows(name, stop, stop + 1) for name in names}, "observations")
        last = map_leaves(lambda leaf: np.concatenate([leaf[-1:], leaf[-1:]]), following)
        return bool(chained(map_leaves(lambda leaf: np.concatenate([leaf, leaf]), after), last)[0])


def _tree(columns: Mapping[str, NDArray[Any]], key: str) -> Tree:
    """The array of that name, or a dict of those below it."""
    if key in columns:
        return columns[key]
    parts = dict.fromkeys(name[len(key) + 1 :].partition("/")[0] for name in columns if name.startswith(f"{key}/"))
    return {part: _tree(columns, f"{key}/{part}") for part in parts}
