"""Ids of a table's episodes: `<8 hex of the source's content>-<theirs>`; those of RLlib's own recorder stay as they are.

The hash is of the files' sizes, first and last bytes, and not of their names: a copy elsewhere gives the same ids, and two
tables that both number their episodes from 0 do not give the same ones. RLlib's recorder gives each episode an id that no other
has, in whatever format Ray writes its rows, and two recordings of one episode are recognised by it.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Sequence
from typing import Final

from offline_cli.columns import Columns
from offline_cli.formats.source import Openable
from offline_cli.storage.failures import storage_failures

__all__ = ["are_rllibs", "source_hash"]

HASHED_BYTES: Final = 64 << 10  # at each end of a file
RECORDED: Final = frozenset(
    {
        *(Columns.EPS_ID, Columns.AGENT_ID, Columns.MODULE_ID, Columns.OBS, Columns.ACTIONS, Columns.REWARDS),
        *(Columns.NEXT_OBS, Columns.TERMINATEDS, Columns.TRUNCATEDS),
    }
)


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
