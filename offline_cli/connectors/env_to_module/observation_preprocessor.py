"""Observation preprocessors (user-defined, gymnasium's wrappers, RLlib's built-in ones) and the default env-to-module pipeline.

The result of a preprocessor replaces the observation in the episode, for all later pieces and the module. In an env-to-module
pipeline it takes the last observation of each episode, as in RLlib. Recordings hold raw observations, so a learner pipeline
needs the same preprocessor with `as_learner_connector=True`: there it takes all observations of each episode, lookback buffer
included.

`built_in_preprocessing` returns RLlib's preprocessor for a space (`preprocessor_pref="rllib"`): `AtariImages`, `AtariRam`,
`OneHot`, `FlattenObservations`, or none.

`env_to_module_pipeline` builds the default pipeline. Custom pieces come first, in the given order. Then, as in RLlib: the last
observations, a time axis of one step and states for stateful modules, the mapping to modules for several agents, stacking,
tensors. The pieces for stateful modules are always present and do nothing for others, so one pipeline serves any module.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import gymnasium as gym
import gymnasium.wrappers
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import AddRenderObservation, GrayscaleObservation, ResizeObservation, TransformObservation
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.common.batching import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
)
from offline_cli.connectors.common.flattening import (
    FlattenObservations,
    ObservationTransform,
    change_observations,
    check_no_obs,
)
from offline_cli.connectors.common.states_and_time import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, ConnectorV2, Episodes, TwoSidedPiece, what_it_wants
from offline_cli.connectors.piece_makers import Custom, custom_pieces
from offline_cli.connectors.torch_forms import Centred, Flat
from offline_cli.episodes.episode_spaces import hot_size, one_hot_leaf
from offline_cli.episodes.stacking import stack, unstack
from offline_cli.errors import BadConfig, MissingPackage
from offline_cli.spaces import Space, describe
from offline_cli.trees import Tree

__all__ = [
    "AtariImages",
    "AtariRam",
    "EnvToModulePipeline",
    "GymnasiumWrapper",
    "MultiAgentObservationPreprocessor",
    "ObservationPreprocessor",
    "OneHot",
    "SingleAgentObservationPreprocessor",
    "WriteObservationsToEpisodes",
    "built_in_preprocessing",
    "env_to_module_pipeline",
]


IMAGE_SHAPE, RAM_SHAPE = (210, 160, 3), (128,)
MIDDLE = np.float32(128)  # midpoint of a byte
NOT_USABLE = (TransformObservation, AddRenderObservation)


class _Preprocessor(ConnectorV2):
    """Base class: call `preprocess`, which subclasses define."""

    writes_episodes = True

    @abstractmethod
    def preprocess(self, *args: Any, **kwargs: Any) -> Any:
        """`preprocess(self, observation)` or `preprocess(self, observation, episode)`: the new observation."""

    def _preprocessing(self) -> Callable[[Any, Any], Any]:
        """`preprocess` as a function of (observation, episode); it gets the episode if it has a second parameter."""
        parameters = inspect.signature(self.preprocess).parameters.values()
        if any(p.name == "episode" and p.kind is p.KEYWORD_ONLY for p in parameters):
            return lambda observation, episode: self.preprocess(observation, episode=episode)
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes_two = len(placed) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
        return self.preprocess if takes_two else lambda observation, _: self.preprocess(observation)

    def _own_space(self, agent_id: Any) -> Space | None:
        """The observation space of one episode after this piece: its agent's part if the space is a Dict by agent."""
        space: Any = self.observation_space
        part: Space | None = space[agent_id] if isinstance(space, spaces.Dict) and agent_id in space.spaces else space
        return part


class SingleAgentObservationPreprocessor(_Preprocessor, TwoSidedPiece):
    """Call `preprocess` with each observation of each agent. Subclasses define it, and the resulting space.

    For whole arrays, derive from `ObservationTransform` instead.
    """

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """Change the episodes in place and return the unchanged batch. Raises BadPiece if the batch already has `obs`."""
        check_no_obs(self, batch)
        preprocess = self._preprocessing()

        def each(episode: Any, space: Space | None, rows: Tree) -> Tree:
            return stack([preprocess(one, episode) for one in unstack(rows)], space)

        for episode in self.single_agent_episode_iterator(episodes, not self._as_learner_connector):
            space = self._own_space(episode.agent_id)
            if self._as_learner_connector:
                change_observations(episode, partial(each, episode, space), space)
            else:
                changed = preprocess(episode.get_observations(-1), episode)
                episode.observation_space = space  # first, because the old space may not contain the new observation
                episode.set_observations(at_indices=-1, new_data=changed)
        return batch


class MultiAgentObservationPreprocessor(_Preprocessor):
    """Call `preprocess` with the last observations of all agents that stepped, a dict by agent; it returns such a dict."""

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The unchanged batch. Raises BadPiece for an agent that is not in the episode, and if the batch already has `obs`."""
        check_no_obs(self, batch)
        for episode in episodes:
            given: Any = episode
            for agent_id, observation in self._preprocessing()(given.get_observations(-1), given).items():
                agent = given.agent_episodes.get(agent_id)
                if agent is None:
                    what = f"preprocess returned an observation for {agent_id!r}, which is not in episode {given.id_}"
                    raise self.bad(what, fix="return observations only for the agents in its argument")
                if self.observation_space is not None:
                    agent.observation_space = self._own_space(agent_id)
                agent.set_observations(at_indices=-1, new_data=observation)
        return batch


ObservationPreprocessor = SingleAgentObservationPreprocessor


class _Observed(gym.Env[Any, Any]):
    """An environment that only declares its observation space."""

    def __init__(self, space: Space) -> None:
        self.observation_space, self.action_space = space, gym.spaces.Discrete(1)


class _Wrapping(ObservationTransform):
    """Nested observation wrappers of gymnasium, applied to one observation at a time."""

    wrappers: Sequence[tuple[type[Any], Mapping[str, Any]]] = ()  # each with its options

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """The last wrapper's space. Raises SpaceMismatch if a wrapper does not take the space, MissingPackage."""
        outer: Space = self._around(observations)[-1].observation_space
        return outer

    def transform(self, rows: Tree, space: Space, agent_id: Any) -> Tree:
        """Each observation after all wrappers."""
        made = self._around(space)
        found = [reduce(lambda seen, wrapper: wrapper.observation(seen), made, row) for row in unstack(rows)]
        return stack(found, made[-1].observation_space)

    def _around(self, space: Space) -> list[Any]:
        made: list[Any] = []
        for wrapper, options in self.wrappers:
            try:
                made.append(wrapper(_Observed(made[-1].observation_space if made else space), **options))
            except gym.error.DependencyNotInstalled as err:
                fix = "pip install 'offline-cli[atari]'"
                raise MissingPackage(f"{wrapper.__name__} needs a package: {err}", where="pipeline", fix=fix) from err
            except (AssertionError, TypeError, ValueError) as err:
                needs = f"input for gymnasium's {wrapper.__name__}: {what_it_wants(err)}"
                raise self.misfit(f"observations of {describe(space)}", needs, fix="see the wrapper's documentation") from err
        return made


class GymnasiumWrapper(_Wrapping):
    """Apply a wrapper of gymnasium: `GymnasiumWrapper(wrapper="ResizeObservation", options={"shape": (84, 84)})`."""

    def __init__(self, *spaces: Space | None, wrapper: str, options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """`options`: the wrapper's. Raises BadConfig for an unknown wrapper, or one that needs more than an observation."""
        found = getattr(gymnasium.wrappers, wrapper, None)
        if not (inspect.isclass(found) and issubclass(found, TransformObservation)) or found in NOT_USABLE:
            what = f"gymnasium has no wrapper {wrapper!r} that works on single observations"
            raise BadConfig(what, where="option wrapper", fix="see gymnasium's page on observation wrappers")
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in (options or {}).items()}
        self.wrappers = [(found, given)]  # TOML has no tuples
        super().__init__(*spaces, **kwargs)


# ---- built-in ----


class AtariImages(_Wrapping):
    """Atari images (210, 160, 3) uint8 to (dim, dim, 3 or 1) float32, by ResizeObservation and GrayscaleObservation."""

    def __init__(
        self, *spaces: Space | None, dim: int = 84, grayscale: bool = False, zero_mean: bool = False, **kwargs: Any
    ) -> None:
        self._zero_mean = zero_mean
        self.wrappers = [(ResizeObservation, {"shape": (dim, dim)})]  # resize first: OpenCV drops an axis of one channel
        self.wrappers += [(GrayscaleObservation, {"keep_dim": True})] if grayscale else []
        super().__init__(*spaces, **kwargs)

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0 or -1, 1). Raises SpaceMismatch for other observations, MissingPackage without OpenCV."""
        if not _is_bytes(observations, IMAGE_SHAPE):
            got = f"observations of {describe(observations)}"
            raise self.misfit(got, f"Box{IMAGE_SHAPE} of uint8", fix="use gymnasium_wrapper with ResizeObservation")
        shape = super().transformed_space(observations, actions).shape
        return spaces.Box(-1.0 if self._zero_mean else 0.0, 1.0, shape, np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, dim, dim, channels) for N images."""
        images = np.asarray(super().transform(rows, space, agent_id), np.float32)
        return _around_zero(images) if self._zero_mean else images / np.float32(255)


class AtariRam(ObservationTransform):
    """Atari RAM (128,) uint8 to float32 in [-1, 1)."""

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(-1, 1). Raises SpaceMismatch for other observations."""
        if not _is_bytes(observations, RAM_SHAPE):
            got = f"observations of {describe(observations)}"
            raise self.misfit(got, f"Box{RAM_SHAPE} of uint8", fix="make the environment with obs_type='ram'")
        return spaces.Box(-1.0, 1.0, RAM_SHAPE, np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, 128)."""
        return _around_zero(np.asarray(rows, np.float32))

    def to_torch(self) -> Any:
        return Centred()


def _is_bytes(space: Space, shape: tuple[int, ...]) -> bool:
    return isinstance(space, spaces.Box) and space.shape == shape and space.dtype == np.uint8


def _around_zero(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    return (numbers - MIDDLE) / MIDDLE


class OneHot(ObservationTransform):
    """Encode Discrete and MultiDiscrete observations as one-hot vectors, float32, counted from `start`.

    Discrete(3), 1 -> [0, 1, 0]; MultiDiscrete([3, 4]), [1, 3] -> [0, 1, 0, 0, 0, 0, 1].
    """

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0, 1). Raises SpaceMismatch for spaces other than Discrete and MultiDiscrete."""
        return spaces.Box(0.0, 1.0, (hot_size(self._counted(observations)),), np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, size) for N observations. Raises BadEpisode for a value outside the space."""
        vectors = one_hot_leaf(rows, self._counted(space), where=f"piece {type(self).__name__}")
        return vectors.reshape(len(vectors), -1)  # single choices may be arrays of length 1

    def to_torch(self) -> Any:
        return Flat(self.space_before(None))

    def _counted(self, space: Space) -> spaces.Discrete[Any] | spaces.MultiDiscrete:
        """The space. Raises SpaceMismatch unless it is Discrete or MultiDiscrete."""
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return space
        got = f"observations of {describe(space)}"
        raise self.misfit(got, "Discrete or MultiDiscrete", fix="use flatten_observations, which takes any space")


def built_in_preprocessing(observation_space: Space, *, as_learner_connector: bool = False, **images: Any) -> list[ConnectorV2]:
    """RLlib's built-in preprocessing: a list of at most one piece, which goes first. `images`: options of AtariImages."""
    side: dict[str, Any] = {"as_learner_connector": as_learner_connector}
    match observation_space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [OneHot(**side)]
        case spaces.Dict() | spaces.Tuple():
            return [FlattenObservations(**side)]
        case _ if _is_bytes(observation_space, IMAGE_SHAPE):
            return [AtariImages(**side, **images)]
    return [AtariRam(**side)] if _is_bytes(observation_space, RAM_SHAPE) else []


# ---- the default pipeline ----


class WriteObservationsToEpisodes(ConnectorV2):
    """Write the batch's observations back as the last observation of each episode. Only for env-to-module pipelines."""

    writes_episodes = True

    def __call__(self, *, batch: Batch, episodes: Episodes, **_: Any) -> Batch:
        """The batch. Raises BadPiece without observations and for numpy'ized episodes, ValueError for a wrong number."""
        if Columns.OBS not in batch:
            fix = "put AddObservationsFromEpisodesToBatch before it"
            raise self.bad(f"no column {Columns.OBS!r} among {sorted(batch)}", fix=fix)
        for episode, observation in self.single_agent_episode_iterator(episodes, zip_with_batch_column=batch[Columns.OBS]):
            if episode.is_numpy:
                what = f"episode {episode.id_} is numpy'ized; only ongoing episodes can be changed"
                raise self.bad(what, fix="use this piece in env-to-module pipelines only")
            episode.observation_space = self.observation_space
            episode.set_observations(at_indices=-1, new_data=observation)
        return batch


class EnvToModulePipeline(ConnectorPipelineV2):
    """Pipeline from ongoing episodes to the batch of a forward pass, one row per episode or agent."""


def env_to_module_pipeline(
    observation_space: Space,
    action_space: Space,
    *,
    custom: Custom = None,
    mapping: AgentToModuleMapping | None = None,
    env: Any = None,
    device: Any = None,
    num_envs: int = 1,
    add_default_connectors_to_env_to_module_pipeline: bool = True,
) -> EnvToModulePipeline:
    """Build a pipeline of custom pieces and, unless turned off, the default ones.

    `mapping`: the module of each agent, for several agents. `device`: of tensors, and passed to builders. Raises BadConfig like
    `custom_pieces`, and what the pieces raise for spaces that do not fit.
    """
    pieces = custom_pieces(custom, "env_to_module", observation_space, action_space, env=env, device=device, num_envs=num_envs)
    if add_default_connectors_to_env_to_module_pipeline:
        pieces += default_pieces(mapping, device)
    return EnvToModulePipeline(observation_space, action_space, connectors=pieces)


def default_pieces(mapping: AgentToModuleMapping | None, device: Any) -> list[ConnectorV2]:
    """The default pieces, in order."""
    return [
        AddObservationsFromEpisodesToBatch(),
        AddTimeDimToBatchAndZeroPad(),
        AddStatesFromEpisodesToBatch(),
        *([] if mapping is None else [mapping]),
        BatchIndividualItems(multi_agent=mapping is not None),
        NumpyToTensor(device=device),
    ]
