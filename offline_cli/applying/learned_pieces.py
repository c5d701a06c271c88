"""What the pieces of a learner pipeline learn: in one pass each, before anything is made of the data, and nothing afterwards.

Each piece with a state sees all episodes that are learned from, once, behind pieces that have learned and are frozen, in a
pipeline built for that pass alone. What its `get_state` gives afterwards goes through bytes and `set_state` to the pipeline
that makes the columns, which is frozen, just as to those that play. So training, `apply`, checks, `evaluate` and exports see
the same numbers. Episodes come to a pass in parts that follow from the episodes alone: a state is the same to the bit in memory
and streaming. Pieces that may need all episodes at once get them all at once.

Pieces of other code that would give other numbers later are refused by name: one that learns although it is frozen, one whose
state cannot be set, and one without a state whose attributes change as the first episodes go through it.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
import torch

from offline_cli.applying.learner_batches import in_parts, playing, stepped
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, learns, state_from_bytes, state_to_bytes
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig

__all__ = ["check_streamable", "freeze", "learn"]

PLACE: Final = "learner pipeline"
DOCUMENTED: Final = 'docs/howto/pipelines.md, "A piece of your own"'
NOT_LEARNED: Final = (gym.Space, np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def learn(
    pipeline: ConnectorPipelineV2,
    build: Callable[[], ConnectorPipelineV2],
    read: Callable[[], Iterable[EpisodeBatch]],
    *,
    where: str,
    rl_module: Any = None,
) -> None:
    """Give the pieces of `pipeline` what they learn from the episodes of `read`, and freeze all. Those that are frozen already
    keep what they have.

    `build` makes such a pipeline anew. `read` gives all episodes that are learned from, each time it is called: once for each
    piece that learns, and once more where there are pieces of other code, through which the first episodes go. `where` names
    the data. Raises BadConfig for pieces whose numbers would change later, BadPiece for what a piece raises and for a state
    that cannot be saved, and what `read` raises.
    """
    pieces = list(pipeline.pieces())
    states: dict[int, Mapping[str, Any]] = {number: piece.get_state() for number, piece in enumerate(pieces) if piece.frozen}

    def anew(learning: int | None = None) -> ConnectorPipelineV2:
        """Of pieces with the states so far, in which piece number `learning` alone learns; None: none that has a state."""
        made = build()
        if any(piece is one for piece in made.pieces() for one in pieces):  # a builder may give the same objects each time
            made = copy.deepcopy(made)
        for number, piece in enumerate(made.pieces()):
            _set_state(piece, states.get(number, {}))
            if learns(piece) if learning is None else number != learning:
                freeze(piece)
        return made

    with playing(rl_module) as module:
        if not all(_is_ours(type(piece)) or number in states for number, piece in enumerate(pieces)):
            made = anew()
            before = [(piece, _content(piece)) for piece in made.pieces() if not _is_ours(type(piece))]
            first = next(iter(in_parts(read())), None)
            with suppress(Exception):  # pieces have not learned yet what later ones may need; told where columns are made
                for _ in stepped(made, first, where=where, rl_module=module) if first is not None else ():
                    pass
            for piece, content in before:
                _check_unchanged(piece, content)
        for number, piece in enumerate(pieces):
            if learns(piece) and number not in states:
                made, parts = anew(number), in_parts(read())
                if not all(_is_by_episode(type(one)) for one in pieces[: number + 1]):
                    whole = list(parts)
                    parts = iter([EpisodeBatch.concat(whole)] if whole else [])
                last = next(name for name, one in pipeline.named() if piece is one or _holds(one, piece))
                for part in parts:
                    for name, *_ in stepped(made, part, where=where, rl_module=module):
                        if name == last:
                            break
                kept = state_from_bytes(_state_bytes(list(made.pieces())[number]), where=PLACE)
                states[number] = copy.deepcopy(kept[type(piece).__name__])  # arrays of bytes cannot be written to
            _set_state(piece, states.get(number, {}))
    pipeline.freeze()


def freeze(piece: ConnectorV2) -> None:
    """Have a piece learn no more."""
    piece.freeze()
    piece.frozen = True


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; others have to say so (`ConnectorV2.per_episode`).
    """
    kinds = dict.fromkeys(type(piece) for piece in pieces if not _is_by_episode(type(piece)))
    problems = [f"{kind.__name__} may need all episodes at once, and a stream has a part of them at a time" for kind in kinds]
    if problems:
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def _is_ours(kind: type[ConnectorV2]) -> bool:
    return kind.__module__.startswith("offline_cli.")


def _is_by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return _is_ours(kind) or preprocessor or bool(vars(kind).get("per_episode", False))


def _holds(one: ConnectorV2, piece: ConnectorV2) -> bool:
    return isinstance(one, ConnectorPipelineV2) and any(piece is inner for inner in one.pieces())


def _set_state(piece: ConnectorV2, state: Mapping[str, Any]) -> None:
    """Raise BadConfig for a class that has a state and does not take it back."""
    if state and type(piece).set_state is ConnectorV2.set_state:
        what = f"{type(piece).__name__} has a state, and no set_state that takes it back"
        raise BadConfig(what, where=PLACE, fix=f"override set_state beside get_state ({DOCUMENTED})")
    if state:
        piece.set_state(state)


def _state_bytes(piece: ConnectorV2) -> bytes:
    return state_to_bytes({type(piece).__name__: piece.get_state()}, where=PLACE)


def _content(piece: ConnectorV2) -> dict[str, bytes]:
    """The state, or else each attribute that has bytes, but for random generators, spaces and cached properties."""
    if learns(piece):
        return {"its state": _state_bytes(piece)}
    held = {}
    for name, value in vars(piece).items():
        if not isinstance(value, NOT_LEARNED) and not isinstance(getattr(type(piece), name, None), cached_property):
            with suppress(Exception):  # pickling may be anybody's code
                held[name] = pickle.dumps(value)
    return held


def _check_unchanged(piece: ConnectorV2, before: Mapping[str, bytes]) -> None:
    """Raise BadConfig where a piece has learned something since, or seems to: see `_content`."""
    after = _content(piece)
    if changed := sorted(name for name in {**before, **after} if before.get(name) != after.get(name)):
        what = (
            f"{type(piece).__name__} changes {', '.join(changed)} as episodes go through it, and is frozen or has no get_state"
        )
        fix = "add get_state and set_state, and learn only while `not self.frozen`; where nothing is learned, as by a cache, "
        raise BadConfig(what, where=PLACE, fix=f"{fix}a get_state that gives {{}} ({DOCUMENTED})")
