"""What a run learns from: sources, checked and put through the learner pipeline, as steps in memory or mapped from disk.

    sources -> chosen episodes -> checked -> learner pipeline -> Steps

In memory all episodes go through the pipeline at once; with `--streaming` some at a time, and the sources are read once for
each thing that has to be known of all episodes beforehand: which are chosen, which are held out, what each piece learns. It is
not chosen by itself: what a run holds should follow from the command.

Decisions:

* NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action is never
  learned from, and may be anything. They are refused in rewards by algorithms that learn from these, and so are steps for which
  0 stands because no reward was recorded.
* Extra model outputs that nothing uses are left out before sources are compared. Pieces of a user's pipeline may use any
  output, and do not say which: they get those that all sources share, and where one asks for another, the error names the
  source without it. Without such a pipeline only those are used that the algorithm learns from, and `loss_mask`, which marks
  rows that are not learned from.
* Held-out episodes teach no piece anything.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.applying.checked_values import UNREWARDED, check_finite_rewards, check_values
from offline_cli.applying.frame_stacks import stack_by_rows
from offline_cli.applying.learned_pieces import Unchanged, check_streamable, frozen_with, learn
from offline_cli.applying.learner_batches import (
    check_known_scale,
    in_learner_units,
    in_parts,
    learner_columns,
    learner_spaces,
    nothing_left,
    of_one_module,
    with_steps,
)
from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, Setting, notes_on_export
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.converting.whole_episodes import ExtraOutputs
from offline_cli.environments import Environment, EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, give_back
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import LEAST_MEMORY, PLAIN_TABLES, TableOptions
from offline_cli.modules.devices import use_threads
from offline_cli.policies.play_spec import PlaySpec, beside_learner
from offline_cli.progress import OnProgress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, check_supported, leaf_spaces
from offline_cli.storage.locations import Sources
from offline_cli.training.algorithms.algorithm import Algorithm, bootstraps, uses_rewards
from offline_cli.training.chosen_episodes import HeldOut, Weights, best_episodes
from offline_cli.training.config_model import BCConfig
from offline_cli.training.data_facts import DataFacts
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.steps import MappedColumns, Steps
from offline_cli.trees import Tree, leaves

__all__ = ["TrainingData", "load_data"]

PLACE: Final = "learner pipeline"
SOURCE: Final = "_source"  # an extra output while episodes are read with weights: the number of the source of each step
MiB: Final = 1 << 20
PROGRAM: Final = {"cpu": 352 * MiB, "cuda": 2560 * MiB}  # torch and the other libraries, on a GPU with its context
LEAST_ROOM: Final = 160 * MiB  # of a limit for streaming, beside the program
DEFAULT: Final = {"cpu": 1024 * MiB, "cuda": 4096 * MiB}  # limits for streaming
COPIES: Final = 5  # of episodes while they are put together in memory: 515 MB were seen to take 2.3 GB
TIDY: Final = 16  # parts after which free memory is returned to the system: else it becomes twice what is in use

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """What an algorithm learns from."""

    train: Steps
    val: Steps | None  # None: nothing was held out
    observation_space: Space  # what the policy sees: after the learner pipeline
    action_space: Space
    action_scale: str  # "env" | "normalized"; "unknown" only where no action is a Box
    learner: Learner  # whose columns these are
    given_space: Space  # of an environment's observations: before the learner pipeline
    facts: DataFacts = field(default_factory=DataFacts)
    pipeline: str = ""  # the learner pipeline's name; empty: the default one
    trained: PipelineSpec | None = None  # what playing the policy takes, with its state; None: no pieces
    pieces: PlaySpec | None = None  # what it plays between in the environment of the checks; None: no pieces
    recorded_in: EnvironmentSpec | None = None  # what the data is of; None: not known, or not one
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
    weights: Weights | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read `sources` whole, and put them through the learner pipeline: it learns from training episodes only.

    `setup`: the algorithm and network of the configuration; None: they are looked up. With `config.streaming` the steps go to
    files in the `temp_dir` of `tables`, which `TrainingData.close` ends; `device` is where training will run: its libraries
    take memory.

    Raises what `read_episodes` raises, NoData where no episode has steps, BadData outside the spaces; BadConfig for an unknown
    scale of Box actions, where the memory limit does not do, and for episodes of several modules of which `module_id` names
    none. Before the data is read: SpaceMismatch where the policy could not play in `environment` or a piece cannot take the
    spaces, BadConfig where either pipeline is wrong, or cannot stream; after that BadPiece for what a piece raises, or a state
    that cannot be saved; StorageError where the disk is full.
    """
    setup, temp_dir = setup or Setup.of(config), tables.temp_dir
    episode_limit, mapped = None, 0
    if config.streaming:
        room = _room_for_streaming(config.memory_limit, device)
        tables, episode_limit = replace(tables, memory_limit=LEAST_MEMORY + room // 4), EpisodeLimit(room // COPIES)
        mapped = room // 4
    elif config.memory_limit is not None:
        tables = replace(tables, memory_limit=max(MEMORY_LIMIT, config.memory_limit))
    named = {name: getattr(config, name) for name in ("env", "env_kwargs", "wrappers")}
    asked = None if config.env is None or environment is not None else AskedEnvironment.of(named)
    given, beside = PipelineSpec.of(pipeline, "learner"), PipelineSpec.of(env_to_module, "env_to_module", "learner")
    extras = UsedExtras(given, setup.algorithm.columns)
    open_stream = partial(
        read_episodes,
        sources,
        from_=from_,
        env=asked if environment is None else environment.spec,
        action_scale=config.action_scale,
        tables=tables,
        episode_limit=episode_limit,
        extras=extras,
        apart=weights is not None,
        storage_options=storage_options,
        on_progress=on_progress,
    )
    with Scope() as scope, ExitStack() as unfinished:
        stream = scope.enter(open_stream())
        prepared = Preparation(stream, config, setup, given, beside, environment, extras)
        if weights is not None and prepared.learner.is_stateful:
            fix = "leave out the weights, or the memory"
            raise BadConfig("weights draw single steps, and the network has a memory", where="--weight", fix=fix)
        facts = DataFacts(not given.is_default or not {Columns.OBS, Columns.ACTIONS}.issuperset(setup.algorithm.columns))
        facts.sources = prepared.where
        facts.notes += prepared.notes
        reading = Episodes(scope, stream, open_stream, prepared, module_id, weights, config, device)
        if config.top_fraction is not None:
            facts.chosen = reading.choose(config.top_fraction, facts.notes)
        held_out = None
        if config.val_fraction is not None:
            held_out = HeldOut(reading.once(), config.val_fraction, config.seed, prepared.where)
        if config.streaming:
            check_streamable(prepared.pieces)
        prepared.learn(lambda: _learned_from(prepared, reading, held_out))
        trained, play = prepared.learned()
        stores = tuple(_Builder(MappedColumns(temp_dir, mapped) if mapped else None, one) for one in (weights, None))
        for store in stores:
            unfinished.callback(store.close)
        with use_threads(1) if config.streaming else nullcontext():  # parts are small: more threads would wait for each other
            anew = _fill(stores, prepared, reading, held_out, facts)
        unfinished.pop_all()  # the owner of the data closes it
        train, val = stores[0].finish(), None if held_out is None else stores[1].finish()
        if weights is not None:
            facts.weights = weights.as_dict(stores[0].by_source)
        facts.module = module_id or reading.module
        facts.notes += [*stream.incomplete, *facts.note_on_agents()]
        facts.invented = facts.invented if bootstraps(setup.algorithm) else 0
    return TrainingData(
        train=train,
        val=val,
        observation_space=prepared.announced[0],
        action_space=prepared.announced[1],
        action_scale=prepared.action_scale,
        learner=prepared.learner,
        given_space=prepared.spaces[0],
        facts=facts,
        pipeline=given.name + ("" if beside.is_default else f"; beside the environment {beside.name}"),
        trained=trained,
        pieces=play,
        recorded_in=prepared.recorded_in,
        code=[*given.code(), *beside.code()],
        columns_anew=anew,
    )


def _room_for_streaming(limit: int | None, device: str) -> int:
    """Bytes of the limit (None: the default) beside the program. Raises BadConfig where it is too small."""
    room = (DEFAULT[device] if limit is None else limit) - PROGRAM[device]
    if room < LEAST_ROOM:
        needed = f"torch alone needs {PROGRAM[device] // MiB:,} MiB on this device"
        what = f"--memory-limit {(limit or 0) // MiB:,} MiB is too small: {needed}"
        raise BadConfig(what, where="--memory-limit", fix=f"give at least {(PROGRAM[device] + LEAST_ROOM) // MiB:,} MiB")
    return room


def _learned_from(prepared: Preparation, reading: Episodes, held_out: HeldOut | None) -> Iterator[EpisodeBatch]:
    """The checked episodes that are not held out."""
    for checked in map(prepared.checked, in_parts(reading.once())):
        kept = _without_sources(checked if held_out is None else held_out.divided(checked)[0])
        if kept.num_steps:
            yield with_steps(kept)


def _fill(
    stores: Sequence[_Builder], prepared: Preparation, reading: Episodes, held_out: HeldOut | None, facts: DataFacts
) -> Callable[[], Sequence[Mapping[str, Tree] | None]] | None:
    """Read all episodes, and put their steps into the stores; what computes the columns anew, where the algorithm asks for it.

    Raises NoData where nothing is left of them, and what reading and the pieces raise.
    """
    unchanged, anew, counts = Unchanged(prepared.pieces), None, [0, 0]
    for checked in map(prepared.checked, reading.parts()):
        facts.see(_without_sources(checked))
        parts: list[EpisodeBatch | None] = [checked, None] if held_out is None else [*held_out.divided(checked)]
        for number, (store, part) in enumerate(zip(stores, parts, strict=True)):
            if part is not None and part.num_steps:
                store.add(prepared.columns(_without_sources(part)), part)
                counts[number] += part.num_steps
        if facts.episodes == len(checked):
            unchanged.check()
        if prepared.learner.algorithm.refresh_every is not None:
            anew = partial(_columns_of, prepared, [None if part is None else _without_sources(part) for part in parts])
    unchanged.check()
    if not counts[0] or (held_out is not None and not counts[1]):
        what = "no step, or none to validate on, leads to an observation that was recorded"
        raise NoData(what, where=prepared.where, fix="record new_obs too, or --keep-invented to learn from copies of obs")
    if not stores[0].rows or (held_out is not None and not stores[1].rows):
        raise nothing_left()
    return anew


def _columns_of(prepared: Preparation, parts: Sequence[EpisodeBatch | None]) -> list[Mapping[str, Tree] | None]:
    return [None if part is None else prepared.columns(part) for part in parts]


def _without_sources(episodes: EpisodeBatch) -> EpisodeBatch:
    if SOURCE not in episodes.extra:
        return episodes
    return replace(episodes, extra={name: tree for name, tree in episodes.extra.items() if name != SOURCE})


# ---- reading ----


class Episodes:
    """The episodes of the module that learns, as they were recorded: those that have a step, and are chosen.

    In memory they are read once; streaming, each reading opens the sources anew.
    """

    def __init__(
        self,
        scope: Scope,
        stream: EpisodeStream,
        open_stream: Callable[[], EpisodeStream],
        prepared: Preparation,
        module_id: str | None,
        weights: Weights | None,
        config: BCConfig,
        device: str,
    ) -> None:
        self._scope, self._opened, self._open = scope, [stream], open_stream
        self._prepared, self._module_id, self._weights, self._config = prepared, module_id, weights, config
        self._room = None if config.memory_limit is None else config.memory_limit - PROGRAM[device]
        self._whole: EpisodeBatch | None = None
        self._chosen: Any = None  # (E,) of all that are read; None: all
        self._count: int | None = None  # all episodes, once they have been read
        self._modules: Counter[str] = Counter()

    @property
    def module(self) -> str | None:
        """The module whose episodes were read; None before they were."""
        return next(iter(self._modules), None)

    def choose(self, fraction: float, notes: list[str]) -> dict[str, Any]:
        """Take the share with the highest returns from now on; figures of it. Raises NoData."""
        chosen, told, more = best_episodes(self.once(), fraction, self._prepared.where)
        notes += more
        if self._whole is not None:
            self._whole = self._whole.select(np.flatnonzero(chosen))
        self._chosen = chosen
        return told

    def once(self) -> Iterator[EpisodeBatch]:
        """All of them. Raises what reading raises, NoData; BadConfig at the end of the data where it holds several modules or
        not the one wanted; BadData where the source has changed since an earlier reading."""
        if self._config.streaming:
            yield from self._read()
            return
        if self._whole is None:
            batches = list(self._within_memory(self._read()))
            self._whole = batches.pop() if len(batches) == 1 else EpisodeBatch.concat(batches)
            del batches
            give_back()
        yield self._whole

    def parts(self) -> Iterator[EpisodeBatch]:
        """All of them, for the last time, as many at a time as go through the pipeline together."""
        if self._config.streaming:
            for number, part in enumerate(in_parts(self.once())):
                if number % TIDY == TIDY - 1:
                    give_back()
                yield part
            return
        (whole,) = self.once()
        self._whole = None
        yield whole

    def _read(self) -> Iterator[EpisodeBatch]:
        where, count, found = self._prepared.where, 0, False
        with self._scope.part() as held:
            stream = held.enter(self._opened.pop() if self._opened else self._open())
            numbers = (
                {} if self._weights is None else dict(reversed([*zip(stream.locations, self._weights.numbers, strict=True)]))
            )
            self._modules = Counter()
            batches = filter(len, map(with_steps, self._prepared.rewarded(stream)))
            for batch in of_one_module(batches, self._module_id, where=where, seen=self._modules):
                count += len(batch)
                if self._chosen is not None:
                    batch = batch.select(np.flatnonzero(self._chosen[count - len(batch) : count]))
                if self._weights is not None:
                    source = np.full(batch.num_steps, numbers[stream.drawn_from()], np.int32)
                    batch = replace(batch, extra={**batch.extra, SOURCE: source})
                found = found or len(batch) > 0
                if len(batch):
                    yield batch
                del batch
        if self._count not in (None, count):
            what = f"the source changed while it was read: {count:,} episodes, and {self._count:,} before"
            raise BadData(what, where=where, fix="train on a copy of it")
        self._count = count
        if not found:
            raise NoData("no episode has any steps", where=where, fix="record again")

    def _within_memory(self, batches: Iterator[EpisodeBatch]) -> Iterator[EpisodeBatch]:
        """`batches`; raises BadConfig, naming --streaming, as soon as they do not fit into the memory limit."""
        size = steps = 0
        for batch in batches:
            size, steps = size + batch.nbytes, steps + batch.num_steps
            if self._room is not None and COPIES * size > self._room:
                what = f"the first {steps:,} steps take {size // MiB:,} MiB, several times while they are put together"
                fix = "--streaming, which keeps them on disk; or a larger --memory-limit"
                raise BadConfig(f"{what}: too much for the memory limit", where=self._prepared.where, fix=fix)
            yield batch


class UsedExtras:
    """Which extra model outputs a run keeps of its opened sources; decided once, however often they are read."""

    def __init__(self, given: PipelineSpec, asked: Collection[str]) -> None:
        self._default = given.is_default
        self._needed = (Columns.LOSS_MASK, *(name for name in asked if name not in STEP_COLUMNS))
        self.kept: ExtraOutputs | None = None  # None, once called: all

    def __call__(self, sources: Sequence[Source]) -> ExtraOutputs | None:
        """Raises what reading the first episodes of each source raises."""
        if self._default:
            self.kept = ExtraOutputs(self._needed)
        elif self.kept is None and len(sources) > 1:
            self.kept = ExtraOutputs.shared(sources, needed=self._needed)
            if self.kept.left_out:
                forms = "; ".join(f"{name}: {text}" for name, text in self.kept.left_out.items())
                _log.warning("note: pieces do not see extra model outputs that the sources do not share: %s", forms)
        return self.kept


# ---- episodes to columns ----


class Preparation:
    """What makes columns of episodes, checked before an episode is read: spaces, pipeline, and the modules of the algorithm."""

    def __init__(
        self,
        stream: EpisodeStream,
        config: BCConfig,
        setup: Setup,
        given: PipelineSpec,
        beside: PipelineSpec,
        environment: Environment | None,
        extras: UsedExtras,
    ) -> None:
        """Build the pipeline for an open stream, and the modules for what comes out of it. Raises: see `load_data`."""
        self.where = ", ".join(stream.locations)  # for messages
        self.action_scale, self.meanings, self.recorded_in = stream.action_scale, stream.meanings, stream.recorded_in
        self.given, self.environment, self.extras = given, environment, extras
        self.algorithm = algorithm = setup.algorithm
        self.by_return = config.top_fraction is not None  # episodes are chosen by their returns
        self.observed_ends = bootstraps(algorithm) and not config.keep_invented  # steps with an invented end are left out
        check_known_scale(stream)
        said = stream.observation_space, stream.action_space
        self.spaces = learner_spaces(said, environment, inferred=stream.spaces_inferred, where=self.where)
        self._setting = Setting(*self.spaces)
        leaves_it = type(algorithm).extend is Algorithm.extend and type(algorithm).rl_module is Algorithm.rl_module
        plain = given.is_default and beside.is_default and leaves_it
        self.pipeline = None if plain else given.build(self._setting)  # None: the default one, before a module without memory
        self.announced = self.spaces  # after the pipeline
        if self.pipeline is not None:
            seen, done = self.pipeline.observation_space, self.pipeline.action_space
            self.announced = seen or self.spaces[0], done or self.spaces[1]
        check_supported(self.announced[0], where="observations after the learner pipeline")
        self.alone = self.pipeline is None or (beside.is_default and given.plays_alone(self.pipeline.pieces()))
        self.play = None if environment is None or self.alone else beside_learner(given, beside)
        if environment is not None and self.play is not None:
            self.play.check(environment, *self.announced, where=PLACE)
        if self.pipeline is not None:
            algorithm.extend(self.pipeline)
        _check_recorded_rewards(stream, algorithm, by_return=self.by_return)
        self.learner = setup.learner(*self.announced, stream.action_scale, "" if self.alone else given.in_words)
        if self.pipeline is not None:
            frozen_with(self.pipeline, setup.learned or {})
        if self.learner.is_stateful:  # the default pieces give it states and a time axis, here and beside the environment
            self.pipeline = self.pipeline or given.build(self._setting)
            self.play = self.play or (None if environment is None else PlaySpec())
        elif self.pipeline is not None and Columns.OBS in algorithm.columns:
            stack_by_rows(self.pipeline)
        assumed = stream.tally.assumptions["meaning-assumed"]
        text = f"{assumed} columns of sources are taken to mean what another source alone says of them"
        self.notes = [*([text] if assumed else []), *([] if self.alone else notes_on_export(given, self._setting))]

    def _build(self) -> ConnectorPipelineV2:
        """Such a pipeline as `pipeline` anew."""
        made = self.given.build(self._setting)
        self.algorithm.extend(made)
        return made

    @property
    def pieces(self) -> list[Any]:
        """Of the pipeline that the episodes go through."""
        return [] if self.pipeline is None else list(self.pipeline.pieces())

    def rewarded(self, stream: EpisodeStream) -> Iterator[EpisodeBatch]:
        """The stream. Raises BadData where it has steps without reward, and rewards are needed."""
        for batch in stream:
            _check_recorded_rewards(stream, self.learner.algorithm, by_return=self.by_return)
            yield batch

    def checked(self, episodes: EpisodeBatch) -> EpisodeBatch:
        """`episodes`, with actions as a network learns them, and none of the steps that it is not to learn from. Raises BadData
        for values outside the spaces, and rewards that are not finite where they are learned from.
        """
        observations, actions = self.spaces
        episodes = episodes.without_invented() if self.observed_ends else episodes
        if uses_rewards(self.learner.algorithm):
            check_finite_rewards(episodes, self.where)
        are_images = all(isinstance(part, spaces.Box) for part in leaf_spaces(observations).values())
        if not (are_images and all(leaf.dtype == np.uint8 for leaf in leaves(episodes.obs))):  # in which nothing can be wrong
            check_values(episodes, episodes.acted_obs(), observations, "observations", self.where, self.meanings)
        check_values(episodes, episodes.actions, actions, "actions", self.where, self.meanings)
        if self.learner.is_stateful and Columns.STATE_OUT in episodes.extra:  # of the network that played
            extra = {name: tree for name, tree in episodes.extra.items() if name != Columns.STATE_OUT}
            episodes = replace(episodes, extra=extra)
        return in_learner_units(episodes, actions, self.action_scale)

    def columns(self, episodes: EpisodeBatch) -> dict[str, Tree]:
        """What the pipeline makes of checked episodes, which may be no rows: see `learner_columns`.

        Raises BadEpisode where a piece asks for an extra model output that not all sources have in one form.
        """
        with self._missed_extras_named():
            return learner_columns(
                self.pipeline,
                with_steps(episodes),
                self.announced,
                where=self.where,
                asked=self.learner.algorithm.columns,
                rl_module=None if self.pipeline is None else self._module_of_pieces(),
            )

    def learn(self, read: Callable[[], Iterator[EpisodeBatch]]) -> None:
        """Have the pieces learn what they learn from the checked episodes of `read`, and nothing afterwards.

        Raises what `learned_pieces.learn` raises, and BadEpisode as `columns` does.
        """
        if self.pipeline is not None:
            with self._missed_extras_named():
                learn(self.pipeline, self._build, read, where=self.where, rl_module=self._module_of_pieces())

    def learned(self) -> tuple[PipelineSpec | None, PlaySpec | None]:
        """What the policy takes to play, once the pieces have learned; and what it plays between in the environment.

        Raises BadPiece for a state that cannot be saved, and whatever keeps the policy from playing there.
        """
        trained = None if self.pipeline is None or self.alone else self.given.trained(self.pipeline)
        if self.environment is None or self.play is None:
            return trained, self.play
        play = replace(self.play, trained=trained)
        play.check(self.environment, *self.announced, where=PLACE)  # learned states have to find their pieces now, not later
        return trained, play

    @contextmanager
    def _missed_extras_named(self) -> Iterator[None]:
        try:
            yield
        except OfflineCliError as err:
            missed = None if self.extras.kept is None else self.extras.kept.missed_by(err)
            if missed is None:
                raise
            raise missed from err

    def _module_of_pieces(self) -> nn.Module:
        """On the CPU, as their columns are: a copy where the modules are elsewhere."""
        module = self.learner.algorithm.rl_module(self.learner.modules)
        is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
        return module if is_on_cpu else copy.deepcopy(module).cpu()


def _check_recorded_rewards(stream: EpisodeStream, algorithm: Algorithm, *, by_return: bool) -> None:
    """Raise BadData for steps without reward, as far as they are known now, where rewards are learned from, or chosen by."""
    needed = uses_rewards(algorithm)
    if (needed or by_return) and (found := stream.without_rewards) is not None:
        where, count = found
        why = f"{type(algorithm).__name__} learns from rewards" if needed else "--top-fraction chooses by rewards"
        what = f"steps without a reward ({count:,} so far), for which 0 was taken: {why}"
        without = UNREWARDED if needed else "or leave out --top-fraction"
        raise BadData(what, where=where, fix=f"map the column of rewards, and convert again if this is a dataset; {without}")


# ---- columns to steps ----


class _Builder:
    """Steps that come in parts; in memory there is one part."""

    def __init__(self, mapped: MappedColumns | None, weights: Weights | None) -> None:
        """`mapped`: where they are kept; None: in memory."""
        self._mapped = mapped
        self._columns: Mapping[str, Any] = {}
        self._weights, self._sources = weights, list[Tensor]()
        self.rows = 0

    def add(self, columns: Mapping[str, Any], episodes: EpisodeBatch) -> None:
        """Take the columns that were made of `episodes`. Raises BadConfig, StorageError."""
        rows = len(leaves(next(iter(columns.values())))[0])
        if self._weights is not None:
            self._sources.append(_row_sources(rows, episodes))
        if self._mapped is not None:
            self._mapped.add(columns)
        else:
            self._columns = columns
        self.rows += rows

    def finish(self) -> Steps:
        """All of them."""
        steps = Steps(self._columns) if self._mapped is None else self._mapped.finish()
        if self._weights is None:
            return steps
        return replace(steps, sources=torch.cat(self._sources), shares=self._weights.shares(self.by_source))

    @property
    def by_source(self) -> list[int]:
        """The number of rows of each source, where these have weights."""
        count = 0 if self._weights is None else len(self._weights.names)
        return torch.cat(self._sources).bincount(minlength=count).tolist() if count else []

    def close(self) -> None:
        """Release the disk."""
        if self._mapped is not None:
            self._mapped.close()


def _row_sources(rows: int, episodes: EpisodeBatch) -> Tensor:
    """(rows,) the source of each row of columns that were made of `episodes`. Raises BadConfig where they are not its steps."""
    found = np.asarray(episodes.extra[SOURCE])
    mask = episodes.extra.get(Columns.LOSS_MASK)
    if mask is not None and rows != len(found):
        found = found[np.asarray(mask).astype(np.bool_)]
    if rows != len(found):
        what = f"the learner pipeline makes {rows:,} rows of {episodes.num_steps:,} steps: the source of each is not known"
        raise BadConfig(what, where="--weight", fix="leave out the pieces that add or leave out steps, or the weights")
    return torch.from_numpy(found)
