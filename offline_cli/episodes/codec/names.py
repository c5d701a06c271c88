"""Ids, and names of agents and modules, as both formats can hold them; refuses lone surrogates and names of over 64 KiB."""

from __future__ import annotations

from itertools import chain

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData

__all__ = ["check_names"]

LONGEST = (1 << 16) - 1  # bytes


def check_names(batch: EpisodeBatch, *, where: str) -> None:
    """Raise BadData for a name in `batch` that no file can hold."""
    for name in chain(batch.ids, batch.agent_ids or (), batch.module_ids or (), batch.multi_agent_ids or ()):
        if name is not None and (len(name) > LONGEST // 4 or not name.isascii()):
            _check(name, where)


def _check(name: str, where: str) -> None:
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as err:
        raise BadData(f"the name {name[:80]!r}, which UTF-8 cannot hold", where=where, fix="give other ids") from err
    if size > LONGEST:
        raise BadData(f"a name of {len(name)} letters: {name[:40]!r}...", where=where, fix="give shorter ids")
