"""What a run learns from: sources, checked and put through the learner pipeline, as steps in memory or in files.

    sources -> chosen episodes -> checked -> learner pipeline -> Steps

In memory all episodes go through the pipeline at once. With `--streaming` they go through in parts, and the sources are read
once for each thing that has to be known of all episodes beforehand: which are chosen, which are held out, what each piece
learns. `--streaming` is never chosen by itself: what a run holds should follow from the command.

Decisions:

* NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action is never
  learned from, and may be anything. They are refused in rewards by algorithms that learn from these, and so are steps for which
  0 stands because no reward was recorded.
* Extra model outputs that nothing uses are left out before sources are compared: without a pipeline of the user's all but those
  that the algorithm learns from, and `loss_mask`. Pieces of a pipeline may use any output, so all sources must have the same
  ones there.
* Held-out episodes teach no piece anything.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from offline_cli.applying.learner_batches import (
    UNREWARDED,
    check_rewards,
    check_values,
    in_learner_units,
    in_parts,
    learner_columns,
    learner_spaces,
    of_one_module,
    place_of_first,
    stack_by_rows,
    with_steps,
)
from offline_cli.applying.pipeline_run import check_streamable, freeze, learn
from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.connectors.pipeline_spec import Given, PipelineSpec, Setting, notes_on_export
from offline_cli.converting.fitting import ExtraOutputs
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, give_back
from offline_cli.formats.tables.source import LEAST_MEMORY, PLAIN_TABLES, TableOptions
from offline_cli.modules.python_network import use_threads
from offline_cli.policies.play_spec import PlaySpec, beside_learner
from offline_cli.progress import OnProgress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, check_supported
from offline_cli.storage.locations import Sources
from offline_cli.training.algorithms.algorithm import bootstraps, uses_rewards
from offline_cli.training.chosen_episodes import HeldOut, Weights, best_episodes
from offline_cli.training.config import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.steps import Steps
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["DataFacts", "TrainingData", "load_data"]

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
    setup, temp_dir, episode_limit = setup or Setup.of(config), tables.temp_dir, None
    limit = config.memory_limit or (DEFAULT[device] if config.streaming else None)
    room = None if limit is None else limit - PROGRAM[device]
    if room is not None and config.streaming:
        if room < LEAST_ROOM:
            what = f"--memory-limit is too small: torch alone needs {PROGRAM[device] // MiB:,} MiB on this device"
            raise BadConfig(what, where="--memory-limit", fix=f"give at least {(PROGRAM[device] + LEAST_ROOM) // MiB:,} MiB")
        tables, episode_limit = replace(tables, memory_limit=LEAST_MEMORY + room // 4), EpisodeLimit(room // COPIES)
    elif limit is not None:
        tables = replace(tables, memory_limit=max(MEMORY_LIMIT, limit))
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
        if weights is not None and data.learner.is_stateful:
            fix = "leave out the weights, or the memory"
            raise BadConfig("weights draw single steps, and the network has a memory", where="--weight", fix=fix)
        recorded = Recorded(scope, [stream], open_stream, data, module_id, weights, room)
        if config.top_fraction is not None:
            recorded.chosen, data.facts.chosen, notes = best_episodes(recorded.once(), config.top_fraction, data.where)
            data.facts.notes += notes
        held_out = None
        if config.val_fraction is not None:
            held_out = HeldOut(recorded.once(), config.val_fraction, config.seed, data.where)
        if config.streaming:
            check_streamable(data.pieces)
        data.learn_pieces(recorded, held_out)
        data.train, data.val = (Steps(on_disk=config.streaming, temp_dir=temp_dir) for _ in range(2))
        unfinished.callback(data.close)
        with use_threads(1) if config.streaming else nullcontext():  # parts are small: more threads would wait for each other
            _fill(data, recorded, held_out, weights)
        unfinished.pop_all()  # the owner of the data closes it
        data.val = None if held_out is None else data.val
        data.facts.module = module_id or next(iter(recorded.modules), None)
        data.facts.notes += stream.incomplete
        data.facts.invented = data.facts.invented if bootstraps(setup.algorithm) else 0
    if config.streaming:
        give_back()  # before the order of an epoch is drawn, which may take as much
    return data


def _fill(data: TrainingData, recorded: Recorded, held_out: HeldOut | None, weights: Weights | None) -> None:
    """Read all episodes, and put their columns into both stores: `val` takes those that are held out.

    Raises NoData where nothing is left of them, and what reading and the pieces raise.
    """
    stores = [store for store in (data.train, None if held_out is None else data.val) if store is not None]
    counts, of_rows = [0] * len(stores), list[Tensor]()
    for batch in recorded.parts():
        episodes = data.checked(batch)
        data.facts.see(episodes)
        parts = [episodes]
        if held_out is not None:
            is_held = held_out.among(episodes)
            parts = [episodes.select(np.flatnonzero(is_held == held)) for held in (False, True)]
        for number, (store, part) in enumerate(zip(stores, parts, strict=True)):
            if not part.num_steps:
                continue
            counts[number] += part.num_steps
            columns = data.columns(part)
            if columns:
                store.add(columns)
            if columns and weights is not None and store is data.train:
                rows = len(leaves(next(iter(columns.values())))[0])
                of_rows.append(_sources_of_rows(rows, part, recorded.sources_of(part)))
        if data.learner.algorithm.refresh_every is not None:  # which does not stream: this is all there is
            data.columns_anew = lambda parts=parts: [data.columns(part) for part in parts]
    if 0 in counts:
        what = "no step, or none to validate on, leads to an observation that was recorded"
        raise NoData(what, where=data.where, fix="record new_obs too, or --keep-invented to learn from copies of obs")
    if not all(map(len, stores)):
        raise BadConfig(f"{Columns.LOSS_MASK!r} leaves no row to learn from", where=PLACE, fix="mask fewer rows")
    if weights is not None:
        data.train.sources = torch.cat(of_rows)
        steps = data.train.sources.bincount(minlength=len(weights.names)).tolist()
        data.train.shares, data.facts.weights = weights.shares(steps), weights.as_dict(steps)


def _sources_of_rows(rows: int, episodes: EpisodeBatch, of_episodes: Any) -> Tensor:
    """(rows,) the source of each row of columns that were made of `episodes`. Raises BadConfig where they are not its steps."""
    found = np.repeat(of_episodes, episodes.lengths)
    mask = episodes.extra.get(Columns.LOSS_MASK)
    if mask is not None and rows != len(found):
        found = found[np.asarray(mask).astype(np.bool_)]
    if rows != len(found):
        what = f"the learner pipeline makes {rows:,} rows of {episodes.num_steps:,} steps: the source of each is not known"
        raise BadConfig(what, where="--weight", fix="leave out the pieces that add or leave out steps, or the weights")
    return torch.from_numpy(found)


@dataclass(slots=True, eq=False)
class Recorded:
    """The episodes of the module that learns, as they were recorded: those that have a step, and are chosen.

    In memory they are read once; streaming, each reading opens the sources anew.
    """

    scope: Scope
    opened: list[EpisodeStream]  # what the first reading takes
    open_stream: Callable[[], EpisodeStream]
    data: TrainingData
    module_id: str | None
    weights: Weights | None
    room: int | None  # bytes for what is held in memory; None: any
    chosen: set[tuple[str, str | None]] | None = None  # ids with agents; None: all
    modules: Counter[str] = field(default_factory=Counter)  # episodes of each, once they were read
    _whole: EpisodeBatch | None = None
    _count: int | None = None  # all episodes, once they have been read
    _sources: dict[str, int] = field(default_factory=dict)  # of each episode by id, where sources have weights

    def once(self) -> Iterator[EpisodeBatch]:
        """All of them. Raises what reading raises, NoData; BadConfig at the end of the data where it holds several modules or
        not the one wanted, and where it does not fit into memory; BadData where the source has changed since an earlier
        reading.
        """
        if self.data.config.streaming:
            yield from filter(len, map(self._only_chosen, self._read()))
            return
        if self._whole is None:
            batches = list(self._read())
            self._whole = batches.pop() if len(batches) == 1 else EpisodeBatch.concat(batches)
            del batches
            give_back()
        yield self._only_chosen(self._whole)

    def parts(self) -> Iterator[EpisodeBatch]:
        """All of them, for the last time, as many at a time as go through the pipeline together."""
        if not self.data.config.streaming:
            (whole,) = self.once()
            self._whole = None
            yield whole
            return
        for number, part in enumerate(in_parts(self.once())):
            if number % TIDY == TIDY - 1:
                give_back()
            yield part

    def sources_of(self, episodes: EpisodeBatch) -> Any:
        """(E,) int32: the source of each episode, where sources have weights."""
        return np.array([self._sources[id_] for id_ in episodes.ids], np.int32)

    def _only_chosen(self, batch: EpisodeBatch) -> EpisodeBatch:
        if self.chosen is None:
            return batch
        names = zip(batch.ids, batch.agent_ids or (None,) * len(batch), strict=True)
        return batch.select(np.flatnonzero([name in self.chosen for name in names]))

    def _read(self) -> Iterator[EpisodeBatch]:
        config, where, count, size, steps = self.data.config, self.data.where, 0, 0, 0
        with self.scope.part() as held:
            stream = held.enter(self.opened.pop() if self.opened else self.open_stream())
            numbers = {} if self.weights is None else self.weights.by_location(stream.locations)
            self.modules = Counter()
            batches = filter(len, map(with_steps, stream))
            for batch in of_one_module(batches, config.agent, self.module_id, where=where, seen=self.modules):
                self.data.check_recorded_rewards(stream)
                count, size, steps = count + len(batch), size + batch.nbytes, steps + batch.num_steps
                if not config.streaming and self.room is not None and COPIES * size > self.room:
                    what = f"the first {steps:,} steps take {size // MiB:,} MiB, several times while they are put together"
                    fix = "--streaming, which keeps them on disk; or a larger --memory-limit"
                    raise BadConfig(f"{what}: too much for the memory limit", where=where, fix=fix)
                if self.weights is not None:
                    self._sources |= dict.fromkeys(batch.ids, numbers[stream.drawn_from()])
                yield batch
                del batch
        if self._count not in (None, count):
            what = f"the source changed while it was read: {count:,} episodes, and {self._count:,} before"
            raise BadData(what, where=where, fix="train on a copy of it")
        self._count = count
        if not count:
            raise NoData("no episode has any steps", where=where, fix="record again")


class TrainingData:
    """What an algorithm learns from, and what makes columns of episodes: spaces, pipeline, and the modules of the algorithm.

    All but the steps is made, and checked, before an episode is read. A run holds `train`, and `val` where episodes are held
    out, until `close`.
    """

    train: Steps
    val: Steps | None = None  # None: nothing was held out
    trained: PipelineSpec | None = None  # what playing the policy takes, with its state; None: no pieces
    columns_anew: Callable[[], Sequence[Mapping[str, Any]]] | None = None  # of both stores, by the modules as they are then

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
        self.pipeline = given.name + ("" if beside.is_default else f"; beside the environment {beside.name}")  # empty: default
        self.code = [*given.code(), *beside.code()]  # what makes the pieces that the user gave
        self.config, self.meanings = config, stream.meanings
        self._given, self._environment, self._algorithm = given, environment, setup.algorithm
        self.spaces = learner_spaces(stream, environment)
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
        setup.algorithm.extend(self._made)
        self.check_recorded_rewards(stream)
        if setup.start is not None:
            setup.start.check_meanings(self.meanings, self.where)
        self.learner = setup.learner(*announced, stream.action_scale, "" if self._alone else given.in_words)
        learned = setup.learned or {}
        for name, piece in self._made.named():
            if name in learned:  # else, with another pipeline, a resumed run is refused later
                piece.set_state(learned[name])
                freeze(piece)
        if self.learner.is_stateful:
            self.play = self.play or (None if environment is None else PlaySpec())  # the default pieces give it states
        elif Columns.OBS in setup.algorithm.columns:
            stack_by_rows(self._made)
        self.facts = DataFacts(not given.is_default or not {Columns.OBS, Columns.ACTIONS}.issuperset(setup.algorithm.columns))
        self.facts.sources = self.where
        if assumed := stream.tally.assumptions["meaning-assumed"]:
            self.facts.notes.append(f"{assumed} columns of sources are taken to mean what another source alone says of them")
        if not self._alone:
            self.facts.notes += notes_on_export(given, self._setting)

    def close(self) -> None:
        """Release what it holds on disk."""
        for steps in (self.train, self.val):
            if steps is not None:
                steps.close()

    @property
    def pieces(self) -> list[Any]:
        """Of the pipeline that the episodes go through."""
        return list(self._made.pieces())

    def check_recorded_rewards(self, stream: EpisodeStream) -> None:
        """Raise BadData for steps without reward, as far as they are known now, where they are learned from, or chosen by."""
        needed = uses_rewards(self._algorithm)
        if (needed or self.config.top_fraction is not None) and (found := stream.without_rewards) is not None:
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
        if bootstraps(self._algorithm) and not self.config.keep_invented:
            episodes = episodes.without_invented()
        if uses_rewards(self._algorithm):
            check_rewards(episodes, self.where)
        for name, space in zip(("observations", "actions"), self.spaces, strict=True):
            check_values(episodes, space, name, self.where, self.meanings)
        if self.learner.is_stateful and Columns.STATE_OUT in episodes.extra:  # of the network that played
            extra = {name: tree for name, tree in episodes.extra.items() if name != Columns.STATE_OUT}
            episodes = replace(episodes, extra=extra)
        return in_learner_units(episodes, self.spaces[1], self.action_scale)

    def columns(self, episodes: EpisodeBatch) -> dict[str, Any]:
        """What the pipeline makes of checked episodes, which may be no rows: see `learner_columns`."""
        announced, asked = (self.observation_space, self.action_space), self._algorithm.columns
        module = self._algorithm.rl_module(self.learner.modules)
        return learner_columns(self._made, with_steps(episodes), announced, where=self.where, asked=asked, rl_module=module)

    def learn_pieces(self, recorded: Recorded, held_out: HeldOut | None) -> None:
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


@dataclass(slots=True, eq=False)
class DataFacts:
    """Counts, faults of rewards, notes, and the digest by which a resumed run knows its data again.

    Collected batch by batch over all episodes that are learned from, held-out ones included.
    """

    every_leaf: bool = False  # the digest is of all that pieces may read, rewards for instance, not of obs and actions alone
    episodes: int = 0
    steps: int = 0
    invented: int = 0  # episodes that do not end at an observation that was recorded
    faults: Counter[str] = field(default_factory=Counter)  # rewards that are not finite, by kind as `validate` calls it
    all_zero: bool = True  # all rewards
    sources: str = ""  # where the episodes are from
    module: str | None = None  # whose episodes they are
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, of how many, and their least return
    weights: Mapping[str, Any] = field(default_factory=dict)  # by source: weight, steps, and steps of it in an epoch
    notes: list[str] = field(default_factory=list)
    _first_fault: str = ""  # episode and step of the first reward that is not finite
    _agents: Counter[str] = field(default_factory=Counter)  # episodes of each
    _hashes: dict[str, Any] = field(default_factory=dict)  # a running hash of ids and each leaf, whatever parts they come in

    def see(self, episodes: EpisodeBatch) -> None:
        """Take more episodes into account, each once."""
        self.episodes, self.steps = self.episodes + len(episodes), self.steps + episodes.num_steps
        self.invented += int(np.count_nonzero(episodes.invented_ends))
        self._agents.update(filter(None, episodes.agent_ids or ()))
        self.all_zero = self.all_zero and not episodes.rewards.any()
        for kind, wrong in (("nan", np.isnan(episodes.rewards)), ("infinite", np.isinf(episodes.rewards))):
            if wrong.any():
                self.faults[f"{kind}-in-rewards"] += int(np.count_nonzero(wrong))
                self._first_fault = self._first_fault or place_of_first(episodes, ~np.isfinite(episodes.rewards))
        self._hash("ids", "".join(f"{id_}\n" for id_ in episodes.ids).encode("utf-8", "surrogatepass"))
        trees: dict[str, Tree] = {"lengths": episodes.lengths, Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions}
        if self.every_leaf:
            trees |= {"rewards": episodes.rewards, "terminated": episodes.terminated, "truncated": episodes.truncated}
            trees |= {"extra": dict(episodes.extra)}
        for path, leaf in flatten(trees):
            self._hash(f"{path} {leaf.dtype}{leaf.shape[1:]}", np.ascontiguousarray(leaf).data.cast("B") if leaf.size else b"")

    def _hash(self, name: str, data: Any) -> None:
        self._hashes.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)

    @property
    def digest(self) -> str:
        """Hex; the same for the same episodes in the same order, drawn in the same shares."""
        lines = [f"{name} {one.hexdigest()}" for name, one in sorted(self._hashes.items())]
        lines += [json.dumps(self.weights)] if self.weights else []
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the digest, by which a difference can be said in words: JSON values."""
        told = {"sources": self.sources, "module": self.module, "episodes": self.episodes, "steps": self.steps}
        return told | {"weights": {name: one["weight"] for name, one in self.weights.items()}}

    def own_notes(self, config: BCConfig, *, uses_rewards: bool) -> list[str]:
        """On last observations and rewards, and on agents that share the module that learns."""
        notes, algorithm = list[str](), config.algorithm["name"]
        if self.invented:
            left_out = f"the last step of each is left out, as {algorithm} bootstraps; --keep-invented takes them"
            how = f"{algorithm} bootstraps from copies of the ones before" if config.keep_invented else left_out
            notes.append(f"{self.invented:,} truncated episodes have no recorded last observation: {how}")
        if len(self._agents) > 1:
            named = ", ".join(f"{name} ({count:,} episodes)" for name, count in self._agents.most_common(8))
            notes.append(f"one policy learns from the episodes of {len(self._agents):,} agents of one module: {named}")
        if self.faults:
            named = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.items())
            why = "" if uses_rewards else f"; {algorithm} does not use them"
            notes.append(f"rewards that are not finite, first in {self._first_fault}: {named}{why}")
        if uses_rewards and self.all_zero:
            notes.append("all rewards are 0: by them no action is better than another")
        return notes
