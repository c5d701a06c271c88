"""Ids of a table's episodes: `<8 hex of the source's content>-<theirs>`; those of RLlib's own recorder stay as they are.

The hash is of the files' sizes, first and last bytes, and not of their names: a copy elsewhere gives the same ids, and two
tables that both number their episodes from 0 do not give the same ones. RLlib's recorder gives each episode an id that no other
has, in whatever format Ray writes its rows, and two recordings of one episode are recognised by it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.source import Openable
from offline_cli.formats.step_rows import agent_episode_id
from offline_cli.storage.failures import storage_failures

__all__ = ["are_rllibs", "episode_name", "id_text", "id_texts", "inexact_ids", "keys_of", "source_hash"]

HASHED_BYTES: Final = 64 << 10  # at each end of a file
RECORDED: Final = frozenset(
    {
        *(Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS),
        *(Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS),
    }
)
WHOLE_FLOAT: Final = r"^(0|-?[1-9][0-9]*)\.0+$"
LARGEST_EXACT: Final = 2**53  # from here on not every integer is a float64


def source_hash(files: Sequence[Openable]) -> str:
    """8 hex digits, of the files in order of their names."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.url):
        with storage_failures(file.url, "reading it"), file.open() as stored:
            size = stored.seek(0, io.SEEK_END)
            stored.seek(0)
            digest.update(size.to_bytes(8, "little"))
            digest.update(stored.read(HASHED_BYTES))
            stored.seek(max(0, size - HASHED_BYTES))
            digest.update(stored.read(HASHED_BYTES))
    return digest.hexdigest()[:8]


def are_rllibs(columns: Collection[str]) -> bool:
    """Whether these are the columns that RLlib's recorder writes for each step, those of structs by their dotted parts."""
    heads = {name.partition(".")[0] for name in columns}
    return heads.issuperset(RECORDED)


def id_text(value: Any) -> str:
    """An id as text; 3.0, which is what a data frame with a gap makes of 3, is `3`."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def id_texts(column: pa.Array, *, untyped: bool) -> pa.Array:
    """A column of ids as text, whole floats as `id_text` has them; `untyped`: of a file in which `3.0` is a number too.

    Raises pa.ArrowInvalid for types that have no text.
    """
    if pa.types.is_floating(column.type):
        known = column.dictionary_encode()
        texts = [None if value != value else id_text(value) for value in known.dictionary.to_pylist()]
        return pa.array(texts, pa.large_string()).take(known.indices)
    texts = column.cast(pa.large_string())
    if untyped and pc.any(pc.ends_with(texts, "0")).as_py():
        texts = pc.replace_substring_regex(texts, WHOLE_FLOAT, r"\1")
    return texts


def keys_of(column: pa.Array, kind: pa.DataType, *, untyped: bool, needed: bool) -> tuple[pa.Array, dict[int, str]]:
    """A column of ids as `kind`, and what is wrong with it by row; `untyped`: of a file of text, `needed`: each row has one.

    Raises pa.ArrowException for types that hold none.
    """
    keys = id_texts(column, untyped=untyped) if kind == pa.large_string() else column.cast(kind)
    if pa.types.is_floating(kind):
        keys = pa.array(keys.to_numpy(zero_copy_only=False), kind, from_pandas=True)  # NaN is no id
    odd: dict[int, str] = {}
    if needed and keys.null_count:
        odd |= dict.fromkeys(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist(), "has no value")
    if untyped:  # of JSON, where an integer beyond 64 bits, or beside a decimal, is read as a float
        inexact = np.flatnonzero(inexact_ids(column)).tolist()
        odd |= {row: f"holds {column[row]}, which may stand for another integer" for row in inexact}
    return keys, odd


def inexact_ids(column: pa.Array) -> NDArray[np.bool_]:
    """(N,) floats so large that several integers may have become one."""
    if not pa.types.is_floating(column.type):
        return np.zeros(len(column), np.bool_)
    return np.asarray(np.abs(column.to_numpy(zero_copy_only=False)) >= LARGEST_EXACT)


def episode_name(prefix: str, eps_id: Any, *, file: int | None, agent: Any, module: Any, has_agents: bool) -> str:
    """The id of one agent's episode. `prefix`: with its hyphen. `file`: its number, where files number their episodes."""
    theirs = id_text(eps_id) if file is None else f"{file}-{id_text(eps_id)}"
    name = f"{prefix}{theirs}"
    if not has_agents or (agent is None and module is None):
        return name
    return agent_episode_id(name, module if module is None else id_text(module), agent if agent is None else id_text(agent))
