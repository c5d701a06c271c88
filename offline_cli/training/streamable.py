"""Which pieces of a learner pipeline may see the episodes in parts; refuses, by name, those that may need all at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.errors import BadConfig

__all__ = ["check_streamable", "learns"]

OURS: Final = "offline_cli."
PLACE: Final = "learner pipeline"


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; somebody's own have to say so (`ConnectorV2.per_episode`), and, where they
    have a state, be able to learn no more: the data is read more than once.
    """
    kinds = list(dict.fromkeys(map(type, pieces)))
    refused = [kind.__name__ for kind in kinds if not _by_episode(kind)]
    if refused:
        problems = [f"{name} may need all episodes at once, and a stream has a part of them at a time" for name in refused]
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)
    endless = [kind.__name__ for kind in kinds if _learns(kind) and not _can_end(kind)]
    if endless:
        problems = [f"{name} has a state, and would take it from every reading of a stream" for name in endless]
        fix = "override `freeze` (learn no more) and `reset_state` (forget) in the class, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def learns(piece: ConnectorV2) -> bool:
    """Whether the piece may learn from the episodes it sees: it has a state."""
    return _learns(type(piece))


def _learns(kind: type[ConnectorV2]) -> bool:
    return kind.get_state is not ConnectorV2.get_state


def _can_end(kind: type[ConnectorV2]) -> bool:
    return kind.freeze is not ConnectorV2.freeze and kind.reset_state is not ConnectorV2.reset_state


def _by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return kind.__module__.startswith(OURS) or preprocessor or bool(vars(kind).get("per_episode", False))
