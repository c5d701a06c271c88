"""Rows of many lines to batches of fragments; refuses to mix columns of different kinds in one batch.

Lines of a policy are gathered while they have the same columns, shapes and dtypes, so that what stands below works on large
arrays, and so that an episode that goes on in the next line is joined here already (counted in `fragments_stitched`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.sample_batch.rows import PolicyRows
from offline_cli.formats.sample_batch.settling import Settlement
from offline_cli.formats.source import Fragments, Origins
from offline_cli.formats.step_rows import Keys, StepRows, agent_episode_id, fragments_of_rows
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["Block", "nbytes_of"]


@dataclass(slots=True)
class Block:
    """Rows of one policy that can share a batch."""

    policy: str | None
    trees: list[dict[str, Tree]] = field(default_factory=list)
    rows: list[PolicyRows] = field(default_factory=list)
    nbytes: int = 0
    _signature: object = None
    _last: tuple[Any, Any] | None = None  # key of the row before this block, where it did not end its episode

    def takes(self, rows: PolicyRows, trees: dict[str, Tree]) -> bool:
        """Whether these rows can stand in one batch with those here."""
        return not self.rows or self._signature == _signature(rows, trees)

    def add(self, rows: PolicyRows, trees: dict[str, Tree]) -> None:
        """Append rows, whose columns are `trees` now."""
        if not self.rows:
            self._signature = _signature(rows, trees)
        self.rows.append(rows)
        self.trees.append(trees)
        self.nbytes += nbytes_of(trees)

    def flush(self, settlement: Settlement, tally: Tally, rejects: Rejects) -> Fragments:
        """All rows here; the block is empty then."""
        keys = _keys(self.policy, self.rows, settlement)
        self._tell_losses(keys, rejects)
        line_starts = np.cumsum(np.concatenate([[0], *(np.diff(rows.starts) for rows in self.rows)]))
        batch, first = fragments_of_rows(self._step_rows(keys, line_starts), tally)
        line = np.searchsorted(line_starts, first, side="right") - 1
        names = tuple(place.where for rows in self.rows for place in rows.lines)
        origins = Origins(names, line, first - line_starts[line])
        last = self.rows[-1]
        self._last = None if last.terminateds[-1] or last.truncateds[-1] else _key(last, -1)
        self.trees, self.rows, self.nbytes = [], [], 0
        return Fragments(batch, origins)

    def _tell_losses(self, keys: Keys, rejects: Rejects) -> None:
        """Where lines were lost, the next episode of each agent may have begun in them, and only `t` could show it."""
        row = 0
        for part in self.rows:
            if part.lost_before and part.t is None:
                for first in np.unique(part.agent_index[: part.starts[1]], return_index=True)[1]:
                    rejects.lose(keys.eps_ids[int(keys.code[row + first])], part.lost_before)
            row += part.rows

    def _step_rows(self, keys: Keys, line_starts: NDArray[np.int64]) -> StepRows:
        rows = self.rows
        trees = {name: map_leaves(_concatenated, *(part[name] for part in self.trees)) for name in self.trees[0]}
        return StepRows(
            keys=keys,
            obs=trees.pop(Columns.OBS),
            next_obs=trees.pop(Columns.NEXT_OBS, None),
            actions=trees.pop(Columns.ACTIONS),
            rewards=np.concatenate([part.rewards for part in rows]),
            terminateds=np.concatenate([part.terminateds for part in rows]),
            truncateds=np.concatenate([part.truncateds for part in rows]),
            t=None if rows[0].t is None else np.concatenate([part.t for part in rows if part.t is not None]),
            extra=trees,
            infos=_infos(rows),
            reset_infos=None,
            file=np.repeat(np.arange(len(line_starts) - 1), np.diff(line_starts)),
            follows=self._last is not None and self._last == _key(rows[0], 0),
        )


def nbytes_of(trees: dict[str, Tree]) -> int:
    """The size of all leaves."""
    return sum(leaf.nbytes for tree in trees.values() for _, leaf in flatten(tree))


def _keys(policy: str | None, rows: Sequence[PolicyRows], settlement: Settlement) -> Keys:
    eps_id = _joined_names([part.eps_id for part in rows])
    agent = _joined_names([part.agent_index for part in rows])
    changes = (eps_id[1:] != eps_id[:-1]) | (agent[1:] != agent[:-1])
    first = np.flatnonzero(np.concatenate([[True], changes]))
    codes: dict[tuple[Any, Any], int] = {}
    runs = [codes.setdefault(key, len(codes)) for key in zip(eps_id[first].tolist(), agent[first].tolist(), strict=True)]
    shares = {name: settlement.needs_suffix(policy, name) for name in {name for _, name in codes}}
    return Keys(
        code=np.repeat(np.array(runs, np.int64), np.diff(np.append(first, len(eps_id)))),
        eps_ids=tuple(agent_episode_id(eps, policy, name) if shares[name] else str(eps) for eps, name in codes),
        agent_ids=tuple(str(name) if shares[name] else None for _, name in codes),
        module_ids=(policy,) * len(codes),
        multi_agent_ids=tuple(str(eps) if shares[name] else None for eps, name in codes) if any(shares.values()) else None,
    )


def _joined_names(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any]:
    """Ids of many lines in one array: integers, or text where one of them has text."""
    arrays = [part for part in parts if part is not None]
    if len({array.dtype.kind for array in arrays}) > 1:
        arrays = [array.astype(np.str_) for array in arrays]
    return np.concatenate(arrays)


def _concatenated(*leaves: NDArray[Any]) -> NDArray[Any]:
    return leaves[0] if len(leaves) == 1 else np.concatenate(leaves)


def _infos(rows: Sequence[PolicyRows]) -> list[Any] | None:
    if all(part.infos is None for part in rows):
        return None
    return list(chain.from_iterable([{}] * part.rows if part.infos is None else part.infos for part in rows))


def _key(rows: PolicyRows, row: int) -> tuple[Any, Any]:
    assert rows.eps_id is not None
    return str(rows.eps_id[row]), str(rows.agent_index[row])


def _signature(rows: PolicyRows, trees: dict[str, Tree]) -> object:
    return rows.t is None, map_leaves(lambda leaf: f"{leaf.dtype.str}{leaf.shape[1:]}", trees)
