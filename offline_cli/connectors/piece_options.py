"""Options of connector pieces, read from constructors, and messages about exceptions of pieces.

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
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:MAX_SHOWN]


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
    """What a class of pieces takes, in its constructor and its bases' as long as they pass arguments on by name; of a builder
    of pieces, its keyword-only arguments.
    """
    named: dict[str, bool] = {}
    kinds = [base for base in inspect.getmro(maker) if "__init__" in vars(base)] if inspect.isclass(maker) else []
    for index, kind in enumerate(kinds):
        parameters = list(inspect.signature(vars(kind)["__init__"]).parameters.values())[1:]
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                named.setdefault(p.name, p.default is p.empty and index == 0)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    if not kinds:
        named = {p.name: p.default is p.empty for p in inspect.signature(maker).parameters.values() if p.kind is p.KEYWORD_ONLY}
    options = {name: needed for name, needed in named.items() if name not in (*SPACES, AS_LEARNER)}
    return Signature(options, tuple(name for name in SPACES if named.get(name)), AS_LEARNER in named)


def option_mistakes(signature: Signature, given: Collection[str]) -> list[str]:
    """Mistakes in the names of options; empty when there are none."""
    found = []
    for name in given:
        if name not in signature.options:
            near = get_close_matches(name, signature.options, n=1)
            known = ", ".join(signature.options) or "none"
            found.append(f"unknown option '{name}'" + (f", did you mean '{near[0]}'?" if near else f" (it has: {known})"))
    missing = [name for name, needed in signature.options.items() if needed and name not in given]
    return found + [f"needs the option '{name}'" for name in missing]
