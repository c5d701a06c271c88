"""Read RLlib's old-stack recordings: files with JSON lines of SampleBatch and MultiAgentBatch.

Each line becomes rows of steps, by policy (`batch_lines`). Lines are read in blocks: dtypes are chosen per block, and lines
with the same columns and shapes share a batch. An unreadable line is rejected, and reading continues with the next.

Ids: with one policy and one agent in the source, an episode's id is its `eps_id` as text, its module the policy's name, and it
has no agent id (RLlib keys single agents by their episode). With several, each agent has a separate episode, with the id
`<eps_id>-<policy>-<agent_index>`, the agent index as agent id, and `eps_id` as the id of the multi-agent episode.

Rows of one episode and agent that are separated in a line (agents taking turns) are grouped, in order. Without `eps_id`, an
episode begins after an end flag, when the agent changes, when `t` does not continue or, without `t`, when `new_obs` is not the
next `obs`; without both, when a file begins. Such episodes are named `<8 hex digits of the first rows>-<number>`, and counted.

JSON has no float32. RLlib writes float32 values with the decimals of the equal float64, so a column becomes float32 if all its
values are exact as float32, otherwise float64. Integers are int64; small ones among floats count as floats, because 1.0 may be
written as 1. Rewards are always float64. Each column of floats is counted once, as `dtype-inferred`.

Dtypes are chosen for a block of lines, which is usually the whole source. If a later block does not fit, the column becomes
wider from there on (`dtype-widened`): nothing is rounded. Only with known spaces (`--env`) decimals take the space's dtype, as
those of tables do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.rllib.batch_lines import AGENT_INDEX, TREES, BatchReader, PolicyRows
from offline_cli.formats.rllib.json_lines import lines_of
from offline_cli.formats.source import FileSource, Fragments, Origins, ReadOptions
from offline_cli.formats.step_rows import Keys, SharedIds, SourceRows, chained, fragments_of_rows
from offline_cli.spaces import leaf_spaces
from offline_cli.tally import Lost, Rejects, Tally
from offline_cli.trees import Tree, equal_values, flatten, leaves, map_leaves, same_leaf, unflatten_like

FLOAT32: Final = np.dtype(np.float32)
TOO_LARGE: Final = "correct the value, or declare a space with a wider dtype (--env)"
SMALL: Final = np.dtype(np.int16)  # stands for plain integers that are exact as float32
Leaf = tuple[str | None, str]  # policy, dotted path


@dataclass(slots=True)
class ColumnDtypes:
    """The narrowest dtype of each leaf that represents all values so far."""

    tally: Tally
    known: Mapping[str, np.dtype[Any]] = field(default_factory=dict)  # by path: of leaves with known spaces
    _settled: dict[Leaf, np.dtype[Any]] = field(default_factory=dict)
    _plain: set[Leaf] = field(default_factory=set)  # leaves with values from plain lists
    _inferred: set[Leaf] = field(default_factory=set)  # leaves whose dtype was inferred from decimals

    def settle(self, block: Sequence[PolicyRows]) -> None:
        """Update the dtypes with the rows of a block."""
        needed: dict[Leaf, np.dtype[Any]] = {}
        for rows in block:
            for name in (*TREES, *rows.extras):
                for path, leaf in flatten(rows.columns.get(name, {}), _shared_name(name)):
                    key, is_plain = (rows.policy, path), name not in rows.typed
                    found = _narrowest(leaf) if is_plain else leaf.dtype
                    needed[key] = np.promote_types(needed.get(key, found), found)
                    if is_plain:
                        self._plain.add(key)
                        if leaf.dtype.kind == "f" and key not in self._inferred and path not in self.known:
                            self._inferred.add(key)
                            self.tally.assume("dtype-inferred")
        for key, dtype in needed.items():
            before = self._dtype_of(key, dtype)
            self._settled[key] = np.promote_types(self._settled.get(key, dtype), dtype)
            self.tally.assume("dtype-widened", int(self._dtype_of(key, dtype) != before))

    def of(self, rows: PolicyRows, parts: Sequence[PolicyRows]) -> PolicyRows:
        """Convert the columns of rows, of the lines `parts`, to the chosen dtypes. Raises BadEpisode for too large values."""
        found = dict(rows.columns)
        names = [name for name in (*TREES, *rows.extras) if name in found]
        plain = {_shared_name(name) for name in names if name not in rows.typed}  # obs and new_obs are rounded alike
        for name in names:
            keys = [((rows.policy, path), leaf) for path, leaf in flatten(found[name], _shared_name(name))]
            cast = [leaf.astype(self._dtype_of(key, leaf.dtype), copy=False) for key, leaf in keys]
            if _shared_name(name) in plain:
                of_own = [path for path, _ in flatten(found[name], name)]
                cast = [
                    self._rounded(leaf, self.known.get(path, leaf.dtype), own, parts)
                    for ((_, path), _), own, leaf in zip(keys, of_own, cast, strict=True)
                ]
            found[name] = unflatten_like(found[name], cast)
        return replace(rows, columns=found)

    def _rounded(self, leaf: NDArray[Any], dtype: np.dtype[Any], column: str, parts: Sequence[PolicyRows]) -> NDArray[Any]:
        """Decimals in the float dtype of a known space. Raises BadEpisode, naming the row, if one is too large for it."""
        if dtype == leaf.dtype or not dtype.kind == leaf.dtype.kind == "f":
            return leaf
        with np.errstate(over="ignore"):
            rounded = leaf.astype(dtype)
        huge = np.argwhere(np.isinf(rounded) & np.isfinite(leaf))
        if len(huge):
            line, number = _origin(parts)
            row, value = int(huge[0][0]), leaf[tuple(huge[0])]
            what = f"column {column} holds {value!s}, too large for the {dtype} of its space"
            raise BadEpisode(what, where=f"{parts[line[row]].place} row {number[row]}", fix=TOO_LARGE)
        return rounded

    def _dtype_of(self, key: Leaf, default: np.dtype[Any]) -> np.dtype[Any]:
        dtype = self._settled.get(key, default)
        return np.dtype(np.int64) if dtype == SMALL and key in self._plain else dtype


def _narrowest(leaf: NDArray[Any]) -> np.dtype[Any]:
    """The dtype for values of a plain list."""
    if leaf.dtype.kind == "f":
        return FLOAT32 if _survives(leaf, FLOAT32) else leaf.dtype
    if leaf.dtype.kind in "iu":
        return SMALL if not leaf.size or (leaf.min() >= -(2**15) and leaf.max() < 2**15) else leaf.dtype
    return leaf.dtype


def _survives(leaf: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether every value of `leaf` is exact in `dtype`."""
    if leaf.dtype == dtype:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        back = leaf.astype(dtype).astype(leaf.dtype)
    return bool((back == leaf).all()) or bool(equal_values(back, leaf).all())


def _shared_name(name: str) -> str:
    """The name under which a column's dtype is kept: obs and new_obs share one."""
    return Columns.OBS if name == Columns.NEXT_OBS else name


BLOCK_BYTES: Final = 32 << 20  # bytes of lines in a block: half of an RLlib file
Key = tuple[Any, Any]  # eps_id, agent_index


@dataclass(slots=True)
class SampleBatchSource(FileSource):
    """Files of SampleBatch JSON, in the order given.

    Spaces given by the caller distinguish Tuples from lists of rows.
    """

    format: ClassVar = "sample-batch"

    def prepare(self, options: ReadOptions) -> None:
        """See `Source`. Known spaces identify tuples, which JSON lacks."""
        self.read_options = options
        if options.spaces is not None:
            self.info = replace(self.info, observation_space=options.spaces[0], action_space=options.spaces[1])

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`: runs of rows in stored order, one policy at a time."""
        self.done = 0
        observations, actions = self.info.spaces
        known = [(Columns.OBS, observations), (Columns.ACTIONS, actions)]
        spaces = {path: leaf for name, space in known if space is not None for path, leaf in leaf_spaces(space, name).items()}
        dtypes = ColumnDtypes(tally, {path: np.dtype(leaf.dtype) for path, leaf in spaces.items()})
        ids = _EpisodeIds(tally)
        for block in self._blocks(tally, rejects):
            ids.see(block)
            groups = []
            for policy in dict.fromkeys(rows.policy for rows in block):
                mine = (rows for rows in block if rows.policy == policy)
                groups += [list(group) for _, group in groupby(mine, lambda rows: rows.form)]
            joined = [PolicyRows.joined(group) for group in groups]
            dtypes.settle(joined)
            for parts, rows in zip(groups, joined, strict=True):
                keys, order, follows = ids.keys(rows, parts)
                _lose_begun(parts, keys, rejects)
                yield _fragments(dtypes.of(rows, parts), parts, keys, order, follows, tally)

    def _blocks(self, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows]]:
        """Blocks of rows; smaller ones if they end as many episodes as the caller wants."""
        block = list[PolicyRows]()
        nbytes = ended = 0
        limit = self.read_options.limit
        for rows in self._rows(tally, rejects):
            block.append(rows)
            nbytes, ended = nbytes + rows.nbytes, ended + int(np.count_nonzero(rows.ended))
            if nbytes > BLOCK_BYTES or (limit is not None and ended >= limit):
                yield block
                block, nbytes = [], 0
        if block:
            yield block

    def _rows(self, tally: Tally, rejects: Rejects) -> Iterator[PolicyRows]:
        """The rows of all lines; those right after lost lines are marked."""
        lost, marked = "", set[str | None]()  # place of the last loss, and policies marked since
        for line in self._lines(BatchReader(tally, *self.info.spaces), tally, rejects):
            if isinstance(line, str):
                lost = line
                marked.clear()
                rejects.lose_episodes(Lost.UNREADABLE)
                continue
            for rows in line:
                if lost and rows.policy not in marked:
                    rows.lost_before = lost
                    marked.add(rows.policy)
                yield rows

    def _lines(self, reader: BatchReader, tally: Tally, rejects: Rejects) -> Iterator[list[PolicyRows] | str]:
        """The rows of each line; or the place of a lost line or rest of a file."""
        before = 0
        for number, file in enumerate(self.files):
            for line in lines_of(file, self.scope):
                if isinstance(line, BadData):
                    rejects.add(line)
                    yield file.url
                    continue
                self.done = before + line.position
                tally.rows_in += 1
                try:
                    found = reader.read(line)
                except BadData as error:
                    rejects.add(error, raw=line.data)
                    yield error.where
                    continue
                for rows in found:
                    rows.file = number, line.file
                yield found
            before = self.done


def _fragments(
    rows: PolicyRows, parts: Sequence[PolicyRows], keys: Keys, order: NDArray[np.int64] | None, follows: bool, tally: Tally
) -> Fragments:
    """`parts`: the lines that contain `rows`. `order`: of the rows, if it differs from the stored order."""
    line, number = _origin(parts)
    if order is not None:
        rows, keys, line, number = rows.take(order), replace(keys, code=keys.code[order]), line[order], number[order]
    columns = rows.columns
    steps = SourceRows(
        keys=keys,
        obs=columns[Columns.OBS],
        next_obs=columns.get(Columns.NEXT_OBS),
        actions=columns[Columns.ACTIONS],
        rewards=columns[Columns.REWARDS],
        terminateds=columns[Columns.TERMINATEDS],
        truncateds=columns[Columns.TRUNCATEDS],
        t=columns.get(Columns.T),
        extra={name: columns[name] for name in columns if name in rows.extras},
        infos=rows.infos,
        file=line,
        follows=follows,
        where=lambda row: f"{parts[line[row]].place} row {number[row]}",
    )
    batch, first = fragments_of_rows(steps, tally)
    return Fragments(batch, Origins.of_rows(tuple(part.place for part in parts), line, number, first))


def _line_of(parts: Sequence[PolicyRows]) -> NDArray[np.int64]:
    """(N,) The line of each row."""
    return np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _origin(parts: Sequence[PolicyRows]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N,) The line of each row, and (N,) its row number in the line."""
    line = _line_of(parts)
    return line, np.arange(len(line)) - np.searchsorted(line, line)


def _lose_begun(parts: Sequence[PolicyRows], keys: Keys, rejects: Rejects) -> None:
    """Mark the next episode of each agent after lost lines as incomplete: only `t` could show that it is not."""
    row = 0
    for part in parts:
        if part.lost_before and Columns.T not in part.columns:
            for first in np.unique(part.columns[AGENT_INDEX], return_index=True)[1].tolist():
                rejects.lose(keys.eps_ids[int(keys.code[row + first])], part.lost_before)
        row += len(part)


# ---- ids ----


@dataclass(frozen=True, slots=True)
class _LastRow:
    """A row without `eps_id` that did not end its episode."""

    name: str  # made up, of its episode
    file: tuple[int, str]
    columns: dict[str, Tree]  # leaves (1, ...), to compare with the next row

    def continues_in(self, rows: PolicyRows, file: tuple[int, str]) -> bool:
        """Whether the first of `rows`, in `file`, is the next step."""
        mine, theirs = self.columns, rows.columns
        if theirs[AGENT_INDEX][0] != mine[AGENT_INDEX][0]:
            return False
        if Columns.T in mine and Columns.T in theirs:
            return bool(theirs[Columns.T][0] == mine[Columns.T][0] + 1)
        if Columns.NEXT_OBS not in mine:
            return file == self.file
        try:
            same = map_leaves(lambda left, right: same_leaf(left[0], right[0]), mine[Columns.NEXT_OBS], theirs[Columns.OBS])
        except ValueError:  # another structure
            return False
        return all(leaves(same))


@dataclass(slots=True)
class _EpisodeIds:
    """Assigns episode ids: with the agent's name if the first lines have several; generated if lines have none."""

    tally: Tally
    _shared: SharedIds = field(default_factory=SharedIds)
    _only: tuple[str | None, Any] | None = None  # policy, agent index: the only one of the first block
    _open: dict[str | None, Key] = field(default_factory=dict)  # by policy: key of an episode that the last row did not end
    _last: dict[str | None, _LastRow] = field(default_factory=dict)  # by policy: that row, if its id was generated
    _prefix: str = ""
    _made: int = 0

    def see(self, block: Sequence[PolicyRows]) -> None:
        """Record the agents of the first block, and hash its first rows."""
        if not self._prefix:
            agents = {(rows.policy, agent) for rows in block for agent in set(rows.columns[AGENT_INDEX].tolist())}
            self._shared, self._only = SharedIds(len(agents) > 1), next(iter(agents)) if len(agents) == 1 else None
            content = b"".join(leaf.tobytes() for leaf in leaves(block[0].columns))
            self._prefix = hashlib.blake2b(content, digest_size=4).hexdigest()

    def keys(self, rows: PolicyRows, parts: Sequence[PolicyRows]) -> tuple[Keys, NDArray[np.int64] | None, bool]:
        """Keys of the rows of one policy, in the lines `parts`.

        Also returns the row order that groups equal keys of a line (None if they are grouped), and whether the first row
        directly follows a row that did not end its episode.
        """
        last = self._last.pop(rows.policy, None)
        if Columns.EPS_ID not in rows.columns:
            rows.columns[Columns.EPS_ID] = self._made_up(rows, parts, last)
        eps_id, agent, line = rows.columns[Columns.EPS_ID], rows.columns[AGENT_INDEX], _line_of(parts)
        changes = (eps_id[1:] != eps_id[:-1]) | (agent[1:] != agent[:-1]) | (line[1:] != line[:-1])
        first = np.flatnonzero(np.append(True, changes))
        lengths = np.diff(np.append(first, len(rows)))
        found = list(zip(eps_id[first].tolist(), agent[first].tolist(), strict=True))  # whose run of rows it is
        codes = {key: code for code, key in enumerate(dict.fromkeys(found))}
        runs = np.array([codes[key] for key in found], np.int64)
        keys = Keys(
            code=np.repeat(runs, lengths),
            eps_ids=tuple(str(eps) for eps, _ in codes),
            agent_ids=tuple(None if (rows.policy, name) == self._only else str(name) for _, name in codes),
            module_ids=(rows.policy,) * len(codes),
        )
        order = self._together(line[first], runs, lengths)
        begin, end = (0, -1) if order is None else order[[0, -1]].tolist()
        named = list(codes)
        follows = self._open.pop(rows.policy, None) == named[keys.code[begin]]
        if not rows.ended[end]:
            self._open[rows.policy] = named[keys.code[end]]
        return self._shared.named(keys), order, follows

    def _together(
        self, line: NDArray[np.int64], code: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """The row order that groups equal keys of a line; None if they are grouped already."""
        _, first, which = np.unique(line * (code.max() + 1) + code, return_index=True, return_inverse=True)
        if len(first) == len(code):
            return None
        turns = np.bincount(line) > np.bincount(line[first])  # lines in which keys alternate
        self.tally.assume("rows-brought-together", int(lengths[turns[line]].sum()))
        return np.argsort(np.repeat(first[which], lengths), kind="stable")

    def _made_up(self, rows: PolicyRows, parts: Sequence[PolicyRows], last: _LastRow | None) -> NDArray[np.str_]:
        """(N,) Generated ids for rows without ids. `last`: the previous row."""
        begins = _begins(rows, parts)
        names = [last.name] if last is not None and last.continues_in(rows, parts[0].file) else []
        made = int(np.count_nonzero(begins)) - len(names)
        names += [f"{self._prefix}-{self._made + number}" for number in range(made)]
        self.tally.assume("missing-eps-id", made)
        self._made += made
        if not rows.ended[-1]:
            kept = {name: rows.columns[name] for name in (AGENT_INDEX, Columns.T, Columns.NEXT_OBS) if name in rows.columns}
            row = map_leaves(lambda leaf: leaf[-1:].copy(), kept)  # a copy, so that the block can be freed
            self._last[rows.policy] = _LastRow(names[-1], parts[-1].file, row)
        return np.take(np.array(names, np.str_), np.cumsum(begins) - 1)


def _begins(rows: PolicyRows, parts: Sequence[PolicyRows]) -> NDArray[np.bool_]:
    """(N,) Whether a row does not continue the previous one, regardless of `eps_id`; true for the first row."""
    columns = rows.columns
    follows = ~rows.ended[:-1] & (columns[AGENT_INDEX][1:] == columns[AGENT_INDEX][:-1])
    if Columns.T in columns:
        follows &= columns[Columns.T][1:] == columns[Columns.T][:-1] + 1
    elif Columns.NEXT_OBS in columns:
        follows &= chained(columns[Columns.OBS], columns[Columns.NEXT_OBS])
    else:  # assume that episodes end with their file
        new = np.array([False, *(after.file != before.file for before, after in pairwise(parts))])
        line = _line_of(parts)
        follows &= (line[1:] == line[:-1]) | ~new[line[1:]]
    return np.append(True, ~follows)
