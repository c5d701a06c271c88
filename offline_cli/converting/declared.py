"""The spaces that sources declare, and who says them; refuses sources that declare different ones, unless `--env` decides.

A space that a manifest calls inferred gives way to that of the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch
from offline_cli.formats.own import OwnSource
from offline_cli.formats.source import Source
from offline_cli.formats.tables import TableSource
from offline_cli.spaces import Space, describe, same_space

__all__ = ["Declared", "declared", "is_inferred", "said_by", "two_spaces"]

BY_SOURCE: Final = "the source"


def said_by(source: Source) -> str:
    """Who says what `source` declares: of a table, which says nothing itself, its mapping."""
    return f"the mapping {source.mapping.name}" if isinstance(source, TableSource) else BY_SOURCE


class _Said(NamedTuple):
    by: str  # who
    where: str  # of the source
    space: Space | None


@dataclass(frozen=True, slots=True)
class Declared:
    """Observation and action space as far as anything says them."""

    observation: Space | None
    action: Space | None
    said_by: tuple[str, str]  # who says each of them
    by_env: bool  # whether the environment says one of them, in place of the sources


def declared(
    sources: Sequence[Source], first: EpisodeBatch, env: str | None, env_spaces: tuple[Space, Space] | None
) -> Declared:
    """What `sources`, their `first` episodes and `env` with its spaces declare. Raises SpaceMismatch."""
    known = [
        (said_by(source), source.location, (source.observation_space, source.action_space))
        for source in sources
        if env_spaces is None or not is_inferred(source)
    ]
    if not is_inferred(sources[0]):
        known.append((BY_SOURCE, sources[0].location, (first.observation_space, first.action_space)))
    one, other = (
        _one_space(
            name,
            [_Said(by, where, pair[part]) for by, where, pair in known],
            env_spaces and _Said(f"--env {env}", "", env_spaces[part]),
        )
        for part, name in enumerate(("observation", "action"))
    )
    by_env = env_spaces is not None and (one.space is env_spaces[0] or other.space is env_spaces[1])
    return Declared(one.space, other.space, (one.by, other.by), by_env)


def _one_space(name: str, said: Sequence[_Said], of_env: _Said | None) -> _Said:
    """The space that all who say one agree on; that of the environment where none does, or where they differ."""
    known = [entry for entry in said if entry.space is not None]
    if not known:
        return of_env or _Said(BY_SOURCE, "", None)
    different = next((entry for entry in known if not same_space(entry.space, known[0].space)), None)
    if different is None:
        by_env = of_env is not None and known[0].space is of_env.space  # a reader that was told them
        return of_env if by_env and of_env is not None else known[0]
    if of_env is None:
        raise two_spaces(name, (known[0].where, known[0].space), (different.where, different.space))
    return of_env


def is_inferred(source: Source) -> bool:
    """Whether the source is a dataset of ours whose spaces its writer inferred."""
    return isinstance(source, OwnSource) and source.spaces_inferred


def two_spaces(name: str, one: tuple[str, Space | None], other: tuple[str, Space | None]) -> SpaceMismatch:
    """The error for two places that declare different spaces."""
    return SpaceMismatch(
        f"two {name} spaces: {describe(one[1])} and {describe(other[1])}",
        where=f"{one[0]} and {other[0]}",
        fix="name the environment with --env if they are one, or convert the sources into two datasets",
    )
