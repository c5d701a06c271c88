"""What the pieces of a learner pipeline learn: in one pass each, before anything is made of the data, and nothing afterwards.

Each piece with a state sees all episodes that are learned from, once, behind pieces that have learned and are frozen, in a
pipeline built for that pass alone. What its `get_state` gives afterwards goes through bytes and `set_state` to the pipeline
that makes the columns, which is frozen, just as to those that play. So training, `apply`, checks, `evaluate` and exports see
the same numbers. Episodes come to a pass in parts that follow from the episodes alone: a state is the same to the bit in memory
and streaming. Pieces that may need all episodes at once get them all at once.

A piece that learns although it is frozen, or whose state cannot be set, would give other numbers later: it is refused by name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from offline_cli.applying.learner_batches import in_parts, playing, stepped
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, learns, state_from_bytes, state_to_bytes
from offline_cli.connectors.env_to_module.observation_preprocessor import SingleAgentObservationPreprocessor
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig

__all__ = ["check_streamable", "frozen_with", "learn"]

OURS: Final = "offline_cli."
PLACE: Final = "learner pipeline"
DOCUMENTED: Final = 'docs/connectors.md, "A piece that learns"'
States = dict[int, Mapping[str, Any]]  # by the piece's number


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
    piece that learns, and once more where one of these is of other code. `where` names the data. Raises BadConfig for pieces
    whose numbers would change later, BadPiece for what a piece raises and for a state that cannot be saved, and what `read`
    raises.
    """
    pieces = list(pipeline.pieces())
    states: States = {number: piece.get_state() for number, piece in enumerate(pieces) if piece.frozen}
    learning = [number for number, piece in enumerate(pieces) if learns(piece) and number not in states]
    with playing(rl_module) as module:
        if any(not type(pieces[number]).__module__.startswith(OURS) for number in learning):
            _check_frozen(_anew(pipeline, build, states), read, where, module)
        for number in learning:
            made = _anew(pipeline, build, states, learning=number)
            learner = list(made.pieces())[number]
            last = next(name for name, one in made.named() if one is learner or _holds(one, learner))
            for part in _parts(pieces[: number + 1], read()):
                for name, *_ in stepped(made, part, where=where, rl_module=module):
                    if name == last:
                        break
            states[number] = copy.deepcopy(state_from_bytes(_bytes(learner), where=PLACE)[_name(learner)])  # writable arrays
    for number, piece in enumerate(pieces):
        _take(piece, states.get(number, {}))
    pipeline.freeze()


def _anew(
    pipeline: ConnectorPipelineV2, build: Callable[[], ConnectorPipelineV2], states: States, learning: int | None = None
) -> ConnectorPipelineV2:
    """A new pipeline of pieces with these states, in which piece number `learning` alone learns; None: none does."""
    made = build()
    known = set(map(id, pipeline.pieces()))
    if any(id(piece) in known for piece in made.pieces()):  # somebody's builder gives the same objects each time
        made = copy.deepcopy(made)
    for number, piece in enumerate(made.pieces()):
        _take(piece, states.get(number, {}))
        if number != learning:
            piece.freeze()
            piece.frozen = True
    return made


def _check_frozen(made: ConnectorPipelineV2, read: Callable[[], Iterable[EpisodeBatch]], where: str, rl_module: Any) -> None:
    """Raise BadConfig for a piece of the frozen pipeline whose state the first episodes change."""
    others = [piece for piece in made.pieces() if learns(piece)]
    before = [_bytes(piece) for piece in others]
    first = next(iter(in_parts(read())), None)
    with suppress(Exception):  # pieces have not learned yet what later ones may need; told where columns are made
        for _ in stepped(made, first, where=where, rl_module=rl_module) if first is not None else ():
            pass
    for piece, state in zip(others, before, strict=True):
        if _bytes(piece) != state:
            what = f"{_name(piece)} learns although it is frozen: a policy would be trained and played on different numbers"
            raise BadConfig(what, where=PLACE, fix=f"learn only while `not self.frozen` ({DOCUMENTED})")


def _parts(pieces: Iterable[ConnectorV2], batches: Iterable[EpisodeBatch]) -> Iterable[EpisodeBatch]:
    if all(_by_episode(type(piece)) for piece in pieces):
        return in_parts(batches)
    every = list(batches)
    return [EpisodeBatch.concat(every)] if every else []


def _holds(one: ConnectorV2, piece: ConnectorV2) -> bool:
    return isinstance(one, ConnectorPipelineV2) and any(piece is inner for inner in one.pieces())


def _take(piece: ConnectorV2, state: Mapping[str, Any]) -> None:
    """Raise BadConfig for a class that has a state and does not take it back."""
    if state and type(piece).set_state is ConnectorV2.set_state:
        what = f"{type(piece).__name__} has a state, and no set_state that takes it back"
        raise BadConfig(what, where=PLACE, fix=f"override set_state beside get_state ({DOCUMENTED})")
    if state:
        piece.set_state(state)


def _bytes(piece: ConnectorV2) -> bytes:
    return state_to_bytes({_name(piece): piece.get_state()}, where=PLACE)


def _name(piece: ConnectorV2) -> str:
    return type(piece).__name__


def frozen_with(pipeline: ConnectorPipelineV2, state: Mapping[str, Any]) -> None:
    """Have the pieces that have a part in `state`, by name, take it over and learn no more. Raises UnknownPiece for a name that
    no piece has.
    """
    pipeline.set_state(state)
    for name, piece in pipeline.named():
        if name in state:
            piece.freeze()
            piece.frozen = True


def check_streamable(pieces: Iterable[ConnectorV2]) -> None:
    """Raise BadConfig naming every piece that is not known to do with an episode what follows from that episode, and from what
    it has learned, alone. All of this package do; others have to say so (`ConnectorV2.per_episode`).
    """
    kinds = dict.fromkeys(type(piece) for piece in pieces if not _by_episode(type(piece)))
    problems = [f"{kind.__name__} may need all episodes at once, and a stream has a part of them at a time" for kind in kinds]
    if problems:
        fix = "put `per_episode = True` into the class if each episode is changed by itself, or leave out --streaming"
        raise BadConfig.of(problems, where=PLACE, fix=fix)


def _by_episode(kind: type[ConnectorV2]) -> bool:
    own_call = kind.__call__ is not SingleAgentObservationPreprocessor.__call__
    preprocessor = issubclass(kind, SingleAgentObservationPreprocessor) and not own_call
    return kind.__module__.startswith(OURS) or preprocessor or bool(vars(kind).get("per_episode", False))
