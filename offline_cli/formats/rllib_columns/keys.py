"""Which episode and agent each row belongs to, by whole columns, and the order to read rows in; refuses nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.rllib_columns.names import KEYS
from offline_cli.formats.step_rows import Keys

__all__ = ["first_of_each_agent", "keys_of", "order_of", "taken"]


def keys_of(table: pa.Table) -> Keys:
    """The keys of all rows, ids as text; each row has an `eps_id`."""
    codes, names = zip(*(_codes(table, name) for name in KEYS), strict=True)
    if len(names[1]) == len(names[2]) == 1:
        return Keys(codes[0], tuple(map(str, names[0])), names[1] * len(names[0]), names[2] * len(names[0]))
    sizes = len(names[1]), len(names[2])
    distinct, code = np.unique((codes[0] * sizes[0] + codes[1]) * sizes[1] + codes[2], return_inverse=True)
    modules, rest = distinct % sizes[1], distinct // sizes[1]
    agents, ids = rest % sizes[0], rest // sizes[0]
    return Keys(
        code.astype(np.int64),
        tuple(str(names[0][i]) for i in ids),
        tuple(names[1][i] for i in agents),
        tuple(names[2][i] for i in modules),
    )


def _codes(table: pa.Table, name: str) -> tuple[NDArray[np.int64], tuple[str | None, ...]]:
    """(N,) index into distinct values, as text; a column that is not there has one value, None."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64), (None,)
    encoded = table[name].combine_chunks().dictionary_encode(null_encoding="encode")
    values = encoded.dictionary.to_pylist()
    return encoded.indices.to_numpy().astype(np.int64), tuple(None if value is None else str(value) for value in values)


def taken(keys: Keys, rows: NDArray[np.int64]) -> Keys:
    """The keys of some rows, in their order."""
    return replace(keys, code=keys.code[rows])


def order_of(table: pa.Table, keys: Keys) -> NDArray[np.int64] | None:
    """The order by episode, and within it by timestep or else as rows stand; None where rows mostly follow each other."""
    t = table[Columns.T].to_numpy() if Columns.T in table.column_names else None
    breaks = keys.code[1:] != keys.code[:-1]
    if t is not None:
        breaks |= t[1:] != t[:-1] + 1
    if int(breaks.sum()) <= len(breaks) // 2:
        return None
    return np.argsort(keys.code, kind="stable") if t is None else np.lexsort((np.arange(len(t)), t, keys.code))


def first_of_each_agent(keys: Keys, begin: int) -> NDArray[np.int64]:
    """Of the rows from `begin` on, the first of each agent."""
    pairs: dict[tuple[str | None, str | None], int] = {}
    number = [pairs.setdefault(pair, len(pairs)) for pair in zip(keys.agent_ids, keys.module_ids, strict=True)]
    if len(pairs) == 1:
        return np.arange(begin, min(begin + 1, len(keys.code)))
    return begin + np.unique(np.array(number)[keys.code[begin:]], return_index=True)[1]
