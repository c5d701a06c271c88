"""From what a user gives for a pipeline to pieces: builders of every signature, pieces, lists; refuses anything else.

RLlib's builders take positional arguments: `lambda env`, `lambda env, spaces, device` for the pipelines beside an environment,
`lambda obs_space, act_space` for the learner's (`lambda env` is seen there, too). A builder gets as many of them as it
has required positional parameters, and further ones where a parameter with a default bears the argument's name, so that
`lambda env, n=4: FrameStacking(num_frames=n)` keeps its 4.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from gymnasium.vector.utils import batch_space

from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.errors import BadPiece
from offline_cli.spaces import Space

__all__ = ["Custom", "Kind", "custom_pieces"]

Custom = ConnectorV2 | Sequence[ConnectorV2] | Callable[..., ConnectorV2 | Sequence[ConnectorV2]] | None
"""A piece, several, or a builder of them; None: none."""

Kind = Literal["env_to_module", "module_to_env", "learner"]

ENV_SPACES: Final = "__env__"  # RLlib's names in the `spaces` that a builder gets
SINGLE_ENV_SPACES: Final = "__env_single__"
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def custom_pieces(
    custom: Custom,
    kind: Kind,
    observation_space: Space | None,
    action_space: Space | None,
    *,
    env: Any = None,
    device: Any = None,
    num_envs: int = 1,
) -> list[ConnectorV2]:
    """The user's own pieces of a pipeline of this kind, in order. Raises BadPiece for what is none and builds none.

    A builder's `spaces` are pairs (observation space, action space): `"__env_single__"` those given, `"__env__"` those of
    the vector of `num_envs` environments. A learner's builder of one argument gets `env`, None unless there is one.
    """
    where = f"{kind.replace('_', '-')} pipeline"
    if custom is None or isinstance(custom, ConnectorV2) or not callable(custom):
        return _checked([] if custom is None else custom, where)
    names: dict[str, Callable[[], Any]] = {"env": lambda: env}
    if kind != "learner":
        names |= {"spaces": lambda: _builder_spaces(observation_space, action_space, num_envs), "device": lambda: device}
    elif _required(custom, where) != 1:
        names = {"obs_space": lambda: observation_space, "act_space": lambda: action_space}
    taken = _taken(custom, list(names), where)
    return _checked(custom(*(names[name]() for name in taken)), where)


def _builder_spaces(observations: Space | None, actions: Space | None, num_envs: int) -> dict[str, tuple[Any, Any]]:
    vector = tuple(None if space is None else batch_space(space, num_envs) for space in (observations, actions))
    return {ENV_SPACES: (vector[0], vector[1]), SINGLE_ENV_SPACES: (observations, actions)}


def _checked(made: Any, where: str) -> list[ConnectorV2]:
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            what = f"the pipeline's builder gave {_described(piece)}, not a ConnectorV2"
            raise BadPiece(what, where=where, fix="give one piece or a list of pieces")
    return pieces


def _taken(builder: Callable[..., Any], names: list[str], where: str) -> list[str]:
    """The arguments that this builder gets, by name and in order."""
    required = _required(builder, where)
    if required > len(names):
        what = f"the pipeline's builder wants {required} arguments"
        raise BadPiece(what, where=where, fix=f"a builder of at most {len(names)}: {', '.join(names)}")
    parameters = _parameters(builder, where)
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return names
    positional = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
    taken = required
    while taken < min(len(positional), len(names)) and positional[taken] == names[taken]:
        taken += 1
    return names[:taken]


def _required(builder: Callable[..., Any], where: str) -> int:
    parameters = _parameters(builder, where)
    return sum(parameter.kind in POSITIONAL and parameter.default is parameter.empty for parameter in parameters)


def _parameters(builder: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    if inspect.isclass(builder):
        what = f"{builder.__name__} is a class, not a piece and not a function that builds one"
        raise BadPiece(what, where=where, fix=f"lambda *_: {builder.__name__}(...)")
    return list(inspect.signature(builder).parameters.values())


def _described(piece: Any) -> str:
    return f"the class {piece.__name__}" if inspect.isclass(piece) else type(piece).__name__
