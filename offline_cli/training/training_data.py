"""What a run learns from: sources, through the learner pipeline, into a store to learn from and one to validate on.

    TrainingSource -> checked episodes -> pipeline -> StoreBuilder -> Store -> StepLoader

Streaming changes the store and how many episodes go through the pipeline at a time, and nothing else. It is not chosen by
itself: whether a run streams decides in which order it learns from its steps, and that should follow from the command.

Of the data a run keeps a digest, which decides whether a resumed run has the same, figures small enough for a checkpoint, which
say in words what differs where it has not, and faults that are counted.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.applying.checked_values import place_of_first
from offline_cli.applying.learned_pieces import Unchanged
from offline_cli.applying.learner_batches import in_parts, nothing_left, with_steps
from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec
from offline_cli.environments import Environment, EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.tables.source import PLAIN_TABLES, TableOptions
from offline_cli.modules.devices import use_threads
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.progress import OnProgress
from offline_cli.spaces import Space
from offline_cli.storage.locations import Sources
from offline_cli.training.algorithms.algorithm import bootstraps
from offline_cli.training.config_model import BCConfig
from offline_cli.training.disk_store import DiskStoreBuilder
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.loader import Store, StoreBuilder, ValidationSplit
from offline_cli.training.memory_store import InMemory, MemoryStoreBuilder, Shares
from offline_cli.training.mixing import Selection, row_sources
from offline_cli.training.training_source import TrainingSource, open_training_source
from offline_cli.trees import Tree, flatten

__all__ = ["DataSummary", "RewardFaults", "TrainingData", "data_difference", "load_data"]

MASK: Final = (1 << 64) - 1


@dataclass(slots=True)
class RewardFaults:
    """NaN and infinite rewards, whether all are 0, and where returns lie, held-out episodes included: counted and named."""

    nan: int = 0
    infinite: int = 0
    first: str = ""  # episode and step
    all_zero: bool = True  # of those seen
    returns: tuple[float, float] = (math.inf, -math.inf)  # the lowest and the highest that is finite

    def see(self, episodes: EpisodeBatch) -> None:
        """Look at the rewards of `episodes`, each once."""
        self.all_zero = self.all_zero and not episodes.rewards.any()
        finite = np.isfinite(episodes.rewards)
        returns = episodes.returns
        known = returns[np.isfinite(returns)]
        if len(known):
            self.returns = min(self.returns[0], float(known.min())), max(self.returns[1], float(known.max()))
        if finite.all():
            return
        nan = int(np.count_nonzero(np.isnan(episodes.rewards)))
        self.nan += nan
        self.infinite += int(np.count_nonzero(~finite)) - nan
        self.first = self.first or place_of_first(episodes, ~finite)

    def counts(self) -> dict[str, int]:
        """By kind, as `validate` calls them; kinds that do not occur have no key."""
        found = {"nan-in-rewards": self.nan, "infinite-in-rewards": self.infinite}
        return {kind: count for kind, count in found.items() if count}

    def notes(self, unused_by: str | None) -> list[str]:
        """As text; empty: there are none. `unused_by`: the algorithm, where it does not learn from rewards."""
        named = ", ".join(f"{kind} {count:,}" for kind, count in self.counts().items())
        why = "" if unused_by is None else f"; {unused_by} does not use them"
        return [f"rewards that are not finite, first in {self.first}: {named}{why}"] if named else []

    def note_on_zeros(self) -> list[str]:
        """As text, where there is nothing to learn from."""
        return ["all rewards are 0: by them no action is better than another"] if self.all_zero else []


@dataclass(slots=True)
class DataSummary:
    """Collected batch by batch, over all episodes, held-out ones included."""

    every_leaf: bool  # the digest is of all that pieces may read, rewards for instance, and not of obs and actions alone
    episodes: int = 0
    steps: int = 0
    invented: int = 0  # episodes that do not end at an observation that was recorded
    agents: Counter[str] = field(default_factory=Counter)  # whose episodes they are, how many of each
    rewards: RewardFaults = field(default_factory=RewardFaults)
    _ids: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    _ids_in_any_order: int = 0
    _leaves: dict[str, Any] = field(default_factory=dict)  # a running hash of each, whatever parts episodes come in

    def see(self, episodes: EpisodeBatch) -> None:
        """Take more episodes into account, each once."""
        encoded = [id_.encode("utf-8", "surrogatepass") + b"\n" for id_ in episodes.ids]
        self._ids.update(b"".join(encoded))
        self._ids_in_any_order = (self._ids_in_any_order + sum(map(zlib.crc32, encoded))) & MASK
        self.episodes, self.steps = self.episodes + len(episodes), self.steps + episodes.num_steps
        self.invented += int(np.count_nonzero(episodes.invented_ends))
        self.agents.update(filter(None, episodes.agent_ids or ()))
        self.rewards.see(episodes)
        self._hash("ids", b"".join(encoded))
        for path, leaf in [("lengths", episodes.lengths), *self._read(episodes)]:
            self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", _bytes(leaf))

    def _hash(self, name: str, data: Any) -> None:
        if name not in self._leaves:
            self._leaves[name] = hashlib.blake2b(digest_size=16)
        self._leaves[name].update(data)

    def _read(self, episodes: EpisodeBatch) -> list[tuple[str, NDArray[Any]]]:
        """The leaves that may be learned from, by path."""
        trees: dict[str, Tree] = {Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        return list(flatten(trees))

    def digest(self, layout: str) -> str:
        """Hex; the same for the same episodes in the same order, and the same `layout`: how parts of them are stored."""
        lines = [layout, *(f"{name} {known.hexdigest()}" for name, known in sorted(self._leaves.items()))]
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self, where: str, module: str | None) -> dict[str, Any]:
        """Plain values; `where`: the sources, `module`: the one that is learned, where that is known."""
        ids = {"ids": self._ids.hexdigest(), "ids_in_any_order": f"{self._ids_in_any_order:016x}"}
        return {"sources": where, "module": module, "episodes": self.episodes, "steps": self.steps, **ids}


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
    invented: int  # of the episodes, those whose last step is left out, or bootstrapped from an observation nobody recorded
    learner: Learner  # whose columns these are
    given_space: Space  # of an environment's observations: before the learner pipeline
    digest: str  # hex; the same for the same episodes in the same order, stored in the same way
    seen: Mapping[str, Any] = field(default_factory=dict)  # `DataSummary.figures`: what a digest that differs is explained by
    pipeline: str = ""  # the learner pipeline's name; empty: the default one
    trained: PipelineSpec | None = None  # what playing the policy takes, with its state; None: no pieces
    pieces: PlaySpec | None = None  # what it plays between in `environment`; None: no pieces
    rewards: RewardFaults = field(default_factory=RewardFaults)
    played_in: EnvironmentSpec | None = None  # for checks; None: none are played
    recorded_in: EnvironmentSpec | None = None  # what the data is of; None: not known, or not one
    environment_notes: tuple[str, ...] = ()  # on what either says of the other
    selection: Selection = field(default_factory=Selection)  # of the episodes, as it was made
    source_notes: tuple[str, ...] = ()
    code: Sequence[Any] = ()  # what makes the pieces that the user gave
    columns_anew: Callable[[], Sequence[Mapping[str, Tree] | None]] | None = None  # of both stores, by the modules as they are

    def close(self) -> None:
        """Release what it holds on disk."""
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
    from_: str = SOURCE_FORMAT,
    module_id: str | None = None,
    device: str = "cpu",
    tables: TableOptions = PLAIN_TABLES,
    selection: Selection | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole, and put them through the learner pipeline: it learns from training episodes only.

    `setup`: the algorithm and network of the configuration; None: they are looked up. With `config.streaming` the steps go to a
    file in the `temp_dir` of `tables`, which `TrainingData.close` ends; `device` is where training will run: its libraries take
    memory.

    Raises what `read_episodes` raises, NoData where no episode has steps, BadData outside the spaces; BadConfig for an unknown
    scale of Box actions, where the memory limit does not do, and for episodes of several modules of which `module_id` names
    none. Before the data is read: SpaceMismatch where the policy could
    not play in `environment` or a piece cannot take the spaces, BadConfig where either pipeline is wrong, or cannot stream;
    after that BadPiece for what a piece raises, or a state that cannot be saved; StorageError where the disk is full.
    """
    shares = Shares.of(config.memory_limit, device) if config.streaming else None
    temp_dir = tables.temp_dir
    if shares is not None:
        tables = replace(tables, memory_limit=shares.tables)
    elif config.memory_limit is not None:
        tables = replace(tables, memory_limit=max(MEMORY_LIMIT, config.memory_limit))
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
        selection=selection,
    )
    split = None if config.val_fraction is None else ValidationSplit(config.val_fraction, config.seed)
    with opening as source, ExitStack() as unfinished:
        builder: StoreBuilder
        if shares is None:
            limit = None
            if config.memory_limit is not None:
                limit = InMemory(config.memory_limit, device, source.held, source.fetched)
            builder = MemoryStoreBuilder(source, limit, seed=config.seed)
        else:
            builder = DiskStoreBuilder(source, shares, seed=config.seed, holds_out=split is not None, temp_dir=temp_dir)
        unfinished.callback(builder.close)
        data = _built(source, split, builder)
        unfinished.pop_all()  # the owner of the data closes it
    return data


def _built(source: TrainingSource, split: ValidationSplit | None, builder: StoreBuilder) -> TrainingData:
    source.choose()
    if split is not None:
        _settle(split, source, builder)
    source.learn(lambda: _learned_from(source, builder, split))
    trained, pieces = source.learned()
    unchanged = Unchanged(source.connectors)
    summary = DataSummary(source.reads_every_leaf)
    held_out, learned, anew = 0, 0, None
    with use_threads(1) if builder.in_parts else nullcontext():  # parts are small: more threads would wait for each other
        for checked in map(source.checked, builder.parts()):  # nothing holds what they are checked copies of
            summary.see(checked)
            kept, aside = (checked, None) if split is None else split.divided(checked)
            origins = _origins(source.selection, checked, split)
            learned += kept.num_steps
            if kept.num_steps:
                columns = source.columns(kept)
                sources = None if origins is None else row_sources(columns, kept, origins)
                builder.add(columns, held_out=False, sources=sources)
                del columns
            if summary.episodes == len(checked):
                unchanged.check()
            if aside is not None and aside.num_steps:
                builder.add(source.columns(aside), held_out=True)
            held_out += 0 if aside is None else len(aside)
            if source.learner.algorithm.refresh_every is not None:
                anew = partial(_columns, source, kept, aside)
        unchanged.check()
        if not learned or (split is not None and learned == summary.steps):
            what = "no step, or none to validate on, leads to an observation that was recorded"
            raise NoData(what, where=source.where, fix="record new_obs too, or --keep-invented to learn from copies of obs")
        train, val = builder.finish()
    if split is not None and (held_out, summary.episodes) != (split.count, split.episodes):
        what = f"the source changed while it was read: {summary.episodes} episodes, and {split.episodes} before"
        raise BadData(what, where=source.where, fix="train on a copy of it")
    if not all(store.steps for store in (train, val) if store is not None):
        raise nothing_left()
    mixed: dict[str, Any] = {"weights": builder.mixed} if builder.mixed else {}
    return TrainingData(
        train=train,
        val=val,
        observation_space=source.announced[0],
        action_space=source.announced[1],
        action_scale=source.action_scale,
        episodes=summary.episodes,
        steps=summary.steps,
        invented=summary.invented if bootstraps(source.learner.algorithm) else 0,
        digest=_with(summary.digest(builder.layout), mixed),
        seen=summary.figures(source.where, source.module) | mixed,
        selection=source.selection,
        source_notes=(*source.notes, *_note_on_agents(summary)),
        code=[*source.given.code(), *source.beside.code()],
        pipeline=source.name,
        trained=trained,
        pieces=pieces,
        rewards=summary.rewards,
        learner=source.learner,
        given_space=source.spaces[0],
        recorded_in=source.recorded_in,
        columns_anew=anew,
    )


def _note_on_agents(summary: DataSummary) -> list[str]:
    """Where several agents share the module that learns."""
    if len(summary.agents) < 2:
        return []
    named = ", ".join(f"{name} ({count:,} episodes)" for name, count in summary.agents.most_common(8))
    return [f"one policy learns from the episodes of {len(summary.agents):,} agents, as their module is the same: {named}"]


def _learned_from(source: TrainingSource, builder: StoreBuilder, split: ValidationSplit | None) -> Iterator[EpisodeBatch]:
    """The checked episodes that are not held out."""
    for checked in map(source.checked, in_parts(builder.looked_at())):
        kept = checked if split is None else split.divided(checked)[0]
        if kept.num_steps:
            yield with_steps(kept)


def _with(digest: str, more: Mapping[str, Any]) -> str:
    """A digest of both, where there is more."""
    return hashlib.blake2b(f"{digest} {json.dumps(more)}".encode(), digest_size=16).hexdigest() if more else digest


def _origins(selection: Selection, episodes: EpisodeBatch, split: ValidationSplit | None) -> NDArray[np.int64] | None:
    """(E,) the source of each of `episodes` that is not held out; None without weights."""
    if selection.weights is None:
        return None
    found = selection.origins(len(episodes))
    return found if split is None else found[~split.chosen(episodes.ids)]


def _columns(source: TrainingSource, *parts: EpisodeBatch | None) -> list[Mapping[str, Tree] | None]:
    """What the pipeline makes of each part with the modules as they are."""
    return [None if part is None else source.columns(part) for part in parts]


def _settle(split: ValidationSplit, source: TrainingSource, builder: StoreBuilder) -> None:
    """Find which episodes are held out. Raises BadConfig where there is only one episode."""
    for ids in builder.ids():
        split.see(ids)
    try:
        split.settle()
    except ValueError as err:
        fix = "leave out --val-fraction"
        raise BadConfig("one episode cannot be split by --val-fraction", where=source.where, fix=fix) from err


def data_difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], *, same_pipeline: bool) -> str | None:
    """What differs between data with different digests, as text; None where the other pipeline alone may be the reason."""
    if not stored:
        return "the checkpoint does not say what data the run learns from"
    if stored["module"] != wanted["module"]:
        return f"the run learns module {stored['module']}, this call {wanted['module']}"
    if stored.get("weights") != wanted.get("weights"):
        one, other = (_weights(told.get("weights")) for told in (stored, wanted))
        return f"the run draws {one}, this call {other}"
    if stored["ids"] == wanted["ids"] and stored["steps"] == wanted["steps"]:
        return "the episodes are the same ones, and their values are not" if same_pipeline else None
    counts = [f"{one['episodes']:,} episodes with {one['steps']:,} steps" for one in (stored, wanted)]
    if stored["ids_in_any_order"] == wanted["ids_in_any_order"] and counts[0] == counts[1]:
        return f"the same episodes in another order: the run has {stored['sources']}, this call {wanted['sources']}"
    return f"the run has {counts[0]} of {stored['sources']}, this call {counts[1]} of {wanted['sources']}"


def _weights(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return "every step once an epoch"
    return ", ".join(f"{one['per_epoch']:,} of {one['steps']:,} steps of {name}" for name, one in told.items())


def _bytes(leaf: NDArray[Any]) -> Any:
    return np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b""
