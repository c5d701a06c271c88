"""gymnasium's own observation wrappers as pieces of a pipeline; refuses those that need more than one observation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
import gymnasium.wrappers
from gymnasium.wrappers import AddRenderObservation, TransformObservation

from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.what_it_wants import what_it_wants
from offline_cli.episodes.buffers.stacking import stack, unstack
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.spaces import Space, describe
from offline_cli.trees import Tree

__all__ = ["GymnasiumWrapper", "wrapped"]


class GymnasiumWrapper(ObservationTransform):
    """What a wrapper makes of an observation: `GymnasiumWrapper(wrapper="ResizeObservation", options={"shape": (84, 84)})`.

    Wrappers take one observation at a time, in learner pipelines too.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        wrapper: str,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`options` are the wrapper's. Raises BadConfig for a wrapper, or an option, that there is not."""
        self._options = dict(options or {})
        self._wrapper = _checked(wrapper, self._options)
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """The wrapper's own. Raises SpaceMismatch where it does not take the space, MissingPackage."""
        space: Space = wrapped(self, self._wrapper, observations, self._options).observation_space
        return space

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Each observation through the wrapper."""
        made = wrapped(self, self._wrapper, space, self._options)
        return stack([made.observation(row) for row in unstack(rows)], made.observation_space)


class _Observed(gym.Env[Any, Any]):
    """An environment of which nothing is known but the space of its observations."""

    def __init__(self, space: Space) -> None:
        self.observation_space, self.action_space = space, gym.spaces.Discrete(1)


def wrapped(piece: ConnectorV2, wrapper: type[Any], space: Space, options: Mapping[str, Any]) -> Any:
    """The wrapper around observations of `space`, for `piece`. Raises SpaceMismatch, MissingPackage."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}  # TOML has no tuples
    if isinstance(given.get("shape"), tuple):
        piece.check_size(given["shape"])
    try:
        return wrapper(_Observed(space), **given)
    except gym.error.DependencyNotInstalled as err:
        fix = "pip install 'offline-cli[atari]'"
        raise MissingPackage(f"{wrapper.__name__} needs a package: {err}", where="pipeline", fix=fix) from err
    except (AssertionError, TypeError, ValueError) as err:
        needs = f"what gymnasium's {wrapper.__name__} takes: {what_it_wants(err)}"
        raise piece.misfit(f"observations of {describe(space)}", needs, fix="see the wrapper's documentation") from err


def _checked(name: str, options: Mapping[str, Any]) -> type[Any]:
    found = getattr(gymnasium.wrappers, name, None)
    usable = {
        other: kind
        for other, kind in vars(gymnasium.wrappers).items()
        if inspect.isclass(kind) and issubclass(kind, TransformObservation) and kind not in _NOT_USABLE
    }
    if found is None or found not in usable.values():
        near = get_close_matches(name, usable, n=3, cutoff=0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(sorted(usable))}"
        why = "there is none of that name" if found is None else "it needs more than one observation at a time"
        raise BadConfig(f"gymnasium's wrapper {name!r} cannot be a piece: {why}", where="option wrapper", fix=fix)
    known = set(inspect.signature(found).parameters) - {"env"}
    if options.keys() - known:
        what = f"{name} has no option {', '.join(sorted(options.keys() - known))}"
        raise BadConfig(what, where=f"wrapper {name}", fix=f"it has {', '.join(sorted(known)) or 'none'}")
    return usable[name]


_NOT_USABLE = (TransformObservation, AddRenderObservation)
