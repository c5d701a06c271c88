"""Registry of connector pieces: find classes and builders by name, and call builders.

Our own pieces are named by their class name in snake case: FrameStacking is `frame_stacking`; `FrameStacking` works too. A
third-party package registers pieces in the entry point group `offline_cli.connectors`, name = "package.module:Class". It is
imported only if a pipeline file names one of its pieces. The error for an unknown name lists the nearest ones.

RLlib's builders take positional arguments: `lambda env` or `lambda env, spaces, device` for the pipelines of playing,
`lambda obs_space, act_space` (sometimes `lambda env`) for the learner pipeline. A builder gets one argument for each positional
parameter without a default, and further ones for parameters with a default that have the argument's name.
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
"""A piece, several pieces, a builder of pieces, or None."""

Kind = Literal["env_to_module", "module_to_env", "learner"]
KINDS: Final[tuple[str, ...]] = get_args(Kind)

OURS: Final = "offline_cli.connectors."


# ---- by name ----


def own_pieces() -> dict[str, type[ConnectorV2]]:
    """Our own pieces by name, in alphabetical order; importing the package imports them all."""
    kinds = {kind.__name__: kind for kind in _derived(ConnectorV2) if kind.__module__.startswith(OURS)}
    return {snake(name): kinds[name] for name in sorted(kinds)}


def _derived(kind: Any) -> Iterator[type[ConnectorV2]]:
    """Concrete subclasses of `kind`, without pipelines."""
    for derived in kind.__subclasses__():
        if not issubclass(derived, ConnectorPipelineV2):
            if not inspect.isabstract(derived) and not derived.__name__.startswith("_"):
                yield derived
            yield from _derived(derived)


def snake(name: str) -> str:
    """`FrameStacking` to `frame_stacking`, `NStepReturns` to `n_step_returns`; snake case stays unchanged."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.replace("UnBatch", "Unbatch")).lower()


def home_of(maker: Maker) -> str | None:
    """The folder of one of our own pieces: the kind of pipeline it belongs to, or `common`. None for other packages' pieces."""
    package = str(getattr(maker, "__module__", "")).rpartition(".")[0]
    return package.removeprefix(OURS) if package.startswith(OURS) else None


def registered(name: str, *, named: Collection[str] | None = None) -> Maker:
    """The class or builder registered as `name` (snake case or class name), ours first. `named`: see `plugins.plugin`.

    Raises UnknownPiece with the nearest names; BadConfig for a package that is not in `named`, and for an object that makes no
    pieces; MissingPackage for a third-party piece that cannot be imported.
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
    raise UnknownPiece(
        f"no piece {name!r}", where=f"piece {name}", fix=f'{fix} For your own class: use = "package.module:Class"'
    )


def imported(path: str, *, where: str) -> Maker:
    """Import `package.module:attribute`; the current folder is on the path.

    Importing runs code: call it only for names from the user's own file or option. Raises BadConfig, MissingPackage.
    """
    return _checked(named_object(path, where=where, form='use = "package.module:Class"'), path, where=where)


def _checked(found: Any, path: str, *, where: str) -> Maker:
    if not callable(found) or (isinstance(found, type) and not issubclass(found, ConnectorV2)):
        what = f"{path} is {found!r}, neither a subclass of ConnectorV2 nor a function that builds pieces"
        raise BadConfig(what, where=where, fix="derive the class from offline_cli.ConnectorV2")
    maker: Maker = found
    return maker


# ---- pieces from the user ----


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
    """The user's pieces for a pipeline of this kind, in order. Raises BadPiece for anything else.

    A builder's `spaces` are pairs (observation space, action space): `"__env_single__"` of one environment, `"__env__"` of the
    vector of `num_envs` environments. A learner pipeline's builder with one argument gets `env`, which may be None.
    """
    where = f"{kind.replace('_', '-')} pipeline"
    made: Any = [] if custom is None else custom
    if inspect.isclass(custom):
        what = f"{custom.__name__} is a class; expected a piece or a function that builds pieces"
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
        for p, name in [*zip(positional, given, strict=False)][wanted:]:  # parameters with defaults
            if p.name != name:
                break
            wanted += 1
        if wanted > len(given):
            fix = f"use a builder with at most {len(given)} arguments"
            raise BadPiece(f"the pipeline's builder needs {wanted} arguments", where=where, fix=fix)
        made = custom(*[*given.values()][:wanted])
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            shown = f"the class {piece.__name__}" if inspect.isclass(piece) else type(piece).__name__
            what = f"the pipeline's builder returned {shown}, not a ConnectorV2"
            raise BadPiece(what, where=where, fix="return one piece or a list of pieces")
    return pieces
