"""Episodes from sources to columns of tensors, train and held-out; refuses actions and observations that no policy could learn.

Episodes are held out whole, by a hash of seed and id: the same ones in every run with the same seed, whatever their order.

Decisions: NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action
is never learned from, and may be anything. What else the learner pipeline gets: `applying/learner_episodes.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.applying.learner_episodes import check_known_scale, in_learner_units, learner_spaces, with_steps
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.connectors.state_bytes import state_from_bytes, state_to_bytes
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space, check_supported, leaf_spaces, tree_from_lists
from offline_cli.storage.locations import Sources
from offline_cli.training.config import BCConfig
from offline_cli.training.given_pipelines import Given, GivenPipeline, read_given
from offline_cli.training.learner_columns import choices_of, learner_columns
from offline_cli.training.play_pieces import PlayPieces, beside_learner, plays_alone
from offline_cli.trees import Tree, flatten

__all__ = ["TrainingData", "held_out", "load_data"]

PLACE: Final = "learner pipeline"


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
    pipeline: str = ""  # the learner pipeline's name; empty: the default one
    trained: TrainedPipeline | None = None  # what playing the policy takes, with its state; None: no pieces
    pieces: PlayPieces | None = None  # what it plays between in `environment`; None: no pieces


def load_data(
    sources: Sources,
    config: BCConfig,
    *,
    environment: Environment | None = None,
    pipeline: Given = None,
    env_to_module: Given = None,
    from_: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole, and put them through the learner pipeline: what it learns, it learns from what is not held out.

    Raises what `read_episodes` raises, NoData without a step, BadData for values outside the spaces; BadConfig for an unknown
    scale of Box actions. Before the data is read: SpaceMismatch where the policy could not play in `environment` or a piece
    cannot take the spaces, BadConfig where either pipeline is wrong; after that BadPiece for what a piece raises, or a state
    that cannot be saved.
    """
    given, beside = GivenPipeline.read(pipeline), read_given(env_to_module, "env_to_module", "learner")
    stream = read_episodes(
        sources,
        from_=from_,
        env=config.env,
        action_scale=config.action_scale,
        storage_options=storage_options,
        on_progress=on_progress,
    )
    where = ", ".join(stream.locations)
    check_known_scale(stream)
    said = stream.observation_space, stream.action_space
    observations, actions = learner_spaces(said, environment, inferred=stream.spaces_inferred, where=where)
    to_columns = given.build(observations, actions)
    seen, done = to_columns.observation_space or observations, to_columns.action_space or actions
    check_supported(seen, where="observations after the learner pipeline")
    alone = plays_alone(given, beside, list(to_columns.pieces()))
    pieces = None if environment is None or alone else beside_learner(given, beside)
    if environment is not None and pieces is not None:
        pieces.check(environment, seen, done, where=PLACE)
    episodes = _with_steps(stream, where)
    _check_values(episodes, episodes.acted_obs(), observations, "observations", where)
    _check_values(episodes, episodes.actions, actions, "actions", where)
    episodes = in_learner_units(episodes, actions, stream.action_scale)
    kept, aside = _split(episodes, config, where)
    train = learner_columns(to_columns, kept, (seen, done), where=where)
    to_columns.freeze()
    trained = None if alone else _trained(given, to_columns)
    if environment is not None and pieces is not None:
        pieces = replace(pieces, trained=trained)
        pieces.check(environment, seen, done, where=PLACE)  # what was learned has to find its piece, before hours of training
    return TrainingData(
        train=train,
        val=None if aside is None else learner_columns(to_columns, aside, (seen, done), where=where),
        observation_space=seen,
        action_space=done,
        action_scale=stream.action_scale,
        episodes=len(episodes),
        steps=episodes.num_steps,
        digest=_digest(episodes, whole=not given.is_default),
        pipeline=given.name if beside is None else f"{given.name}; beside the environment {GivenPipeline(beside).name}",
        trained=trained,
        pieces=pieces,
    )


def _trained(given: GivenPipeline, pipeline: ConnectorPipelineV2) -> TrainedPipeline:
    """What the pieces have learned, as a run folder will tell it. Raises BadPiece for a state that cannot be saved."""
    state = state_from_bytes(state_to_bytes(pipeline.get_state(), where=PLACE), where=PLACE)
    return TrainedPipeline(given.document, state, PLACE, tuple(name for name, _ in pipeline.named()))


def _with_steps(stream: EpisodeStream, where: str) -> EpisodeBatch:
    """All episodes that have a step. Raises NoData."""
    batches = [batch for batch in map(with_steps, stream) if len(batch)]
    if not batches:
        raise NoData("episodes without a single step", where=where, fix="record again")
    return EpisodeBatch.concat(batches)


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


def _check_values(episodes: EpisodeBatch, tree: Tree, space: Space, name: str, where: str) -> None:
    """Raise BadData, naming episode and step, for a value in `tree` (leaves (N, ...)) that is no number or no choice."""
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), leaf_spaces(space).values(), strict=True):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            place = _place(episodes, ~np.isfinite(leaf))
            fix = "take such steps out of the recording: a policy cannot learn from them"
            raise BadData(f"{path} hold NaN or infinity, first in {place}", where=where, fix=fix)
        low, high = choices_of(part)
        if low is not None and ((leaf < low) | (leaf > high)).any():
            place = _place(episodes, (leaf < low) | (leaf > high))
            fix = "--env with the environment the data is from, or convert again with the right space"
            raise BadData(f"{path} hold choices outside {part}, first in {place}", where=where, fix=fix)


def _place(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"


def _digest(episodes: EpisodeBatch, *, whole: bool) -> str:
    """`whole`: of all that pieces may read, rewards for instance, and not of observations and actions alone."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join(episodes.ids).encode("utf-8", "surrogatepass"))
    parts = [("starts", episodes.starts), *flatten(episodes.obs), *flatten(episodes.actions)]
    if whole:
        parts += [("rewards", episodes.rewards), ("terminated", episodes.terminated), ("truncated", episodes.truncated)]
        parts += flatten(dict(episodes.extra), "extra")
    for _, leaf in parts:
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")
    return digest.hexdigest()
