"""What a part of a source gives, read by itself in any process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.formats.source import Source
from offline_cli.tally import OnError, Rejects, Tally

__all__ = ["Content", "content_of", "content_of_pickled"]


@dataclass(frozen=True)
class Content:
    """Fragments and counts of a reading."""

    fragments: list[tuple[Any, ...]]  # id, digest, start kind, agent, final missing, origin
    tally: Tally
    rejects: Rejects


def content_of(source: Source) -> Content:
    """Read `source` to its end."""
    tally, rejects = Tally(), Rejects(OnError.SKIP)
    found = list(_fragments(source, tally, rejects))
    source.close()
    return Content(found, tally, rejects)


def content_of_pickled(source: bytes) -> Content:
    """As `content_of`, of a pickled source."""
    return content_of(pickle.loads(source))


def _fragments(source: Source, tally: Tally, rejects: Rejects) -> Iterator[tuple[Any, ...]]:
    for part in source.fragments(tally, rejects):
        batch = part.batch
        for entry, name in enumerate(batch.ids):
            optional = (batch.start_kind, batch.agent_ids, batch.module_ids, batch.final_missing)
            told = (None if column is None else column[entry] for column in optional)
            yield name, fingerprints(batch)[entry], *told, None if part.origins is None else part.origins[entry]
