"""The options that a connector piece takes, and what an exception of a piece says.

Options are the arguments that the constructors of a piece's class and of its bases name, and no others: every piece takes
`**kwargs`, for RLlib's sake, and would swallow whatever it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

__all__ = ["AS_LEARNER", "NOTE", "SPACES", "Maker", "Signature", "option_mistakes", "piece_of", "signature_of", "what_it_wants"]

MAX_SHOWN: Final = 300  # letters
NOTE: Final = "in connector piece "  # of the notes by which pipelines say which piece an exception came from

Maker = Callable[..., Any]  # a class of pieces, or a function that makes some

SPACES: Final = ("input_observation_space", "input_action_space")
AS_LEARNER: Final = "as_learner_connector"


def what_it_wants(err: BaseException) -> str:
    """`ValueError: words`, on one line."""
    name, words = type(err).__name__, " ".join(str(err).split())
    return f"{name}: {words}"[:MAX_SHOWN] if words else name


def piece_of(err: BaseException) -> str | None:
    """The unique name of the piece that raised, those of pipelines around it before it with dots; None: no piece did."""
    notes = [note.removeprefix(NOTE) for note in getattr(err, "__notes__", ()) if note.startswith(NOTE)]
    return ".".join(reversed(notes)) or None


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a piece by name."""

    options: Mapping[str, bool]  # whether each must be given
    spaces: tuple[str, ...]  # of SPACES, those it cannot be made without
    takes_as_learner: bool  # whether it works in learner pipelines and in env-to-module ones, and is informed which


def signature_of(maker: Maker) -> Signature:
    """What a class of pieces takes, or the keyword-only arguments of a builder of pieces."""
    named = _of_class(maker) if inspect.isclass(maker) else _of_builder(maker)
    options = {name: needed for name, needed in named.items() if name not in (*SPACES, AS_LEARNER)}
    return Signature(options, tuple(name for name in SPACES if named.get(name)), AS_LEARNER in named)


def _of_class(kind: type[Any]) -> dict[str, bool]:
    """Arguments of its constructor, and of its bases' as long as what comes by name is passed on to them."""
    found: dict[str, bool] = {}
    made_by = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base) and base is not object]
    for constructor in made_by:
        parameters = list(inspect.signature(constructor).parameters.values())[1:]
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                found.setdefault(p.name, p.default is p.empty and constructor is made_by[0])
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _of_builder(builder: Maker) -> dict[str, bool]:
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


def option_mistakes(signature: Signature, given: Collection[str]) -> list[str]:
    """What is wrong with the names of the options given; empty when nothing is."""
    found = []
    for name in given:
        if name in signature.options:
            continue
        if name == AS_LEARNER and signature.takes_as_learner:
            found.append(f"{AS_LEARNER} follows from the kind of the pipeline: leave it out")
            continue
        near = get_close_matches(name, signature.options, n=1)
        known = ", ".join(signature.options) or "none"
        found.append(f"unknown option '{name}'" + (f", did you mean '{near[0]}'?" if near else f" (it has: {known})"))
    missing = [name for name, needed in signature.options.items() if needed and name not in given]
    return found + [f"needs the option '{name}'" for name in missing]
