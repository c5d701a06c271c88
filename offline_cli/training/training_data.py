"""What a run learns from: sources, through the learner pipeline, into a store to learn from and one to validate on.

    TrainingSource -> checked episodes -> pipeline -> StoreBuilder -> Store -> StepLoader

Streaming changes the store and how many episodes go through the pipeline at a time, and nothing else. It is not chosen by
itself: whether a run streams decides in which order it learns from its steps, and that should follow from the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from offline_cli.connectors.pipeline_spec import Given
from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.formats.memory import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.tables.options import TableOptions
from offline_cli.modules.devices import use_threads
from offline_cli.options.shared import SOURCE_FORMAT
from offline_cli.policies.play_pieces import PlayPieces
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space
from offline_cli.storage.locations import Sources
from offline_cli.training.config import BCConfig
from offline_cli.training.data_summary import DataSummary, RewardFaults
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.learner_columns import nothing_left
from offline_cli.training.memory_bounds import InMemory, Shares
from offline_cli.training.step_store_builder import DiskStoreBuilder, MemoryStoreBuilder, StoreBuilder, learn_in_parts
from offline_cli.training.stores import Store
from offline_cli.training.training_source import TrainingSource, open_training_source
from offline_cli.training.validation_split import ValidationSplit
from offline_cli.trees import Tree

__all__ = ["TrainingData", "load_data"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """What an algorithm learns from."""

    train: Store
    val: Store | None  # None: nothing was held out
    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    episodes: int  # held-out ones included
    steps: int
    learner: Learner  # whose columns these are
    digest: str  # hex; the same for the same episodes in the same order, stored in the same way
    seen: Mapping[str, Any] = field(default_factory=dict)  # `DataSummary.figures`: what a digest that differs is explained by
    pipeline: str = ""  # the learner pipeline's name; empty: the default one
    trained: TrainedPipeline | None = None  # what playing the policy takes, with its state; None: no pieces
    pieces: PlayPieces | None = None  # what it plays between in `environment`; None: no pieces
    rewards: RewardFaults = field(default_factory=RewardFaults)
    columns_anew: Callable[[], Sequence[Mapping[str, Tree] | None]] | None = None  # of both stores, by the modules as they are

    def close(self) -> None:
        """Give back what it holds on disk."""
        for part in (self.train, self.val):
            if part is not None:
                part.close()


def load_data(
    sources: Sources,
    config: BCConfig,
    setup: Setup | None = None,
    *,
    environment: Environment | None = None,
    pipeline: Given = None,
    env_to_module: Given = None,
    from_: str = SOURCE_FORMAT.default,
    module_id: str | None = None,
    device: str = "cpu",
    temp_dir: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole, and put them through the learner pipeline: what it learns, it learns from what is not held out.

    `setup`: the algorithm and network of the configuration; None: they are looked up. With `config.streaming` the steps go to a
    file in `temp_dir`, which `TrainingData.close` ends; `device` is where training will run, whose libraries take memory.

    Raises what `read_episodes` raises, NoData without a step, BadData for values outside the spaces; BadConfig for an unknown
    scale of Box actions, where the memory limit does not do, and for episodes of several modules of which `module_id` names
    none. Before the data is read: SpaceMismatch where the policy could
    not play in `environment` or a piece cannot take the spaces, BadConfig where either pipeline is wrong, or cannot stream;
    after that BadPiece for what a piece raises, or a state that cannot be saved; StorageError where the disk is full.
    """
    shares = Shares.of(config.memory_limit, device) if config.streaming else None
    tables = None
    if shares is not None:
        tables = TableOptions(temp_dir=temp_dir, memory_limit=shares.tables)
    elif config.memory_limit is not None:
        tables = TableOptions(memory_limit=max(MEMORY_LIMIT, config.memory_limit))
    opening = open_training_source(
        sources,
        config,
        Setup.of(config) if setup is None else setup,
        environment=environment,
        pipeline=pipeline,
        env_to_module=env_to_module,
        from_=from_,
        module_id=module_id,
        storage_options=storage_options,
        on_progress=on_progress,
        tables=tables,
        episode_limit=None if shares is None else EpisodeLimit(shares.episode),
    )
    split = None if config.val_fraction is None else ValidationSplit(config.val_fraction, config.seed)
    with opening as source, ExitStack() as unfinished:
        builder: StoreBuilder
        if shares is None:
            limit = None
            if config.memory_limit is not None:
                limit = InMemory(config.memory_limit, device, source.announced, source.fetched)
            builder = MemoryStoreBuilder(source, limit)
        else:
            builder = DiskStoreBuilder(source, shares, seed=config.seed, holds_out=split is not None, temp_dir=temp_dir)
        unfinished.callback(builder.close)
        data = _built(source, split, builder)
        unfinished.pop_all()  # whoever has the data closes it
    return data


def _built(source: TrainingSource, split: ValidationSplit | None, builder: StoreBuilder) -> TrainingData:
    if split is not None:
        _settle(split, source, builder)
    if builder.in_parts:
        learn_in_parts(source, builder.parts, split)
        source.learned()
    summary = DataSummary(source.reads_every_leaf, in_parts=builder.in_parts)
    held_out, anew = 0, None
    with use_threads(1) if builder.in_parts else nullcontext():  # parts are small: more threads would wait for each other
        for checked in map(source.checked, builder.parts()):  # nothing holds what they are checked copies of
            summary.see(checked)
            kept, aside = (checked, None) if split is None else split.divided(checked)
            if len(kept):
                builder.add(source.columns(kept), held_out=False)
            trained, pieces = source.learned()  # from what is kept, if not before
            if aside is not None and len(aside):
                builder.add(source.columns(aside), held_out=True)
                held_out += len(aside)
            if source.learner.algorithm.refresh_every is not None:
                anew = partial(_columns, source, kept, aside)
        train, val = builder.finish()
    if split is not None and (held_out, summary.episodes) != (split.count, split.episodes):
        what = f"the source changed while it was read: {summary.episodes} episodes, and {split.episodes} before"
        raise BadData(what, where=source.where, fix="train on a copy of it")
    if not all(store.steps for store in (train, val) if store is not None):
        raise nothing_left()
    return TrainingData(
        train=train,
        val=val,
        observation_space=source.announced[0],
        action_space=source.announced[1],
        action_scale=source.action_scale,
        episodes=summary.episodes,
        steps=summary.steps,
        digest=summary.digest(builder.layout),
        seen=summary.figures(source.where, source.module),
        pipeline=source.name,
        trained=trained,
        pieces=pieces,
        rewards=summary.rewards,
        learner=source.learner,
        columns_anew=anew,
    )


def _columns(source: TrainingSource, *parts: EpisodeBatch | None) -> list[Mapping[str, Tree] | None]:
    """What the pipeline makes of each part with the modules as they are."""
    return [None if part is None else source.columns(part) for part in parts]


def _settle(split: ValidationSplit, source: TrainingSource, builder: StoreBuilder) -> None:
    """Find which episodes are held out. Raises BadConfig where one episode is all there is."""
    for ids in builder.ids():
        split.see(ids)
    try:
        split.settle()
    except ValueError as err:
        fix = "leave out --val-fraction"
        raise BadConfig("one episode cannot be split by --val-fraction", where=source.where, fix=fix) from err
