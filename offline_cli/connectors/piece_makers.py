"""Finds the classes and builders of connector pieces by name, and asks builders for pieces.

Our own pieces are named by their class name in snake case: FrameStacking is `frame_stacking`, and `FrameStacking` works too. A
third-party package registers pieces under the entry point group `offline_cli.connectors`, name = "package.module:Class".
Nothing of it is imported before a pipeline file names it. An unregistered name is an error that lists the nearest ones.

RLlib's builders take positional arguments: `lambda env`, `lambda env, spaces, device` for the pipelines beside an environment,
`lambda obs_space, act_space` for the learner's (`lambda env` is seen there, too). A builder gets as many of them as it has
positional parameters without a default, and further ones where a parameter with a default has the argument's name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args

from gymnasium.vector.utils import batch_space

from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2, Maker
from offline_cli.errors import BadConfig, BadPiece, UnknownPiece
from offline_cli.import_path import named_object
from offline_cli.plugins import CONNECTORS, plugin, plugins
from offline_cli.spaces import Space

__all__ = ["KINDS", "Custom", "Kind", "custom_pieces", "home_of", "imported", "own_pieces", "registered", "snake"]

Custom = ConnectorV2 | Sequence[ConnectorV2] | Callable[..., ConnectorV2 | Sequence[ConnectorV2]] | None
"""A piece, several, or a builder of them; None: none."""

Kind = Literal["env_to_module", "module_to_env", "learner"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

OURS: Final = "offline_cli.connectors."


# ---- by name ----


def own_pieces() -> dict[str, type[ConnectorV2]]:
    """Our pieces by name, in alphabetical order; the package has imported them all."""
    kinds = {kind.__name__: kind for kind in _derived(ConnectorV2) if kind.__module__.startswith(OURS)}
    return {snake(name): kinds[name] for name in sorted(kinds)}


def _derived(kind: Any) -> Iterator[type[ConnectorV2]]:
    """Whole classes of pieces below `kind`, those of pipelines left out."""
    for derived in kind.__subclasses__():
        if not issubclass(derived, ConnectorPipelineV2):
            if not inspect.isabstract(derived) and not derived.__name__.startswith("_"):
                yield derived
            yield from _derived(derived)


def snake(name: str) -> str:
    """`FrameStacking` as `frame_stacking`, `NStepReturns` as `n_step_returns`; what is written so already stays."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("UnBatch", "Unbatch")).lower()


def home_of(maker: Maker) -> str | None:
    """The folder of one of our pieces, which says where it belongs: a kind of pipelines, or `common`. None: not ours."""
    package = str(getattr(maker, "__module__", "")).rpartition(".")[0]
    return package.removeprefix(OURS) if package.startswith(OURS) else None


def registered(name: str, *, named: Collection[str] | None = None) -> Maker:
    """The class or builder registered under `name` (snake case or class name); ours come first. `named`: see `plugins.plugin`.

    Raises UnknownPiece with the nearest names; BadConfig for a package that is not named, and for what makes no pieces;
    MissingPackage for a third-party piece that cannot be imported.
    """
    own = own_pieces()
    aliases = {snake(alias): kind for kind in own.values() for alias in kind.aliases}
    if kind := {**aliases, **own}.get(snake(name)):
        return kind
    if found := plugin(CONNECTORS, name, named=named):
        return _checked(found.load(), found.entry.value, where=f"piece {name}, registered by {found.package}")
    known = [*own, *([one.name for one in plugins(CONNECTORS)] if named is None else [])]
    near = get_close_matches(snake(name), known, n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}"
    raise UnknownPiece(f"no piece {name!r}", where=f"piece {name}", fix=f'{fix} Your own: use = "package.module:Class"')


def imported(path: str, *, where: str) -> Maker:
    """Import `package.module:attribute`; the current folder is on the path.

    Runs the module's code: only to be called for what a user's own file or flag names. Raises BadConfig, MissingPackage.
    """
    return _checked(named_object(path, where=where, form='use = "package.module:Class"'), path, where=where)


def _checked(found: Any, path: str, *, where: str) -> Maker:
    if not callable(found) or (isinstance(found, type) and not issubclass(found, ConnectorV2)):
        what = f"{path} is {found!r}, which is neither a ConnectorV2 nor a function that makes one"
        raise BadConfig(what, where=where, fix="derive the class from offline_cli.ConnectorV2")
    maker: Maker = found
    return maker


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
    """Pieces that the user gave for a pipeline of this kind, in order. Raises BadPiece for anything else.

    A builder's `spaces` are pairs (observation space, action space): `"__env_single__"` those given, `"__env__"` those of
    the vector of `num_envs` environments. A learner's builder of one argument gets `env`, None unless there is one.
    """
    where = f"{kind.replace('_', '-')} pipeline"
    made: Any = [] if custom is None else custom
    if inspect.isclass(custom):
        what = f"{custom.__name__} is a class, not a piece and not a function that builds one"
        raise BadPiece(what, where=where, fix=f"lambda *_: {custom.__name__}(...)")
    if callable(custom) and not isinstance(custom, ConnectorV2):
        parameters = list(inspect.signature(custom).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        wanted = sum(p.default is p.empty for p in positional)
        single = (observation_space, action_space)
        given: dict[str, Any] = dict(zip(("obs_space", "act_space"), single, strict=True))
        if kind != "learner":
            vector = tuple(None if space is None else batch_space(space, num_envs) for space in single)
            given = {"env": env, "spaces": {"__env__": vector, "__env_single__": single}, "device": device}  # RLlib's names
        elif wanted == 1:
            given = {"env": env}
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            wanted = len(given)
        for p, name in [*zip(positional, given, strict=False)][wanted:]:  # they have defaults
            if p.name != name:
                break
            wanted += 1
        if wanted > len(given):
            fix = f"a builder of at most {len(given)} arguments"
            raise BadPiece(f"the pipeline's builder wants {wanted} arguments", where=where, fix=fix)
        made = custom(*[*given.values()][:wanted])
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            shown = f"the class {piece.__name__}" if inspect.isclass(piece) else type(piece).__name__
            what = f"the pipeline's builder gave {shown}, not a ConnectorV2"
            raise BadPiece(what, where=where, fix="give one piece or a list of pieces")
    return pieces
