"""Episodes as a learner pipeline gets them, for `train-bc` and `apply` alike, and the batch that it makes of them.

Decisions: episodes without a step teach nothing and are left out. Extra outputs that are text have no tensor form and are left
out too. Box actions come in the units of networks, as RLlib's pieces know them, whatever the scale they were recorded in; an
unknown scale is an error. Episodes are grouped until they have the steps that are asked for: a group closes with the episode
that brings it there, so that it depends on the episodes and their order alone, and not on how they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, Episodes
from offline_cli.connectors.what_it_wants import what_it_wants
from offline_cli.converting.misfits import misfits
from offline_cli.converting.reading import EpisodeStream
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadPiece, OfflineCliError, SpaceMismatch
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import check_scale
from offline_cli.spaces import Space
from offline_cli.trees import leaves

__all__ = ["check_known_scale", "grouped", "in_learner_units", "learner_spaces", "stepped", "through", "with_steps"]


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


def grouped(batches: Iterable[EpisodeBatch], steps: int) -> Iterator[EpisodeBatch]:
    """Batches of whole episodes, in order, of at least `steps` steps each; the last one may have fewer."""
    pending: list[EpisodeBatch] = []
    missing = steps
    for batch in batches:
        ends, first = batch.starts[1:], 0
        while first < len(batch):
            before = int(batch.starts[first])
            stop = min(len(batch), int(np.searchsorted(ends, before + missing)) + 1)
            pending.append(batch.select(slice(first, stop)))
            missing -= int(batch.starts[stop]) - before
            first = stop
            if missing <= 0:
                yield EpisodeBatch.concat(pending)
                pending, missing = [], steps
    if pending:
        yield EpisodeBatch.concat(pending)


def stepped(
    pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str, rl_module: Any = None
) -> Iterator[tuple[str, Batch, Episodes]]:
    """After each piece its unique name, the batch, and the episodes as later pieces see them.

    Raises BadPiece, with the names of the piece and of the first episode, for whatever a piece raises; our own errors keep
    their class and say the episode too. `where` names the sources.
    """
    place = f"train batch from episode {episodes.ids[0]} of {where}"
    pending = [name for name, _ in pipeline.named()]
    try:
        for step in pipeline.stepwise(episodes=episodes, rl_module=rl_module):
            pending.pop(0)
            yield step
    except OfflineCliError as err:
        err.where = f"{err.where}, {place}"
        raise
    except MemoryError:
        raise
    except Exception as err:  # pieces may be the user's own, and raise whatever they like
        name = pending[0] if pending else type(pipeline).__name__
        fix = "`offline-cli apply --trace 1` shows the batch before this piece, --debug where it raised"
        raise BadPiece(f"piece {name} raised {what_it_wants(err)}", where=f"piece {name}, {place}", fix=fix) from err


def through(
    pipeline: ConnectorPipelineV2, episodes: EpisodeBatch, *, where: str, rl_module: Any = None
) -> tuple[Batch, dict[str, str]]:
    """The train batch of `episodes`, and which piece put each of its columns in. Raises as `stepped` does."""
    batch: Batch = {}
    added: dict[str, str] = {}
    for name, after, _ in stepped(pipeline, episodes, where=where, rl_module=rl_module):
        batch = after
        for column in after:
            added.setdefault(column, name)
    return batch, added
