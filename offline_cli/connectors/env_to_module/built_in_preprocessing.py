"""The piece that an observation space calls for, by the rules of RLlib's built-in preprocessors; refuses nothing: none may.

Discrete and MultiDiscrete are one-hot encoded, Dict and Tuple flattened (their Discrete parts one-hot encoded), Atari's images
scaled down, its RAM centred around zero. Everything else goes to the module as it is.
"""

from __future__ import annotations

from gymnasium import spaces

from offline_cli.connectors.common.flatten_observations import FlattenObservations
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.env_to_module.atari import AtariImages, AtariRam, is_atari_image, is_atari_ram
from offline_cli.connectors.env_to_module.one_hot import OneHot
from offline_cli.spaces import Space

__all__ = ["built_in_preprocessing"]


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
