"""Preprocessing of observations by the rules of RLlib's built-in preprocessors (`preprocessor_pref="rllib"`).

* `AtariImages`: images (210, 160, 3) are scaled down to `dim` x `dim`, to one channel with `grayscale`, and lie in [0, 1], or
  with `zero_mean` in [-1, 1).
* `AtariRam`: RAM (128,) in [-1, 1).
* `OneHot`: choices as ones and zeros.
* `built_in_preprocessing`: the piece that an observation space calls for, or none. Discrete and MultiDiscrete are one-hot
  encoded, Dict and Tuple flattened (their Discrete parts one-hot encoded), Atari's images scaled down, its RAM centred around
  zero. Everything else goes to the module as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import GrayscaleObservation, ResizeObservation
from numpy.typing import NDArray

from offline_cli.connectors.common.flattening import FlattenObservations
from offline_cli.connectors.common.observation_transform import ObservationTransform
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.observation_preprocessor import wrapped
from offline_cli.episodes.episode_spaces import hot_size, one_hot_leaf
from offline_cli.spaces import Space, describe

__all__ = [
    "IMAGE_SHAPE",
    "RAM_SHAPE",
    "AtariImages",
    "AtariRam",
    "OneHot",
    "built_in_preprocessing",
    "is_atari_image",
    "is_atari_ram",
]

IMAGE_SHAPE, RAM_SHAPE = (210, 160, 3), (128,)
MIDDLE = np.float32(128)  # of a byte, and what zero-mean numbers are counted from


def is_atari_image(space: Space) -> bool:
    """Whether these are the images of an Atari game as it shows them."""
    return isinstance(space, spaces.Box) and space.shape == IMAGE_SHAPE and space.dtype == np.uint8


def is_atari_ram(space: Space) -> bool:
    """Whether this is the memory of an Atari console."""
    return isinstance(space, spaces.Box) and space.shape == RAM_SHAPE and space.dtype == np.uint8


class AtariImages(ObservationTransform):
    """(210, 160, 3) uint8 to (dim, dim, 3 or 1) float32, by gymnasium's ResizeObservation and GrayscaleObservation.

    Those take one image at a time; in learner pipelines too, where nearly all of the time goes into the resizing itself.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        dim: int = 84,
        grayscale: bool = False,
        zero_mean: bool = False,
        **kwargs: Any,
    ) -> None:
        self._dim, self._grayscale, self._zero_mean = dim, grayscale, zero_mean
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0 or -1, 1). Raises SpaceMismatch for other observations, MissingPackage without OpenCV."""
        if not is_atari_image(observations):
            got = f"observations of {describe(observations)}"
            raise self.misfit(got, f"Box{IMAGE_SHAPE} of uint8", fix="gymnasium_wrapper with ResizeObservation")
        low = -1.0 if self._zero_mean else 0.0
        return spaces.Box(low, 1.0, self._wrappers(observations)[-1].observation_space.shape, np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, dim, dim, channels) for N images."""
        wrappers = self._wrappers(space)
        images = np.empty((len(rows), *wrappers[-1].observation_space.shape), np.float32)
        for index, image in enumerate(rows):
            for wrapper in wrappers:
                image = wrapper.observation(image)
            images[index] = image
        if self._zero_mean:
            return _around_zero(images)
        images /= 255
        return images

    def _wrappers(self, space: Space) -> list[Any]:
        """In the order of their use. Resized first: OpenCV drops an axis of one channel."""
        resized = wrapped(self, ResizeObservation, space, {"shape": (self._dim, self._dim)})
        if not self._grayscale:
            return [resized]
        return [resized, wrapped(self, GrayscaleObservation, resized.observation_space, {"keep_dim": True})]


class AtariRam(ObservationTransform):
    """(128,) uint8 to float32 in [-1, 1)."""

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(-1, 1). Raises SpaceMismatch for other observations."""
        if not is_atari_ram(observations):
            got = f"observations of {describe(observations)}"
            raise self.misfit(got, f"Box{RAM_SHAPE} of uint8", fix="make the environment with obs_type='ram'")
        return spaces.Box(-1.0, 1.0, RAM_SHAPE, np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, 128) for N memories."""
        return _around_zero(np.asarray(rows, np.float32))


def _around_zero(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    return (numbers - MIDDLE) / MIDDLE


class OneHot(ObservationTransform):
    """Discrete(n) becomes (n,) float32, MultiDiscrete the vectors of its parts, one after the other. `start` is honoured.

    Discrete(3), 1 -> [0, 1, 0]; MultiDiscrete([3, 4]), [1, 3] -> [0, 1, 0, 0, 0, 0, 1].
    """

    def transformed_space(self, observations: Space, actions: Space) -> Space:
        """Box(0, 1). Raises SpaceMismatch for other spaces than Discrete and MultiDiscrete."""
        size = hot_size(self._counted(observations))
        self.check_size((size,))
        return spaces.Box(0.0, 1.0, (size,), np.float32)

    def transform(self, rows: Any, space: Space, agent_id: Any) -> NDArray[np.float32]:
        """(N, size) for N observations. Raises BadEpisode for a value outside the space."""
        vectors = one_hot_leaf(rows, self._counted(space), where=f"piece {type(self).__name__}")
        return vectors.reshape(len(vectors), -1)  # single choices may come as arrays of one

    def _counted(self, space: Space) -> spaces.Discrete[Any] | spaces.MultiDiscrete:
        """The space, which counts choices."""
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return space
        got = f"observations of {describe(space)}"
        raise self.misfit(got, "Discrete or MultiDiscrete", fix="flatten_observations takes any space apart")


def built_in_preprocessing(
    observation_space: Space,
    *,
    as_learner_connector: bool = False,
    dim: int = 84,
    grayscale: bool = False,
    zero_mean: bool = False,
) -> list[ConnectorV2]:
    """No piece or one, to be put first. `dim`, `grayscale` and `zero_mean` are for Atari's images."""
    match observation_space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [OneHot(as_learner_connector=as_learner_connector)]
        case spaces.Dict() | spaces.Tuple():
            return [FlattenObservations(as_learner_connector=as_learner_connector)]
    if is_atari_image(observation_space):
        return [
            AtariImages(dim=dim, grayscale=grayscale, zero_mean=zero_mean, as_learner_connector=as_learner_connector),
        ]
    return [AtariRam(as_learner_connector=as_learner_connector)] if is_atari_ram(observation_space) else []
