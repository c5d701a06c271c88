"""Episodes as a learner pipeline gets them, for `train-bc` and `apply` alike; refuses Box actions of unknown scale.

Decisions: episodes without a step teach nothing and are left out. Extra outputs that are text have no tensor form and are left
out too. Box actions come in the units of networks, as RLlib's pieces know them, whatever the scale they were recorded in.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from offline_cli.converting.misfits import misfits
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import check_scale
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = ["check_known_scale", "in_learner_units", "learner_spaces", "with_steps"]


def check_known_scale(stream: EpisodeStream) -> None:
    """Raise BadConfig where the scale of Box actions is unknown: before all the data is read, and never where none is a Box."""
    if stream.action_scale == UNKNOWN_SCALE:
        check_scale(stream.action_scale, where=", ".join(stream.locations))


def learner_spaces(
    said: tuple[Space, Space], environment: Environment | None, *, inferred: bool, where: str
) -> tuple[Space, Space]:
    """The spaces `said` by the data; the environment's where there is one: its bounds are what the policy will meet.

    Raises SpaceMismatch where a policy for the data could not play in `environment`.
    """
    if environment is None:
        return said
    own = environment.observation_space, environment.action_space
    problems = [
        text
        for what, space, theirs in zip(("observations", "actions"), said, own, strict=True)
        for text in misfits(space, theirs, inferred=inferred, what=what)
    ]
    if problems:
        fix = f"name the environment that the data is from, wrapped as it was, instead of --env {environment.name}"
        raise SpaceMismatch.of(problems, where=where, fix=fix)
    return own


def with_steps(episodes: EpisodeBatch) -> EpisodeBatch:
    """The episodes that have a step, with those of their extra outputs that are numbers."""
    numbers = {name: leaf for name, leaf in episodes.extra.items() if all(part.dtype.kind in "biuf" for part in leaves(leaf))}
    episodes = replace(episodes, extra=numbers)
    moving = np.flatnonzero(np.diff(episodes.starts))
    return episodes if len(moving) == len(episodes) else episodes.select(moving)


def in_learner_units(episodes: EpisodeBatch, action_space: Space, action_scale: str) -> EpisodeBatch:
    """`episodes`, whose actions are of `action_space`, with actions as a network learns them."""
    learned = in_network_units(episodes.actions, action_space, action_scale=action_scale)
    return replace(episodes, actions=learned, action_space=network_space(action_space))
