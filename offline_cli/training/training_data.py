"""What a run learns from: sources, checked and put through the learner pipeline, as steps in memory or mapped from disk.

    sources -> chosen episodes -> checked -> learner pipeline -> Steps

In memory all episodes go through the pipeline at once. With `--streaming` they go through in parts, and the sources are read
once for each thing that has to be known of all episodes beforehand: which are chosen, which are held out, what each piece
learns. `--streaming` is never chosen by itself: what a run holds should follow from the command.

Decisions:

* NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action is never
  learned from, and may be anything. They are refused in rewards by algorithms that learn from these, and so are steps for which
  0 stands because no reward was recorded.
* Extra model outputs that nothing uses are left out before sources are compared: without a pipeline of the user's all but those
  that the algorithm learns from, and `loss_mask`, which marks rows that are not learned from. Pieces of a pipeline may use any
  output, so all sources must have the same ones there.
* Held-out episodes teach no piece anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.applying.checked_values import UNREWARDED, check_finite_rewards, check_values
from offline_cli.applying.frame_stacks import stack_by_rows
from offline_cli.applying.learned_pieces import check_streamable, frozen_with, learn
from offline_cli.applying.learner_batches import (
    check_known_scale,
    in_learner_units,
    in_parts,
    learner_columns,
    learner_spaces,
    nothing_left,
    of_one_agent,
    of_one_module,
    with_steps,
)
from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, Setting
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.converting.whole_episodes import ExtraOutputs
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, give_back
from offline_cli.formats.tables.source import LEAST_MEMORY, PLAIN_TABLES, TableOptions
from offline_cli.modules.devices import use_threads
from offline_cli.policies.play_spec import PlaySpec, beside_learner
from offline_cli.progress import OnProgress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, check_supported, leaf_spaces
from offline_cli.storage.locations import Sources
from offline_cli.training.algorithms.algorithm import bootstraps, uses_rewards
from offline_cli.training.chosen_episodes import HeldOut, Weights, best_episodes
from offline_cli.training.config_model import BCConfig
from offline_cli.training.data_facts import DataFacts
from offline_cli.training.learner import Setup
from offline_cli.training.steps import MappedColumns, Steps
from offline_cli.trees import Tree, leaves

__all__ = ["TrainingData", "load_data"]

PLACE: Final = "learner pipeline"
MiB: Final = 1 << 20
PROGRAM: Final = {"cpu": 352 * MiB, "cuda": 2560 * MiB}  # torch and the other libraries, on a GPU with its context
LEAST_ROOM: Final = 160 * MiB  # of a limit for streaming, beside the program
DEFAULT: Final = {"cpu": 1024 * MiB, "cuda": 4096 * MiB}  # limits for streaming
COPIES: Final = 5  # of episodes while they are put together in memory: 515 MB were seen to take 2.3 GB
TIDY: Final = 16  # parts after which free memory is returned to the system: else it becomes twice what is in use


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
    scale of Box actions, where the memory limit does not do, for episodes of several modules of which `module_id` names none,
    and for none of the agent. Before the data is read: SpaceMismatch where the policy could not play in `environment` or a
    piece cannot take the spaces, BadConfig where either pipeline is wrong, or cannot stream; after that BadPiece for what a
    piece raises, or a state that cannot be saved; StorageError where the disk is full.
    """
    setup, temp_dir, episode_limit, resident = setup or Setup.of(config), tables.temp_dir, None, 0
    if config.streaming:
        room = _room_for_streaming(config.memory_limit, device)
        tables, episode_limit = replace(tables, memory_limit=LEAST_MEMORY + room // 4), EpisodeLimit(room // COPIES)
        resident = room // 4
    elif config.memory_limit is not None:
        tables = replace(tables, memory_limit=max(MEMORY_LIMIT, config.memory_limit))
    given, beside = PipelineSpec.of(pipeline, "learner"), PipelineSpec.of(env_to_module, "env_to_module", "learner")
    used = (Columns.LOSS_MASK, *(name for name in setup.algorithm.columns if name not in STEP_COLUMNS))
    open_stream = partial(
        read_episodes,
        sources,
        from_=from_,
        env=None if environment is None else environment.spec,
        env_spaces=None if environment is None else (environment.observation_space, environment.action_space),
        action_scale=config.action_scale,
        tables=tables,
        episode_limit=episode_limit,
        extras=(lambda _: ExtraOutputs(used)) if given.is_default else None,
        apart=weights is not None,
        storage_options=storage_options,
        on_progress=on_progress,
    )
    with Scope() as scope, ExitStack() as unfinished:
        stream = scope.enter(open_stream())
        data = TrainingData(stream, config, setup, given, beside, environment)
        facts = data.facts
        if weights is not None and data.learner.is_stateful:
            fix = "leave out the weights, or the memory"
            raise BadConfig("weights draw single steps, and the network has a memory", where="--weight", fix=fix)
        room_for_episodes = None if config.memory_limit is None else config.memory_limit - PROGRAM[device]
        recorded = Recorded(scope, stream, open_stream, data, module_id, weights, room_for_episodes)
        if config.top_fraction is not None:
            facts.chosen = recorded.choose(config.top_fraction)
        held_out = None
        if config.val_fraction is not None:
            held_out = HeldOut(recorded.once(), config.val_fraction, config.seed, data.where)
        if config.streaming:
            check_streamable(data.pieces)
        data.learn(recorded, held_out)
        stores = [_Store(MappedColumns(temp_dir, resident) if config.streaming else None) for _ in range(2)]
        for store in stores:
            unfinished.callback(store.close)
        with use_threads(1) if config.streaming else nullcontext():  # parts are small: more threads would wait for each other
            _fill(stores, data, recorded, held_out)
        unfinished.pop_all()  # the owner of the data closes it
        data.train, data.val = stores[0].finish(weights), None if held_out is None else stores[1].finish()
        if weights is not None:
            facts.weights = weights.as_dict(data.train.by_source(len(weights.names)))
        facts.module = module_id or recorded.module
        facts.notes += [*stream.incomplete, *facts.note_on_agents()]
        facts.invented = facts.invented if bootstraps(setup.algorithm) else 0
    return data


def _room_for_streaming(limit: int | None, device: str) -> int:
    """Bytes of the limit (None: the default) beside the program. Raises BadConfig where it is too small."""
    room = (DEFAULT[device] if limit is None else limit) - PROGRAM[device]
    if room < LEAST_ROOM:
        needed = f"torch alone needs {PROGRAM[device] // MiB:,} MiB on this device"
        what = f"--memory-limit {(limit or 0) // MiB:,} MiB is too small: {needed}"
        raise BadConfig(what, where="--memory-limit", fix=f"give at least {(PROGRAM[device] + LEAST_ROOM) // MiB:,} MiB")
    return room


def _fill(stores: Sequence[_Store], data: TrainingData, recorded: Recorded, held_out: HeldOut | None) -> None:
    """Read all episodes, and put their columns into the stores.

    Raises NoData where nothing is left of them, and what reading and the pieces raise.
    """
    counts = [0, 0]
    for batch, of_episodes in recorded.parts():
        checked = data.checked(batch)
        data.facts.see(checked)
        is_held = None if held_out is None else held_out.among(checked)
        chosen = [slice(None)] if is_held is None else [np.flatnonzero(~is_held), np.flatnonzero(is_held)]
        parts = [checked if is_held is None else checked.select(which) for which in chosen]
        for number, (part, which) in enumerate(zip(parts, chosen, strict=True)):
            if part.num_steps:
                stores[number].add(data.columns(part), part, None if of_episodes is None else of_episodes[which])
                counts[number] += part.num_steps
        if data.learner.algorithm.refresh_every is not None:  # which does not stream: this is all there is
            data.columns_anew = lambda parts=parts: [data.columns(part) for part in parts]
    used = 1 if held_out is None else 2
    if 0 in counts[:used]:
        what = "no step, or none to validate on, leads to an observation that was recorded"
        raise NoData(what, where=data.where, fix="record new_obs too, or --keep-invented to learn from copies of obs")
    if not all(store.rows for store in stores[:used]):
        raise nothing_left()


# ---- reading ----


class Recorded:
    """The episodes of the module that learns, as they were recorded: those that have a step, and are chosen.

    In memory they are read once; streaming, each reading opens the sources anew.
    """

    def __init__(
        self,
        scope: Scope,
        stream: EpisodeStream,
        open_stream: Callable[[], EpisodeStream],
        data: TrainingData,
        module_id: str | None,
        weights: Weights | None,
        room: int | None,
    ) -> None:
        """`room`: bytes for what is held in memory; None: any."""
        self._scope, self._opened, self._open = scope, [stream], open_stream
        self._data, self._module_id, self._weights, self._room = data, module_id, weights, room
        self._whole: EpisodeBatch | None = None
        self._chosen: Any = None  # (E,) of all that are read; None: all
        self._count: int | None = None  # all episodes, once they have been read
        self._modules: Counter[str] = Counter()
        self._of_sources: list[Any] = []  # (E,) the source of each episode, where sources have weights

    @property
    def module(self) -> str | None:
        """The module whose episodes were read; None before they were."""
        return next(iter(self._modules), None)

    def choose(self, fraction: float) -> dict[str, Any]:
        """Take the share with the highest returns from now on; figures of it. Raises NoData."""
        chosen, told, notes = best_episodes(self.once(), fraction, self._data.where)
        self._data.facts.notes += notes
        if self._whole is not None:
            self._whole = self._whole.select(np.flatnonzero(chosen))
            self._of_sources = [of[chosen] for of in self._of_sources]
        self._chosen = chosen
        return told

    def once(self) -> Iterator[EpisodeBatch]:
        """All of them. Raises what reading raises, NoData; BadConfig at the end of the data where it holds several modules or
        not the one wanted; BadData where the source has changed since an earlier reading."""
        if self._data.config.streaming:
            yield from self._read()
            return
        if self._whole is None:
            batches = list(self._within_memory(self._read()))
            self._whole = batches.pop() if len(batches) == 1 else EpisodeBatch.concat(batches)
            self._of_sources = [np.concatenate(self._of_sources)] if self._of_sources else []
            del batches
            give_back()
        yield self._whole

    def parts(self) -> Iterator[tuple[EpisodeBatch, Any]]:
        """All of them, for the last time, as many at a time as go through the pipeline together; and, where sources have
        weights, the source (E,) of each."""
        if not self._data.config.streaming:
            (whole,) = self.once()
            self._whole = None
            yield whole, self._of_sources[0] if self._of_sources else None
            return
        for number, part in enumerate(in_parts(self.once())):
            if number % TIDY == TIDY - 1:
                give_back()
            of_sources = None
            if self._weights is not None:  # known as far as was read, which may be farther than the part
                known = np.concatenate(self._of_sources)
                of_sources, self._of_sources = known[: len(part)], [known[len(part) :]]
            yield part, of_sources

    def _read(self) -> Iterator[EpisodeBatch]:
        where, count, found = self._data.where, 0, False
        with self._scope.part() as held:
            stream = held.enter(self._opened.pop() if self._opened else self._open())
            numbers = {} if self._weights is None else self._weights.by_location(stream.locations)
            self._modules, self._of_sources = Counter(), []
            agent = self._data.config.agent
            batches = filter(len, map(with_steps, of_one_agent(self._data.rewarded(stream), agent, where=where)))
            of = where if agent is None else f"{where}, agent {agent}"
            for batch in of_one_module(batches, self._module_id, where=of, seen=self._modules):
                count += len(batch)
                if self._chosen is not None:
                    batch = batch.select(np.flatnonzero(self._chosen[count - len(batch) : count]))
                if self._weights is not None:
                    self._of_sources.append(np.full(len(batch), numbers[stream.drawn_from()], np.int32))
                if len(batch):
                    found = True
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
                raise BadConfig(f"{what}: too much for the memory limit", where=self._data.where, fix=fix)
            yield batch


# ---- what is learned from ----


class TrainingData:
    """What an algorithm learns from, and what makes columns of episodes: spaces, pipeline, and the modules of the algorithm.

    All but the steps is made, and checked, before an episode is read. A run holds `train`, and `val` where episodes are held
    out, until `close`.
    """

    train: Steps
    val: Steps | None = None  # None: nothing was held out
    trained: PipelineSpec | None = None  # what playing the policy takes, with its state; None: no pieces
    columns_anew: Callable[[], Sequence[Mapping[str, Tree]]] | None = None  # of both stores, by the modules as they are then

    def __init__(
        self,
        stream: EpisodeStream,
        config: BCConfig,
        setup: Setup,
        given: PipelineSpec,
        beside: PipelineSpec,
        environment: Environment | None,
    ) -> None:
        """Build the pipeline for an open stream, and the modules for what comes out of it. Raises: see `load_data`."""
        self.where = ", ".join(stream.locations)  # for messages
        self.action_scale = stream.action_scale  # "env" | "normalized"; "unknown" only where no action is a Box
        self.recorded_in = stream.recorded_in  # None: the environment is not known, or there are several
        self.config, self.pipeline = config, given.name  # its name; empty: the default one
        self.pipeline += "" if beside.is_default else f"; beside the environment {beside.name}"
        self.code = [*given.code(), *beside.code()]  # what makes the pieces that the user gave
        self.meanings, self._given, self._environment = stream.meanings, given, environment
        self._algorithm = algorithm = setup.algorithm
        check_known_scale(stream)
        said = stream.observation_space, stream.action_space
        self.spaces = learner_spaces(said, environment, inferred=stream.spaces_inferred, where=self.where)
        self._setting = Setting(*self.spaces)
        self._made = given.build(self._setting)
        self.observation_space: Space = self._made.observation_space or self.spaces[0]  # what the policy sees
        self.action_space: Space = self._made.action_space or self.spaces[1]
        announced = self.observation_space, self.action_space
        check_supported(self.observation_space, where="observations after the learner pipeline")
        self._alone = beside.is_default and given.plays_alone(self._made.pieces())
        self.play = None if environment is None or self._alone else beside_learner(given, beside)  # in the environment
        if environment is not None and self.play is not None:
            self.play.check(environment, *announced, where=PLACE)
        algorithm.extend(self._made)
        self._check_recorded_rewards(stream)
        if setup.start is not None:
            setup.start.check_meanings(self.meanings, self.where)
        self.learner = setup.learner(*announced, stream.action_scale, "" if self._alone else given.in_words)
        names = {name for name, _ in self._made.named()}  # of another pipeline, a resumed run is refused later
        frozen_with(self._made, {name: one for name, one in (setup.learned or {}).items() if name in names})
        if self.learner.is_stateful:
            self.play = self.play or (None if environment is None else PlaySpec())  # the default pieces give it states
        elif Columns.OBS in algorithm.columns:
            stack_by_rows(self._made)
        self.facts = DataFacts(not given.is_default or not {Columns.OBS, Columns.ACTIONS}.issuperset(algorithm.columns))
        self.facts.sources = self.where
        if assumed := stream.tally.assumptions["meaning-assumed"]:
            self.facts.notes.append(f"{assumed} columns of sources are taken to mean what another source alone says of them")

    def close(self) -> None:
        """Release what it holds on disk."""
        for steps in (self.train, self.val):
            if steps is not None:
                steps.close()

    @property
    def pieces(self) -> list[Any]:
        """Of the pipeline that the episodes go through."""
        return list(self._made.pieces())

    def rewarded(self, stream: EpisodeStream) -> Iterator[EpisodeBatch]:
        """The stream. Raises BadData where it has steps without reward, and rewards are needed."""
        for batch in stream:
            self._check_recorded_rewards(stream)
            yield batch

    def _check_recorded_rewards(self, stream: EpisodeStream) -> None:
        """Raise BadData for steps without reward, as far as they are known now, where they are learned from, or chosen by."""
        needed, by_return = uses_rewards(self._algorithm), self.config.top_fraction is not None
        if (needed or by_return) and (found := stream.without_rewards) is not None:
            where, count = found
            why = f"{type(self._algorithm).__name__} learns from rewards" if needed else "--top-fraction chooses by rewards"
            what = f"steps without a reward ({count:,} so far), for which 0 was taken: {why}"
            without = UNREWARDED if needed else "or leave out --top-fraction"
            fix = f"map the column of rewards, and convert again if this is a dataset; {without}"
            raise BadData(what, where=where, fix=fix)

    def checked(self, episodes: EpisodeBatch) -> EpisodeBatch:
        """`episodes`, with actions as a network learns them, and none of the steps that it is not to learn from. Raises BadData
        for values outside the spaces, and rewards that are not finite where they are learned from.
        """
        observations, actions = self.spaces
        if bootstraps(self._algorithm) and not self.config.keep_invented:
            episodes = episodes.without_invented()
        if uses_rewards(self._algorithm):
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
        """What the pipeline makes of checked episodes, which may be no rows: see `learner_columns`."""
        announced, asked = (self.observation_space, self.action_space), self._algorithm.columns
        module = self._algorithm.rl_module(self.learner.modules)
        return learner_columns(self._made, with_steps(episodes), announced, where=self.where, asked=asked, rl_module=module)

    def learn(self, recorded: Recorded, held_out: HeldOut | None) -> None:
        """Have the pieces learn what they learn from the episodes that are not held out, and nothing afterwards.

        Raises what `learned_pieces.learn` raises; BadPiece for a state that cannot be saved, and whatever keeps the policy from
        playing in the environment.
        """

        def learned_from() -> Iterator[EpisodeBatch]:
            for checked in map(self.checked, in_parts(recorded.once())):
                kept = checked if held_out is None else checked.select(np.flatnonzero(~held_out.among(checked)))
                if kept.num_steps:
                    yield with_steps(kept)

        def build() -> Any:
            made = self._given.build(self._setting)
            self._algorithm.extend(made)
            return made

        learn(self._made, build, learned_from, where=self.where, rl_module=self._algorithm.rl_module(self.learner.modules))
        if not self._alone:
            self.trained = self._given.trained(self._made)
        if self._environment is not None and self.play is not None:
            self.play = replace(self.play, trained=self.trained)  # learned states have to find their pieces now, not later
            self.play.check(self._environment, self.observation_space, self.action_space, where=PLACE)


# ---- columns to steps ----


@dataclass(slots=True, eq=False)
class _Store:
    """Steps that come in parts; in memory there is one part."""

    mapped: MappedColumns | None  # None: in memory
    rows: int = 0
    _columns: Mapping[str, Any] | None = None
    _sources: list[Tensor] | None = None

    def add(self, columns: Mapping[str, Any], episodes: EpisodeBatch, of_episodes: Any) -> None:
        """Take the columns that were made of `episodes`, whose sources are `of_episodes` (E,), where sources have weights.

        Raises BadConfig, StorageError.
        """
        rows = len(leaves(next(iter(columns.values())))[0])
        if of_episodes is not None:
            self._sources = [*(self._sources or []), _row_sources(rows, episodes, of_episodes)]
        if self.mapped is not None:
            self.mapped.add(columns)
        else:
            self._columns = columns
        self.rows += rows

    def finish(self, weights: Weights | None = None) -> Steps:
        """All of them; `weights`: of their sources."""
        steps = Steps(self._columns or {}) if self.mapped is None else self.mapped.finish()
        if weights is not None:
            steps.sources = torch.cat(self._sources or [])
            steps.shares = weights.shares(steps.by_source(len(weights.names)))
        return steps

    def close(self) -> None:
        """Release the disk."""
        if self.mapped is not None:
            self.mapped.close()


def _row_sources(rows: int, episodes: EpisodeBatch, of_episodes: Any) -> Tensor:
    """(rows,) the source of each row of columns that were made of `episodes`. Raises BadConfig where they are not its steps."""
    found = np.repeat(of_episodes, episodes.lengths)
    mask = episodes.extra.get(Columns.LOSS_MASK)
    if mask is not None and rows != len(found):
        found = found[np.asarray(mask).astype(np.bool_)]
    if rows != len(found):
        what = f"the learner pipeline makes {rows:,} rows of {episodes.num_steps:,} steps: the source of each is not known"
        raise BadConfig(what, where="--weight", fix="leave out the pieces that add or leave out steps, or the weights")
    return torch.from_numpy(found)
