"""Episodes from sources to what a run learns from, train and held-out, in memory or streamed; refuses more than memory holds.

Without `streaming` all steps are in memory, several times over while they are put together. Where that exceeds a memory limit,
reading ends with an error that names `--streaming`. It is not chosen by itself: whether a run streams decides in which order it
learns from its steps, and that should follow from the command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, NoData
from offline_cli.progress import OnProgress
from offline_cli.storage.locations import Sources
from offline_cli.training.config import BCConfig
from offline_cli.training.given_pipelines import Given
from offline_cli.training.holding_out import held_out
from offline_cli.training.lesson import Lesson, prepare
from offline_cli.training.memory_bounds import InMemory
from offline_cli.training.reward_faults import RewardFaults
from offline_cli.training.seen_data import SeenData
from offline_cli.training.streaming import stream_data
from offline_cli.training.training_data import TrainingData
from offline_cli.trees import flatten

__all__ = ["TrainingData", "held_out", "load_data"]


def load_data(
    sources: Sources,
    config: BCConfig,
    *,
    environment: Environment | None = None,
    pipeline: Given = None,
    env_to_module: Given = None,
    from_: str = "auto",
    module_id: str | None = None,
    device: str = "cpu",
    temp_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole, and put them through the learner pipeline: what it learns, it learns from what is not held out.

    With `config.streaming` the steps go to a file in `temp_dir`, which `TrainingData.close` ends; `device` is where training
    will run, whose libraries take memory.

    Raises what `read_episodes` raises, NoData without a step, BadData for values outside the spaces; BadConfig for an unknown
    scale of Box actions, where the memory limit does not do, and for episodes of several modules of which `module_id` names
    none. Before the data is read: SpaceMismatch where the policy could
    not play in `environment` or a piece cannot take the spaces, BadConfig where either pipeline is wrong, or cannot stream;
    after that BadPiece for what a piece raises, or a state that cannot be saved; StorageError where the disk is full.
    """
    given: dict[str, Any] = {
        "environment": environment,
        "pipeline": pipeline,
        "env_to_module": env_to_module,
        "from_": from_,
        "module_id": module_id,
        "storage_options": storage_options,
        "on_progress": on_progress,
    }
    if config.streaming:
        return stream_data(sources, config, device=device, temp_dir=temp_dir, **given)
    with prepare(sources, config, **given) as lesson:
        return _in_memory(lesson, config, device)


def _in_memory(lesson: Lesson, config: BCConfig, device: str) -> TrainingData:
    episodes = lesson.checked(_with_steps(lesson, InMemory(config.memory_limit, device, lesson.announced, lesson.fetched)))
    rewards = RewardFaults()
    rewards.see(episodes)
    kept, aside = _split(episodes, config, lesson.where)
    train = lesson.columns(kept)
    trained, pieces = lesson.learned()
    seen = SeenData()
    seen.see(episodes.ids, episodes.num_steps)
    return TrainingData(
        train=train,
        val=None if aside is None else lesson.columns(aside),
        observation_space=lesson.announced[0],
        action_space=lesson.announced[1],
        action_scale=lesson.action_scale,
        episodes=len(episodes),
        steps=episodes.num_steps,
        digest=_digest(episodes, whole=not lesson.given.is_default),
        seen=seen.figures(lesson.where, lesson.module),
        pipeline=lesson.name,
        trained=trained,
        pieces=pieces,
        rewards=rewards,
    )


def _with_steps(lesson: Lesson, memory: InMemory) -> EpisodeBatch:
    """All episodes that have a step. Raises NoData, BadConfig where they are too many for the memory limit."""
    batches = list(memory.checked(lesson.episodes(), where=lesson.where))
    if not batches:
        raise NoData("episodes without a single step", where=lesson.where, fix="record again")
    return EpisodeBatch.concat(batches)


def _split(episodes: EpisodeBatch, config: BCConfig, where: str) -> tuple[EpisodeBatch, EpisodeBatch | None]:
    if config.val_fraction is None:
        return episodes, None
    if len(episodes) < 2:
        raise BadConfig("one episode cannot be split by --val-fraction", where=where, fix="leave out --val-fraction")
    aside = held_out(episodes.ids, config.val_fraction, config.seed)
    return episodes.select(np.flatnonzero(~aside)), episodes.select(np.flatnonzero(aside))


def _digest(episodes: EpisodeBatch, *, whole: bool) -> str:
    """`whole`: of all that pieces may read, rewards for instance, and not of observations and actions alone."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join(episodes.ids).encode("utf-8", "surrogatepass"))
    parts: list[tuple[str, Any]] = [("starts", episodes.starts), *flatten(episodes.obs), *flatten(episodes.actions)]
    if whole:
        parts += [("rewards", episodes.rewards), ("terminated", episodes.terminated), ("truncated", episodes.truncated)]
        parts += flatten(dict(episodes.extra), "extra")
    for _, leaf in parts:
        digest.update(f"{leaf.dtype}{leaf.shape}".encode())
        digest.update(np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")
    return digest.hexdigest()
