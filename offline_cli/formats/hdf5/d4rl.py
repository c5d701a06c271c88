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
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.action_shapes import choices, one_number_each
from offline_cli.formats.dropped_leaves import LEFT_OUT
from offline_cli.formats.hdf5.our_metadata import OURS, metadata_text, read_metadata
from offline_cli.formats.hdf5.safe import FRAMES, TEXT, Form, Hdf5File, Node
from offline_cli.formats.hdf5.writing import Hdf5Sink, check_hdf5, checked_key
from offline_cli.formats.left_out import count_finals, count_left_out, why_no_column
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
OBS, ACTIONS, REWARDS, TERMINALS = "observations", "actions", "rewards", "terminals"
NEXT, TIMEOUTS = "next_observations", "timeouts"
OLD_ENDS: Final = "episode_terminals"  # of d3rlpy's first version, whose files are otherwise the same
KNOWN: Final = (OBS, ACTIONS, REWARDS, TERMINALS, NEXT, TIMEOUTS, OLD_ENDS)
LOGP: Final = {"action_log_probs": "action_logp"}  # theirs to ours
RESERVED: Final = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS, Columns.ITEM})
BLOCK: Final = 32 << 20  # bytes of rows that are read at a time
CHUNK: Final = 1 << 20  # bytes of rows that HDF5 stores together
FIX: Final = "write the file again with as many rows in each array"


def open_d4rl(files: Sequence[Location], context: OpenContext) -> D4rlSource:
    """The files, each with arrays of its own that are looked at when it is read. Raises BadData."""
    with Hdf5File(files[0]) as file:
        _Arrays.of(file, context.drop)
        said = read_metadata(file.top.attributes, file.url)
    info = SourceInfo(format=FORMAT, location=context.location, **{"action_scale": ENV_SCALE, **said})
    return D4rlSource(files, context.location, info, drop=context.drop)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The datasets of a file with a row a step, and why others are left out."""

    node: Node
    rows: int
    forms: Mapping[str, Form]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, file: Hdf5File, drop: frozenset[str]) -> _Arrays:
        """Raises BadData where arrays that are needed are missing, or disagree. `drop`: see `OpenContext`."""
        node = file.node()
        rows = next(iter(node.datasets.get(REWARDS, ("", ()))[1]), -1)
        wrong, forms, left_out = [], dict[str, Form](), dict[str, str]()
        for name, (kind, shape) in node.datasets.items():
            is_known, path = name.partition("/")[0] in KNOWN, _dotted(name)
            if path in drop:
                left_out[path] = LEFT_OUT
            elif kind == TEXT and is_known and shape[:1] == (rows,) and "." in path:
                fix = f"leave it out: convert ... --drop {path}"
                raise BadData(f"{name} holds texts, which episodes do not hold", where=file.url, fix=fix)
            elif kind in (TEXT, FRAMES) or shape[:1] != (rows,):
                left_out[name] = why_no_column(kind, shape, rows)
                wrong += [f"{name} is {kind} {list(shape)}, and rewards have {rows} rows"] * is_known
            elif not is_known and _extra_name(name) in RESERVED:
                left_out[name] = "its name means something else in a dataset"
            else:
                forms[name] = kind, shape
        heads = {name.partition("/")[0] for name in forms}
        wrong = wrong or [f"no {key} are in the file" for key in KNOWN[:4] if key not in heads]
        if wrong:
            raise BadData("; ".join(wrong), where=file.url, fix=FIX)
        return cls(node, rows, forms, left_out)

    def count_left_out(self, tally: Tally) -> None:
        """Name what becomes no part of an episode."""
        attributes = {f"@{name}": "an attribute of the file" for name in self.node.attributes if name != OURS}
        for name, why in {**self.left_out, **attributes}.items():
            tally.drop_column(name, why)
        if not self.has(TIMEOUTS) and not self.has(OLD_ENDS) and not self.has(NEXT):
            tally.assume("missing-timeouts")

    def has(self, key: str) -> bool:
        """Whether there is an array of that name, or a group of them."""
        return any(name.partition("/")[0] == key for name in self.forms)

    def tree(self, key: str, first: int, stop: int) -> Tree:
        """Rows of the array of that name, or a dict of those below it."""
        if key in self.forms:
            return self.node.rows(key, first, stop)
        parts = dict.fromkeys(name[len(key) + 1 :].partition("/")[0] for name in self.forms if name.startswith(f"{key}/"))
        return {part: self.tree(f"{key}/{part}", first, stop) for part in parts}

    def flags(self, key: str, first: int, stop: int) -> NDArray[np.bool_]:
        """Rows of end flags; False where there are none."""
        if key not in self.forms:
            return np.zeros(stop - first, np.bool_)
        return one_number_each(self.node.rows(key, first, stop), key, where=self.node.where, fix=FIX).astype(np.bool_)


def _dotted(name: str) -> str:
    """The path of a leaf, as `--drop` takes it."""
    head, slash, rest = name.partition("/")
    ours = {OBS: Columns.OBS, NEXT: Columns.OBS}.get(head, head)
    return f"{ours}{slash}{rest}".replace("/", ".")


def _extra_name(name: str) -> str:
    short = name.removeprefix("infos/")
    return LOGP.get(short, short.replace("/", "_"))


@dataclass(slots=True)
class D4rlSource(FileSource):
    """Files of steps, in the order given."""

    format: ClassVar[str] = FORMAT
    drop: frozenset[str] = field(default=frozenset(), kw_only=True)  # see `OpenContext`

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: the steps of blocks of rows; an episode may go on in the next block, never in the next file."""
        self.done, number, prefix = 0, 0, source_hash(self.files)
        for file in self.files:
            with self.scope.part() as held:
                arrays = _Arrays.of(held.enter(Hdf5File(file)), self.drop)
                arrays.count_left_out(tally)
                for rows, ended, first in self._blocks(arrays, f"{prefix}-", number, tally):
                    batch, at = fragments_of_rows(rows, tally)
                    tally.rows_in += len(ended)
                    zeros, numbers = np.zeros(len(ended), np.int64), np.arange(first, first + len(ended))
                    yield Fragments(batch, Origins.of_rows((file.url,), zeros, numbers, at))
                    self.done, number = self.done + batch.nbytes, number + int(ended.sum())
        self.done = self.size or self.done

    def _blocks(
        self, arrays: _Arrays, prefix: str, number: int, tally: Tally
    ) -> Iterator[tuple[StepRows, NDArray[np.bool_], int]]:
        """Rows, which of them end an episode, and the first one's place: whole episodes, but of one larger than a block."""
        row = sum(np.dtype(kind).itemsize * math.prod(shape[1:]) for kind, shape in arrays.forms.values())
        each, first, t = max(1, BLOCK // max(1, row)), 0, 0
        while first < arrays.rows:
            stop = min(arrays.rows, first + each)
            terminateds, truncateds = self._ends(arrays, first, stop)
            ended = terminateds | truncateds
            if stop == arrays.rows and not ended[-1]:
                truncateds[-1] = ended[-1] = True
                tally.assume(UNFINISHED)
            elif stop < arrays.rows and ended.any():  # up to the last end, or of a begun episode the first: so they keep order
                stop = first + int(np.flatnonzero(ended)[0 if t else -1]) + 1
                terminateds, truncateds, ended = (flags[: stop - first] for flags in (terminateds, truncateds, ended))
            codes: NDArray[np.int64] = np.cumsum(ended) - ended
            begins = np.concatenate([[-t], np.flatnonzero(ended[:-1]) + 1])
            steps = np.arange(len(ended)) - begins[codes]
            ids = tuple(f"{prefix}{number + code}" for code in range(int(codes[-1]) + 1))
            actions = arrays.tree(ACTIONS, first, stop)
            rewards = one_number_each(arrays.node.rows(REWARDS, first, stop), REWARDS, where=arrays.node.where, fix=FIX)
            extra = [name for name in arrays.forms if name.partition("/")[0] not in KNOWN]
            rows = StepRows(
                keys=Keys(codes, ids, (None,) * len(ids), (None,) * len(ids)),
                obs=arrays.tree(OBS, first, stop),
                next_obs=arrays.tree(NEXT, first, stop) if arrays.has(NEXT) else None,
                actions=choices(actions) if self.info.action_space is None else actions,
                rewards=rewards.astype(np.float64),
                terminateds=terminateds,
                truncateds=truncateds,
                t=steps,
                extra={_extra_name(name): arrays.node.rows(name, first, stop) for name in extra},
                infos=None,
                reset_infos=None,
                file=np.zeros(len(ended), np.int64),
                follows=False,
            )
            yield rows, ended, first
            number, t, first = number + int(ended.sum()), 0 if ended[-1] else int(steps[-1]) + 1, stop

    @staticmethod
    def _ends(arrays: _Arrays, first: int, stop: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(N,) where rows [first, stop) terminate, and where they are truncated."""
        terminateds = arrays.flags(TERMINALS, first, stop)
        if arrays.has(TIMEOUTS):
            return terminateds, arrays.flags(TIMEOUTS, first, stop)
        if arrays.has(OLD_ENDS):
            return terminateds, arrays.flags(OLD_ENDS, first, stop) & ~terminateds
        if not arrays.has(NEXT):
            return terminateds, np.zeros_like(terminateds)
        after = min(stop + 1, arrays.rows)  # one row more, which says whether the block's last one leads to it
        obs, following = arrays.tree(OBS, first, after), arrays.tree(NEXT, first, after)
        leads_on = np.append(chained(obs, following), np.ones(stop + 1 - after, np.bool_))
        return terminateds, ~leads_on & ~terminateds


class D4rlSink(Hdf5Sink):
    """A `Sink`; see the module."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, FORMAT)
        self._finals = Tally()  # counts the final observations that are known
        self._are_known = True  # all of them

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`: rows at the end of each array."""
        count_left_out(batch, self.context.tally)
        count_finals(batch, self._finals)
        self._are_known &= not batch.final_obs_assumed.any()
        terminateds, truncateds = batch.step_flags()
        theirs = {ours: name for name, ours in LOGP.items()}
        extra = {f"infos/{theirs.get(name, name)}": tree for name, tree in batch.extra.items()}
        steps = {OBS: batch.acted_obs(view=True), ACTIONS: batch.actions, REWARDS: batch.rewards, TERMINALS: terminateds}
        for name, tree in {**steps, TIMEOUTS: truncateds, **extra}.items():
            self._append(name, tree)
        if self._are_known:
            self._append(NEXT, batch.next_obs(view=True))
        self.count(batch)

    def _append(self, name: str, tree: Tree) -> None:
        if isinstance(tree, (dict, tuple)):
            for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
                self._append(f"{name}/{checked_key(str(key), name)}", part)
            return
        if name not in self.root:
            chunk = max(1, CHUNK // max(1, tree.itemsize * math.prod(tree.shape[1:])))
            shape = (0, *tree.shape[1:])
            self.root.create_dataset(name, shape, tree.dtype, maxshape=(None, *shape[1:]), chunks=(chunk, *shape[1:]))
        dataset = self.root[name]
        first = dataset.shape[0]
        dataset.resize(first + len(tree), axis=0)
        dataset[first:] = tree

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        if not self._are_known:
            self.root.pop(NEXT, None)
            self.context.tally.add(self._finals)
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
