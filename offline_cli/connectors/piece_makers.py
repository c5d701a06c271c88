"""Finds the classes and builders of connector pieces by name, and makes pieces with their options.

Our own pieces are named by their class name in snake case: FrameStacking is `frame_stacking`, and `FrameStacking` works too. A
third-party package registers pieces under the entry point group `offline_cli.connectors`, name = "package.module:Class".
Nothing of it is imported before a pipeline file names it. An unregistered name is an error that lists the nearest ones.

Every piece takes `**kwargs`, for RLlib's sake, and would swallow whatever it is given. So its options are the arguments that
the constructors of its class and of its bases name, and no others.

RLlib's builders take positional arguments: `lambda env`, `lambda env, spaces, device` for the pipelines beside an environment,
`lambda obs_space, act_space` for the learner's (`lambda env` is seen there, too). A builder gets as many of them as it
has required positional parameters, and further ones where a parameter with a default has the argument's name, so that
`lambda env, n=4: FrameStacking(num_frames=n)` keeps its 4.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal, get_args

from gymnasium.vector.utils import batch_space

import offline_cli.connectors as ours
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.piece_options import Maker, Signature, what_it_wants
from offline_cli.errors import BadConfig, BadPiece, OfflineCliError, SpaceMismatch, UnknownPiece
from offline_cli.import_path import named_object
from offline_cli.plugins import CONNECTORS, plugin, plugins
from offline_cli.spaces import Space, describe

__all__ = [
    "KINDS",
    "Custom",
    "Kind",
    "constructed",
    "custom_pieces",
    "imported",
    "kind_mistakes",
    "maker_of",
    "own_pieces",
    "registered",
    "snake",
]

Custom = ConnectorV2 | Sequence[ConnectorV2] | Callable[..., ConnectorV2 | Sequence[ConnectorV2]] | None
"""A piece, several, or a builder of them; None: none."""

Kind = Literal["env_to_module", "module_to_env", "learner"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

ENV_SPACES: Final = "__env__"  # RLlib's names in the `spaces` that a builder gets
SINGLE_ENV_SPACES: Final = "__env_single__"
POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


# ---- by name ----


def maker_of(piece: Mapping[str, Any], label: str, named: Collection[str] | None) -> Maker:
    """What an entry of a pipeline file names or uses. Raises as `registered` and `imported`; `named`: see `plugins.plugin`."""
    if "name" in piece:
        return registered(piece["name"], named=named)
    if named is not None:
        fix = "name a pipeline file of your own on the command line"
        raise BadConfig("code is only imported where your own file or option names it", where=label, fix=fix)
    return imported(piece["use"], where=label)


@cache
def own_pieces() -> dict[str, type[ConnectorV2]]:
    """Our pieces by name, in alphabetical order."""
    pieces = [kind for kind in (getattr(ours, name) for name in ours.__all__) if _is_piece(kind)]
    return {snake(kind.__name__): kind for kind in sorted(dict.fromkeys(pieces), key=lambda kind: kind.__name__)}


def _is_piece(kind: Any) -> bool:
    is_class = isinstance(kind, type) and issubclass(kind, ConnectorV2) and not issubclass(kind, ConnectorPipelineV2)
    return is_class and not getattr(kind, "__abstractmethods__", None)


def snake(name: str) -> str:
    """`FrameStacking` as `frame_stacking`, `NStepReturns` as `n_step_returns`; what is written so already stays."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("UnBatch", "Unbatch")).lower()


def registered(name: str, *, named: Collection[str] | None = None) -> Maker:
    """The class, or function, of that name; ours come first. Class names of ours work too. `named`: see `plugins.plugin`.

    Raises UnknownPiece with the nearest names; BadConfig for a package that is not named, and for what makes no pieces;
    MissingPackage for a third-party piece that cannot be imported.
    """
    own = {snake(one): one for one in ours.__all__}
    if snake(name) in own:
        kind = getattr(ours, own[snake(name)])  # no other piece is imported for it
        if _is_piece(kind) and kind.__name__ == own[snake(name)]:
            return kind  # type: ignore[no-any-return]
    found = plugin(CONNECTORS, name, named=named)
    if found is not None:
        return _checked(found.load(), found.entry.value, where=f"piece {name}, registered by {found.package}")
    others = [one.name for one in plugins(CONNECTORS)] if named is None else []
    near = get_close_matches(snake(name), [*own_pieces(), *others], n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join([*own_pieces(), *others])}"
    raise UnknownPiece(f"no piece {name!r}", where=f"piece {name}", fix=f'{fix} Your own: use = "package.module:Class"')


def imported(path: str, *, where: str) -> Maker:
    """What `package.module:attribute` names, importable from the current folder too.

    Runs the module's code: only to be called for what a user's own file or flag names. Raises BadConfig, MissingPackage.
    """
    return _checked(named_object(path, where=where, form='use = "package.module:Class"'), path, where=where)


def _checked(found: Any, path: str, *, where: str) -> Maker:
    if not callable(found) or (isinstance(found, type) and not issubclass(found, ConnectorV2)):
        what = f"{path} is {found!r}, which is neither a ConnectorV2 nor a function that makes one"
        raise BadConfig(what, where=where, fix="derive the class from offline_cli.ConnectorV2")
    maker: Maker = found
    return maker


# ---- options ----


def kind_mistakes(maker: Maker, signature: Signature, kind: Any) -> list[str]:
    """Our own pieces lie in a folder per kind of pipeline; those of `common` serve several."""
    package, _, home = maker.__module__.rpartition(".")[0].rpartition(".")
    if package != ours.__name__ or kind not in KINDS:
        return []
    if home in ("common", kind) or (kind == "learner" and signature.takes_as_learner):
        return []
    return [f"belongs to pipelines of kind '{home}', this is one of kind '{kind}'"]


def constructed(maker: Maker, options: Mapping[str, Any], spaces: Mapping[str, Any], *, label: str) -> Any:
    """The piece. Raises SpaceMismatch where its constructor, given spaces, already finds that they do not fit."""
    try:
        return maker(**options, **spaces)
    except OfflineCliError:
        raise
    except Exception as err:
        if not any(frame.name.startswith("recompute_") for frame in traceback.extract_tb(err.__traceback__)):
            raise
        got = " and ".join(f"{name.split('_')[1]}s of {describe(space)}" for name, space in spaces.items())
        fix = "another order of pieces, or another piece"
        raise SpaceMismatch(f"{label} got {got} ({what_it_wants(err)})", where=label, fix=fix) from err


# ---- what users give ----


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
        return _as_pieces([] if custom is None else custom, where)
    parameters = _parameters(custom, where)
    names: dict[str, Callable[[], Any]] = {"env": lambda: env}
    if kind != "learner":
        names |= {"spaces": lambda: _builder_spaces(observation_space, action_space, num_envs), "device": lambda: device}
    elif _required(parameters) != 1:
        names = {"obs_space": lambda: observation_space, "act_space": lambda: action_space}
    return _as_pieces(custom(*(names[name]() for name in _taken(parameters, list(names), where))), where)


def _builder_spaces(observations: Space | None, actions: Space | None, num_envs: int) -> dict[str, tuple[Any, Any]]:
    vector = tuple(None if space is None else batch_space(space, num_envs) for space in (observations, actions))
    return {ENV_SPACES: (vector[0], vector[1]), SINGLE_ENV_SPACES: (observations, actions)}


def _as_pieces(made: Any, where: str) -> list[ConnectorV2]:
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            what = f"the pipeline's builder gave {_described(piece)}, not a ConnectorV2"
            raise BadPiece(what, where=where, fix="give one piece or a list of pieces")
    return pieces


def _taken(parameters: list[inspect.Parameter], names: list[str], where: str) -> list[str]:
    """The arguments that a builder with these parameters gets, by name and in order."""
    required = _required(parameters)
    if required > len(names):
        what = f"the pipeline's builder wants {required} arguments"
        raise BadPiece(what, where=where, fix=f"a builder of at most {len(names)}: {', '.join(names)}")
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
        return names
    positional = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
    taken = required
    while taken < min(len(positional), len(names)) and positional[taken] == names[taken]:
        taken += 1
    return names[:taken]


def _required(parameters: list[inspect.Parameter]) -> int:
    return sum(parameter.kind in POSITIONAL and parameter.default is parameter.empty for parameter in parameters)


def _parameters(builder: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    if inspect.isclass(builder):
        what = f"{builder.__name__} is a class, not a piece and not a function that builds one"
        raise BadPiece(what, where=where, fix=f"lambda *_: {builder.__name__}(...)")
    return list(inspect.signature(builder).parameters.values())


def _described(piece: Any) -> str:
    return f"the class {piece.__name__}" if inspect.isclass(piece) else type(piece).__name__
