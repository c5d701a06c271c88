"""Where a run's episodes come from: sources and learner pipeline, checked against each other before an episode is read.

Decisions:

* NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action is never
  learned from, and may be anything. They are refused in rewards by algorithms that learn from these, and so are steps for which
  0 stands because no reward was recorded.
* Extra model outputs that nothing uses are left out before sources are compared. Pieces of a user's pipeline may use any
  output, and do not say which: they get those that all sources share, and where one asks for another, the error names the
  source without it. Without such a pipeline only those are used that the algorithm learns from, and `loss_mask`, which marks
  rows that are not learned from.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from gymnasium import spaces
from torch import nn

from offline_cli.applying.checked_values import UNREWARDED, check_finite_rewards, check_values
from offline_cli.applying.frame_stacks import stack_by_rows
from offline_cli.applying.learned_pieces import frozen_with, learn
from offline_cli.applying.learner_batches import (
    check_known_scale,
    in_learner_units,
    learner_columns,
    learner_spaces,
    of_one_module,
    with_steps,
)
from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import ConnectorV2
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, Setting
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.converting.whole_episodes import ExtraOutputs
from offline_cli.environments import Environment, EnvironmentSpec
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, OfflineCliError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import EpisodeLimit
from offline_cli.formats.source import Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.meanings import Meanings
from offline_cli.policies.play_spec import PlaySpec, beside_learner
from offline_cli.progress import OnProgress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, check_supported, leaf_spaces
from offline_cli.storage.locations import Sources
from offline_cli.storage.urls import is_of_bucket
from offline_cli.training.algorithms.algorithm import Algorithm, bootstraps, uses_rewards
from offline_cli.training.config_model import BCConfig
from offline_cli.training.learner import Learner, Setup
from offline_cli.training.mixing import Selection
from offline_cli.trees import Tree, leaves

__all__ = ["TrainingSource", "open_training_source"]

PLACE: Final = "learner pipeline"

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TrainingSource:
    """Episodes and their pipeline; a context manager, at whose end no source is open."""

    where: str  # the sources, for messages
    locations: Sequence[str]  # each of them
    action_scale: str
    spaces: tuple[Space, Space]  # of observations and actions before the pipeline
    announced: tuple[Space, Space]  # and after it
    held: tuple[Space, Space]  # of what a store in memory holds of each step: frames, where stacks are gathered of these
    pipeline: ConnectorPipelineV2 | None  # None: the default one, before a module without memory
    given: PipelineSpec
    beside: PipelineSpec
    environment: Environment | None
    pieces: PlaySpec | None  # what the policy plays between in `environment`; None: no pieces
    recorded_in: EnvironmentSpec | None  # what the data is of; None: not known, or not one
    alone: bool  # the policy plays without pieces
    module_id: str | None  # whose episodes are learned from; None: there is one module
    learner: Learner  # learns from the columns, and gives pieces their module
    extras: UsedExtras
    selection: Selection  # of the episodes
    meanings: Meanings  # of columns, for messages
    notes: Sequence[str]  # on the sources
    observed_ends: bool  # steps whose next observation is invented are left out
    _build: Callable[[], ConnectorPipelineV2]  # such a pipeline as `pipeline` anew
    _open: Callable[[], EpisodeStream]
    _streams: Scope  # owns those that are open
    _opened: list[EpisodeStream] = field(default_factory=list)  # one that has not been read yet
    _modules: Counter[str] = field(default_factory=Counter)  # episodes of each, of the reading at hand
    _learned: tuple[PipelineSpec | None, PlaySpec | None] | None = None  # once the pieces have learned

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._streams.__exit__(kind, error, trace)

    def episodes(self) -> Iterator[EpisodeBatch]:
        """The episodes of the module that have a step, as they were recorded; each call reads the sources. Once `choose` was
        called, those that are chosen.

        Raises what reading raises, and BadConfig at the end of the data where it holds several modules or not the one wanted.
        """
        with self._streams.part() as held:
            stream = held.enter(self._opened.pop() if self._opened else self._open())
            self._modules = Counter()
            batches = filter(len, map(with_steps, self._with_rewards(stream)))
            of_module = of_one_module(batches, self.module_id, where=self.where, seen=self._modules)
            if self.selection.fraction is None and self.selection.weights is None:
                yield from of_module
            else:
                yield from self.selection.of(of_module, stream, self.where)

    def choose(self) -> None:
        """Read all episodes, and choose those that are learned from, where a share of them was asked for."""
        if self.selection.fraction is not None:
            self.selection.choose(self.episodes(), self.where)

    def _with_rewards(self, stream: EpisodeStream) -> Iterator[EpisodeBatch]:
        """The stream. Raises BadData where it has steps without reward, and the algorithm learns from rewards."""
        for batch in stream:
            _check_recorded_rewards(stream, self.learner.algorithm, self.selection)
            yield batch

    @property
    def connectors(self) -> list[ConnectorV2]:
        """The pieces of the pipeline that the episodes go through."""
        return [] if self.pipeline is None else list(self.pipeline.pieces())

    @property
    def fetched(self) -> bool:
        """Whether parts of some of the sources are fetched before they are read."""
        return any(map(is_of_bucket, self.locations))

    @property
    def reads_every_leaf(self) -> bool:
        """Whether anything that an episode holds may be learned from; else its observations and actions alone."""
        return not self.given.is_default or not {Columns.OBS, Columns.ACTIONS}.issuperset(self.learner.algorithm.columns)

    @property
    def module(self) -> str | None:
        """The module whose episodes were read; None before they were."""
        return self.module_id or next(iter(self._modules), None)

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
        episodes = with_steps(episodes)
        with self._missed_extras_named():
            return learner_columns(
                self.pipeline,
                episodes,
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

    def learned(self) -> tuple[PipelineSpec | None, PlaySpec | None]:
        """What the policy takes to play, once the pieces have learned.

        Raises BadPiece for a state that cannot be saved, and whatever keeps the policy from playing in `environment`.
        """
        if self._learned is None:
            trained = None if self.pipeline is None or self.alone else self.given.trained(self.pipeline)
            self._learned = trained, self._pieces_with(trained)
        return self._learned

    def _pieces_with(self, trained: PipelineSpec | None) -> PlaySpec | None:
        if self.environment is None or self.pieces is None:
            return self.pieces
        pieces = replace(self.pieces, trained=trained)
        pieces.check(self.environment, *self.announced, where=PLACE)  # learned states have to find their pieces now, not later
        return pieces

    def no_steps(self) -> NoData:
        """The error for sources without steps."""
        return NoData("no episode has any steps", where=self.where, fix="record again")

    @property
    def name(self) -> str:
        """The pipeline's, which a run that is resumed has to share; empty: the default one."""
        beside = "" if self.beside.is_default else f"; beside the environment {self.beside.name}"
        return self.given.name + beside


def open_training_source(
    sources: Sources,
    config: BCConfig,
    setup: Setup,
    *,
    environment: Environment | None,
    pipeline: Given,
    env_to_module: Given,
    from_: str,
    module_id: str | None,
    storage_options: Mapping[str, Any] | None,
    on_progress: OnProgress,
    tables: TableOptions | None = None,
    episode_limit: EpisodeLimit | None = None,
    selection: Selection | None = None,
) -> TrainingSource:
    """Open `sources`, build the pipeline for them, and the modules of the algorithm for what comes out of it.

    Raises what `read_episodes` raises; BadConfig for an unknown scale of Box actions, and where either pipeline is wrong;
    SpaceMismatch where the policy could not play in `environment` or a piece cannot take the spaces.
    """
    asked = None if config.env is None or environment is not None else AskedEnvironment.of(dict(config))
    given = PipelineSpec.of(pipeline, "learner")
    beside = PipelineSpec.of(env_to_module, "env_to_module", "learner")

    def opened() -> EpisodeStream:
        return read_episodes(
            sources,
            from_=from_,
            env=asked if environment is None else environment.spec,
            action_scale=config.action_scale,
            tables=tables,
            episode_limit=episode_limit,
            extras=extras,
            apart=chosen.weights is not None,
            storage_options=storage_options,
            on_progress=on_progress,
        )

    chosen = selection or Selection()
    extras = UsedExtras(given, setup.algorithm.columns)
    with Scope() as scope:
        stream = scope.enter(opened())
        kind: dict[str, Any] = {"module_id": module_id, "extras": extras, "selection": chosen}
        kind["observed_ends"] = bootstraps(setup.algorithm) and not config.keep_invented
        return _opened(stream, scope, opened, setup, environment, given, beside, **kind)


def _opened(
    stream: EpisodeStream,
    scope: Scope,
    opened: Callable[[], EpisodeStream],
    setup: Setup,
    environment: Environment | None,
    given: PipelineSpec,
    beside: PipelineSpec,
    *,
    module_id: str | None,
    extras: UsedExtras,
    selection: Selection,
    observed_ends: bool,
) -> TrainingSource:
    """The source takes over what `scope` holds; an error leaves it there."""
    where = ", ".join(stream.locations)
    check_known_scale(stream)
    if assumed := stream.tally.assumptions["meaning-assumed"]:
        selection.notes.append(f"{assumed} columns of sources are taken to mean what another source alone says of them")
    said = stream.observation_space, stream.action_space
    observations, actions = learner_spaces(said, environment, inferred=stream.spaces_inferred, where=where)
    plain = given.is_default and beside.is_default and _leaves_pipeline(type(setup.algorithm))
    setting = Setting(observations, actions)
    to_columns = None if plain else given.build(setting)
    seen, done = observations, actions
    if to_columns is not None:
        seen, done = to_columns.observation_space or observations, to_columns.action_space or actions
    check_supported(seen, where="observations after the learner pipeline")
    alone = to_columns is None or (beside.is_default and given.plays_alone(to_columns.pieces()))
    pieces = None if environment is None or alone else beside_learner(given, beside)
    if environment is not None and pieces is not None:
        pieces.check(environment, seen, done, where=PLACE)
    if to_columns is not None:
        setup.algorithm.extend(to_columns)
    _check_recorded_rewards(stream, setup.algorithm, selection)
    learner = setup.learner(seen, done, stream.action_scale, "" if alone else given.in_words)
    if to_columns is not None:
        frozen_with(to_columns, setup.learned or {})
    if learner.is_stateful:  # the default pieces give it states and a time axis, here and beside the environment
        to_columns = to_columns or given.build(setting)
        pieces = pieces or (None if environment is None else PlaySpec())
        if selection.weights is not None:
            fix = "leave out the weights, or the memory"
            raise BadConfig("weights draw single steps, and the network has a memory", where="--weight", fix=fix)

    def built() -> ConnectorPipelineV2:
        made = given.build(setting)
        setup.algorithm.extend(made)
        return made

    whole = to_columns is None or learner.is_stateful or Columns.OBS not in setup.algorithm.columns
    stacking = None if whole or to_columns is None else stack_by_rows(to_columns)
    frames = None if stacking is None else stacking.input_observation_space
    return TrainingSource(
        where=where,
        locations=stream.locations,
        action_scale=stream.action_scale,
        spaces=(observations, actions),
        announced=(seen, done),
        held=(frames or seen, done),
        pipeline=to_columns,
        given=given,
        beside=beside,
        environment=environment,
        pieces=pieces,
        recorded_in=stream.recorded_in,
        alone=alone,
        module_id=module_id,
        learner=learner,
        extras=extras,
        selection=selection,
        meanings=stream.meanings,
        notes=stream.incomplete,
        observed_ends=observed_ends,
        _build=built,
        _open=opened,
        _streams=scope.moved(),
        _opened=[stream],
    )


def _leaves_pipeline(kind: type[Algorithm]) -> bool:
    """Whether such algorithms leave the learner pipeline as it is, with the policy as its module."""
    return kind.extend is Algorithm.extend and kind.rl_module is Algorithm.rl_module


def _check_recorded_rewards(stream: EpisodeStream, algorithm: Algorithm, selection: Selection) -> None:
    """Raise BadData for steps without reward, as far as they are known now, where rewards are learned from, or chosen by."""
    needed = uses_rewards(algorithm)
    if (needed or selection.fraction is not None) and (found := stream.without_rewards) is not None:
        where, count = found
        why = f"{type(algorithm).__name__} learns from rewards" if needed else "--top-fraction chooses by rewards"
        what = f"steps without a reward ({count:,} so far), for which 0 was taken: {why}"
        without = UNREWARDED if needed else "or leave out --top-fraction"
        raise BadData(what, where=where, fix=f"map the column of rewards, and convert again if this is a dataset; {without}")


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
