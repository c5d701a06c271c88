"""Which options a piece takes: the arguments that the constructors of its class and of its bases name, and no others."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

__all__ = ["AS_LEARNER", "SPACES", "Maker", "Signature", "option_mistakes", "signature_of"]

Maker = Callable[..., Any]  # a class of pieces, or a function that makes some

SPACES: Final = ("input_observation_space", "input_action_space")
AS_LEARNER: Final = "as_learner_connector"


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a piece by name."""

    options: Mapping[str, bool]  # whether each must be given
    spaces: tuple[str, ...]  # of SPACES, those it cannot be made without
    takes_as_learner: bool  # whether it works in learner pipelines and in env-to-module ones, and is told which


def signature_of(maker: Maker) -> Signature:
    """What a class of pieces takes, or the keyword-only arguments of a builder of pieces."""
    named = _of_class(maker) if inspect.isclass(maker) else _of_builder(maker)
    options = {name: needed for name, needed in named.items() if name not in (*SPACES, AS_LEARNER)}
    return Signature(options, tuple(name for name in SPACES if named.get(name)), AS_LEARNER in named)


def _of_class(kind: type[Any]) -> dict[str, bool]:
    """Arguments of its constructor, and of its bases' as long as what comes by name is passed on to them."""
    found: dict[str, bool] = {}
    for base in kind.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                found.setdefault(p.name, p.default is p.empty and base is _first_with_init(kind))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _first_with_init(kind: type[Any]) -> type[Any]:
    return next(base for base in kind.__mro__ if "__init__" in vars(base))


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
