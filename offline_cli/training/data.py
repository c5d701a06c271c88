"""Episodes from sources to columns of tensors, train and held-out; refuses actions and observations that no policy could learn.

Episodes are held out whole, by a hash of seed and id: the same ones in every run with the same seed, whatever their order.

Decisions: NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action
is never learned from, and may be anything. Episodes without a step teach nothing and are left out. Extra outputs that are text
have no tensor form and are left out too. Box actions come to the learner pipeline in the units of networks, as RLlib's pieces
know them, whatever the scale they were recorded in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.connectors.learner.default_pipeline import LearnerPipeline, learner_pipeline
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, SpaceMismatch
from offline_cli.formats.source import UNKNOWN_SCALE
from offline_cli.modules.action_units import in_network_units, network_space
from offline_cli.modules.distributions import check_scale
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space, leaf_spaces, tree_from_lists
from offline_cli.storage.locations import Sources
from offline_cli.training.config import BCConfig
from offline_cli.training.misfits import misfits
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["TrainingData", "held_out", "load_data"]

TRAINED_ON = (Columns.OBS, Columns.ACTIONS)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """What behaviour cloning learns from; columns are `obs` and `actions` as trees of tensors (N, ...) on the CPU."""

    train: Mapping[str, Tree]
    val: Mapping[str, Tree] | None  # None: nothing was held out
    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    episodes: int  # held-out ones included
    steps: int
    digest: str  # hex; the same for the same episodes in the same order


def load_data(
    sources: Sources,
    config: BCConfig,
    *,
    environment: Environment | None = None,
    pipeline: LearnerPipeline | None = None,
    from_: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole. Raises what `read_episodes` raises, NoData without a step, BadData for values outside the spaces,
    SpaceMismatch where the policy could not play in `environment`, BadConfig where the learner pipeline is wrong or the scale
    of Box actions unknown.
    """
    stream = read_episodes(
        sources,
        from_=from_,
        env=config.env,
        action_scale=config.action_scale,
        storage_options=storage_options,
        on_progress=on_progress,
    )
    where = ", ".join(stream.locations)
    if stream.action_scale == UNKNOWN_SCALE:  # known before all the data is read; never so where no action is a Box
        check_scale(stream.action_scale, where=where)
    observations, actions = _spaces(stream, environment, where)
    episodes = _with_steps(stream, where)
    _check_values(episodes, episodes.acted_obs(), observations, "observations", where)
    _check_values(episodes, episodes.actions, actions, "actions", where)
    learned = in_network_units(episodes.actions, actions, action_scale=stream.action_scale)
    episodes = replace(episodes, actions=learned, action_space=network_space(actions))
    to_columns = learner_pipeline(observations, actions, custom=pipeline)
    kept, aside = _split(episodes, config, where)
    seen, done = to_columns.observation_space or observations, to_columns.action_space or actions

    def columns(part: EpisodeBatch) -> dict[str, Tree]:
        batch = to_columns(episodes=part)
        return {name: _as_declared(batch, name, space) for name, space in zip(TRAINED_ON, (seen, done), strict=True)}

    return TrainingData(
        train=columns(kept),
        val=None if aside is None else columns(aside),
        observation_space=seen,
        action_space=done,
        action_scale=stream.action_scale,
        episodes=len(episodes),
        steps=episodes.num_steps,
        digest=_digest(episodes),
    )


def _with_steps(stream: EpisodeStream, where: str) -> EpisodeBatch:
    """All episodes that have a step. Raises NoData."""
    batches = [batch for batch in stream if batch.num_steps]
    if not batches:
        raise NoData("episodes without a single step", where=where, fix="record again")
    episodes = EpisodeBatch.concat(batches)
    numbers = {name: leaf for name, leaf in episodes.extra.items() if all(part.dtype.kind in "biuf" for part in leaves(leaf))}
    episodes = replace(episodes, extra=numbers)
    moving = np.flatnonzero(np.diff(episodes.starts))
    return episodes if len(moving) == len(episodes) else episodes.select(moving)


def _as_declared(batch: Mapping[str, Any], name: str, space: Space) -> Tree:
    """A column of the learner pipeline, in the structure that the pipeline announced. Raises BadConfig for another."""
    fix = "a piece that changes shapes says so in recompute_output_observation_space or recompute_output_action_space"
    tree = tree_from_lists(batch[name], space)
    shapes = {path: tuple(leaf.shape[1:]) for path, leaf in flatten(tree, name)}
    announced = {path: tuple(leaf.shape or ()) for path, leaf in leaf_spaces(space, name).items()}
    if shapes != announced:
        what = f"the pipeline gave rows of {shapes}, and announced {announced}"
        raise BadConfig(what, where="learner pipeline", fix=fix)
    return tree


def held_out(ids: tuple[str, ...], fraction: float, seed: int) -> NDArray[np.bool_]:
    """(E,) which episodes are held out: at least one, and never all. Raises ValueError for fewer than two."""
    if len(ids) < 2:
        raise ValueError("fewer than two episodes")
    salt = str(seed).encode()
    ranks = [hashlib.blake2b(id_.encode(), digest_size=8, key=salt[:64]).digest() for id_ in ids]
    count = min(max(1, round(fraction * len(ids))), len(ids) - 1)
    chosen = np.zeros(len(ids), np.bool_)
    chosen[sorted(range(len(ids)), key=lambda i: (ranks[i], ids[i]))[:count]] = True
    return chosen


def _split(episodes: EpisodeBatch, config: BCConfig, where: str) -> tuple[EpisodeBatch, EpisodeBatch | None]:
    if config.val_fraction is None:
        return episodes, None
    if len(episodes) < 2:
        raise BadConfig("one episode cannot be split by --val-fraction", where=where, fix="leave out --val-fraction")
    aside = held_out(episodes.ids, config.val_fraction, config.seed)
    return episodes.select(np.flatnonzero(~aside)), episodes.select(np.flatnonzero(aside))


def _spaces(stream: EpisodeStream, environment: Environment | None, where: str) -> tuple[Space, Space]:
    """The environment's spaces where there is one that fits: its bounds are what the policy will meet."""
    if environment is None:
        return stream.observation_space, stream.action_space
    inferred = stream.spaces_inferred
    problems = [
        *misfits(stream.observation_space, environment.observation_space, inferred=inferred, what="observations"),
        *misfits(stream.action_space, environment.action_space, inferred=inferred, what="actions"),
    ]
    if problems:
        fix = f"name the environment that the data is from, wrapped as it was, instead of --env {environment.name}"
        raise SpaceMismatch.of(problems, where=where, fix=fix)
    return environment.observation_space, environment.action_space


def _check_values(episodes: EpisodeBatch, tree: Tree, space: Space, name: str, where: str) -> None:
    """Raise BadData, naming episode and step, for a value in `tree` (leaves (N, ...)) that is no number or no choice."""
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), leaf_spaces(space).values(), strict=True):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            place = _place(episodes, ~np.isfinite(leaf))
            fix = "take such steps out of the recording: a policy cannot learn from them"
            raise BadData(f"{path} hold NaN or infinity, first in {place}", where=where, fix=fix)
        low, high = _choices(part)
        if low is not None and ((leaf < low) | (leaf > high)).any():
            place = _place(episodes, (leaf < low) | (leaf > high))
            fix = "--env with the environment the data is from, or convert again with the right space"
            raise BadData(f"{path} hold choices outside {part}, first in {place}", where=where, fix=fix)


def _place(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"


def _choices(space: Space) -> tuple[Any, Any]:
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            return space.start, np.add(space.start, space.nvec, dtype=np.int64) - 1
        case spaces.MultiBinary():
            return 0, 1
    return None, None


def _digest(episodes: EpisodeBatch) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join(episodes.ids).encode("utf-8", "surrogatepass"))
    for _, leaf in (("starts", episodes.starts), *flatten(episodes.obs), *flatten(episodes.actions)):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")
    return digest.hexdigest()
