"""TrainingData: sources, validated and passed through the learner pipeline, as steps in memory or in files.

    sources -> chosen episodes -> checked -> learner pipeline -> Steps

In memory all episodes go through the pipeline at once. With `--streaming` they go through in parts, and the sources are read
once more for each fact about all episodes: the selection, the held-out split, and the state of each piece. `--streaming` is
never automatic: the command alone determines the content of a run.

Rules:

* NaN and infinity are refused in actions and in observations acted on; the final observation is not learned from, and may be
  anything. Algorithms that use rewards refuse non-finite rewards, and steps whose reward is 0 because none was recorded.
* Unused extra model outputs are dropped before sources are compared: without a user pipeline all but those that the algorithm
  uses, and `loss_mask`. Pieces of a user pipeline may use any output, so then all sources must have the same ones.
* Pieces do not learn from held-out episodes.
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
from offline_cli.training.chosen_episodes import REMEMBERED, HeldOut, Weights, best_episodes, content_hashes
from offline_cli.training.config import BCConfig
from offline_cli.training.learner import Setup
from offline_cli.training.observation_scale import ObservationScale
from offline_cli.training.steps import Steps
from offline_cli.trees import Tree, flatten, leaves

__all__ = ["DataFacts", "TrainingData", "load_data"]

PLACE: Final = "learner pipeline"
TIDY: Final = 16  # parts between two returns of free memory to the system, which halve the peak


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
    tables: TableOptions = PLAIN_TABLES,
    weights: Weights | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress,
) -> TrainingData:
    """Read all `sources` and pass them through the learner pipeline, whose pieces learn from training episodes only.

    `setup`: algorithm and network; None: from the configuration. With `config.streaming` the steps go to temporary files in the
    `temp_dir` of `tables`, which `TrainingData.close` deletes.

    Raises like `read_episodes`, NoData if no episode has steps, BadData for values outside the spaces; BadConfig for an unknown
    scale of Box actions, episodes beyond the memory limit, episodes of several modules without `module_id`, and no episodes of
    the agent. Before reading data: SpaceMismatch if the policy cannot play in `environment` or a piece cannot take the spaces,
    BadConfig if a pipeline is invalid or cannot stream; afterwards BadPiece if a piece raises or its state cannot be saved;
    StorageError for a full disk.
    """
    setup, temp_dir, episode_limit = setup or Setup.of(config), tables.temp_dir, None
    limit = config.memory_limit or MEMORY_LIMIT
    if config.streaming:  # half of it is for reading
        tables = replace(tables, memory_limit=max(LEAST_MEMORY, limit // 2))
        episode_limit = EpisodeLimit.within(tables.memory_limit)
    else:
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
            fix = "leave out --weight, or use a network without memory"
            raise BadConfig("--weight does not support recurrent networks", where="--weight", fix=fix)
        recorded = Recorded(scope, [stream], open_stream, data, module_id, weights)
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
        with use_threads(1) if config.streaming else nullcontext():  # more threads do not help on small parts
            _fill(data, recorded, held_out, weights)
        unfinished.pop_all()  # the owner of the data closes it
        data.val = None if held_out is None else data.val
        data.facts.module = module_id or next(iter(recorded.modules), None)
        data.facts.notes += stream.incomplete
        data.facts.invented = data.facts.invented if bootstraps(setup.algorithm) else 0
    if config.streaming:
        give_back()  # the epoch order may need as much memory
    return data


def _fill(data: TrainingData, recorded: Recorded, held_out: HeldOut | None, weights: Weights | None) -> None:
    """Read all episodes, and add their columns to the stores: held-out ones to `val`, others to `train`.

    Raises NoData if no step is left, and what reading and the pieces raise.
    """
    stores = [store for store in (data.train, None if held_out is None else data.val) if store is not None]
    counts, of_rows, scale = [0] * len(stores), list[Tensor](), ObservationScale(data.observation_space)
    for batch in recorded.parts():
        episodes = data.checked(batch)
        data.facts.see(episodes)
        data.facts.remember(batch)
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
                scale.see(columns.get(Columns.OBS, ()))
            if columns and weights is not None and store is data.train:
                rows = len(leaves(next(iter(columns.values())))[0])
                of_rows.append(_sources_of_rows(rows, part, recorded.sources_of(part)))
        if data.learner.algorithm.refresh_every is not None:  # not streaming: this is the only part
            data.columns_anew = lambda parts=parts: [data.columns(part) for part in parts]
    if 0 in counts:
        what = "no training or held-out step has a recorded next observation"
        raise NoData(what, where=data.where, fix="record new_obs, or use --keep-invented to learn from copies of obs")
    if not all(map(len, stores)):
        raise BadConfig(f"{Columns.LOSS_MASK!r} masks all rows", where=PLACE, fix="mask fewer rows")
    data.facts.notes += scale.notes(data.meanings)
    if weights is not None:
        data.train.sources = torch.cat(of_rows)
        steps = data.train.sources.bincount(minlength=len(weights.names)).tolist()
        data.train.shares, data.facts.weights = weights.shares(steps), weights.as_dict(steps)


def _sources_of_rows(rows: int, episodes: EpisodeBatch, of_episodes: Any) -> Tensor:
    """(rows,) source index of each row made from `episodes`. Raises BadConfig if rows do not correspond to steps."""
    of_steps = np.repeat(of_episodes, episodes.lengths)
    mask = episodes.extra.get(Columns.LOSS_MASK)
    if mask is not None and rows != len(of_steps):
        of_steps = of_steps[np.asarray(mask).astype(np.bool_)]
    if rows != len(of_steps):
        what = f"the learner pipeline makes {rows:,} rows of {episodes.num_steps:,} steps, so their sources are unknown"
        raise BadConfig(what, where="--weight", fix="leave out pieces that add or remove steps, or --weight")
    return torch.from_numpy(of_steps)


@dataclass(slots=True, eq=False)
class Recorded:
    """The selected, non-empty episodes of the learning module, as recorded.

    In memory they are read once; when streaming, each pass opens the sources again.
    """

    scope: Scope
    opened: list[EpisodeStream]  # the open stream for the first pass
    open_stream: Callable[[], EpisodeStream]
    data: TrainingData
    module_id: str | None
    weights: Weights | None
    chosen: set[tuple[str, str | None]] | None = None  # (id, agent) of selected episodes; None: all
    modules: Counter[str] = field(default_factory=Counter)  # episodes by module, after reading
    _whole: EpisodeBatch | None = None
    _count: int | None = None  # number of episodes, after reading
    _sources: dict[str, int] = field(default_factory=dict)  # source index by episode id, if sources have weights

    def once(self) -> Iterator[EpisodeBatch]:
        """One pass over all episodes. Raises what reading raises, NoData; BadConfig at the end of the data for several modules
        or a missing one, and if it exceeds the memory limit; BadData if the source changed since an earlier pass.
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
        """The last pass over all episodes, in parts for the pipeline."""
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
        """(E,) int32: source index of each episode, if sources have weights."""
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
                if not config.streaming and config.memory_limit is not None and 2 * size > config.memory_limit:
                    what = f"the first {steps:,} steps take {size:,} bytes, more than half of the memory limit"
                    fix = "use --streaming, which keeps them on disk, or a larger --memory-limit"
                    raise BadConfig(what, where=where, fix=fix)
                if self.weights is not None:
                    self._sources |= dict.fromkeys(batch.ids, numbers[stream.drawn_from()])
                yield batch
                del batch
        if self._count not in (None, count):
            what = f"the source changed while reading: {count:,} episodes, but {self._count:,} before"
            raise BadData(what, where=where, fix="train on a copy")
        self._count = count
        if not count:
            raise NoData("no episode has any steps", where=where, fix="record again")


class TrainingData:
    """The training data of a run, with its spaces, learner pipeline, and the algorithm's modules.

    Everything except the steps is built and checked before an episode is read. `train`, and `val` for held-out episodes, exist
    until `close`.
    """

    train: Steps
    val: Steps | None = None  # None: no held-out episodes
    trained: PipelineSpec | None = None  # trained pipeline for playing; None: no pieces
    columns_anew: Callable[[], Sequence[Mapping[str, Any]]] | None = None  # recompute both stores with the current modules

    def __init__(
        self,
        stream: EpisodeStream,
        config: BCConfig,
        setup: Setup,
        given: PipelineSpec,
        beside: PipelineSpec,
        environment: Environment | None,
    ) -> None:
        """Build the pipeline for an open stream, and the modules for its output spaces. Raises: see `load_data`."""
        self.where = ", ".join(stream.locations)  # for messages
        self.action_scale = stream.action_scale  # "env" | "normalized"; "unknown" only where no action is a Box
        self.recorded_in = stream.recorded_in  # None: unknown, or several
        self.pipeline = given.name + ("" if beside.is_default else f"; beside the environment {beside.name}")  # empty: default
        self.code = [*given.code(), *beside.code()]  # classes and functions of the user's pieces
        self.config, self.meanings = config, stream.meanings
        self._given, self._environment, self._algorithm = given, environment, setup.algorithm
        self.spaces = learner_spaces(stream, environment)
        self._setting = Setting(*self.spaces)
        self._made = given.build(self._setting)
        self.observation_space: Space = self._made.observation_space or self.spaces[0]  # the policy's input
        self.action_space: Space = self._made.action_space or self.spaces[1]
        announced = self.observation_space, self.action_space
        check_supported(self.observation_space, where="observations after the learner pipeline")
        self._alone = beside.is_default and given.plays_alone(self._made.pieces())
        self.play = None if environment is None or self._alone else beside_learner(given, beside)  # for checks
        if environment is not None and self.play is not None:
            self.play.check(environment, *announced, where=PLACE)
        setup.algorithm.extend(self._made)
        self.check_recorded_rewards(stream)
        if setup.start is not None:
            setup.start.check_meanings(self.meanings, self.where)
        self.learner = setup.learner(*announced, stream.action_scale, "" if self._alone else given.in_words)
        learned = setup.learned or {}
        for name, piece in self._made.named():
            if name in learned:  # resuming with another pipeline is refused later
                piece.set_state(learned[name])
                freeze(piece)
        if self.learner.is_stateful:
            self.play = self.play or (None if environment is None else PlaySpec())  # the default pieces handle its state
        elif Columns.OBS in setup.algorithm.columns:
            stack_by_rows(self._made)
        self.facts = DataFacts(not given.is_default or not {Columns.OBS, Columns.ACTIONS}.issuperset(setup.algorithm.columns))
        self.facts.sources = self.where
        if assumed := stream.tally.assumptions["meaning-assumed"]:
            self.facts.notes.append(f"{assumed} columns take their meaning from another source")
        if not self._alone:
            self.facts.notes += notes_on_export(given, self._setting)

    def close(self) -> None:
        """Delete temporary files."""
        for steps in (self.train, self.val):
            if steps is not None:
                steps.close()

    @property
    def pieces(self) -> list[Any]:
        """Pieces of the learner pipeline."""
        return list(self._made.pieces())

    def check_recorded_rewards(self, stream: EpisodeStream) -> None:
        """Raise BadData if rewards are needed, and steps read so far have none."""
        needed = uses_rewards(self._algorithm)
        if (needed or self.config.top_fraction is not None) and (found := stream.without_rewards) is not None:
            where, count = found
            why = f"{type(self._algorithm).__name__} learns from rewards" if needed else "--top-fraction needs rewards"
            what = f"{why}, but {count:,} steps so far have none (0 was assumed)"
            without = UNREWARDED if needed else "or leave out --top-fraction"
            fix = f"map the reward column (a dataset must be converted again); {without}"
            raise BadData(what, where=where, fix=fix)

    def checked(self, episodes: EpisodeBatch) -> EpisodeBatch:
        """`episodes` with actions in network units, without steps that must not be learned from. Raises BadData for values
        outside the spaces, and for non-finite rewards if they are used.
        """
        if bootstraps(self._algorithm) and not self.config.keep_invented:
            episodes = episodes.without_invented()
        if uses_rewards(self._algorithm):
            check_rewards(episodes, self.where)
        for name, space in zip(("observations", "actions"), self.spaces, strict=True):
            check_values(episodes, space, name, self.where, self.meanings)
        if self.learner.is_stateful and Columns.STATE_OUT in episodes.extra:  # recorded states belong to another network
            extra = {name: tree for name, tree in episodes.extra.items() if name != Columns.STATE_OUT}
            episodes = replace(episodes, extra=extra)
        return in_learner_units(episodes, self.spaces[1], self.action_scale)

    def columns(self, episodes: EpisodeBatch) -> dict[str, Any]:
        """The pipeline's columns for checked episodes, possibly without rows: see `learner_columns`."""
        announced, asked = (self.observation_space, self.action_space), self._algorithm.columns
        module = self._algorithm.rl_module(self.learner.modules)
        return learner_columns(self._made, with_steps(episodes), announced, where=self.where, asked=asked, rl_module=module)

    def learn_pieces(self, recorded: Recorded, held_out: HeldOut | None) -> None:
        """Learn the states of the pieces from training episodes, then freeze them.

        Raises like `pipeline_run.learn`; BadPiece for a state that cannot be saved, and like `PlaySpec.check`.
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
            self.play = replace(self.play, trained=self.trained)  # check now that every state has its piece
            self.play.check(self._environment, self.observation_space, self.action_space, where=PLACE)


@dataclass(slots=True, eq=False)
class DataFacts:
    """Counts, reward faults, notes, and the digest that identifies the data of a resumed run.

    Collected batch by batch over all episodes, including held-out ones.
    """

    every_leaf: bool = False  # the digest covers everything that pieces may read, not only obs and actions
    episodes: int = 0
    steps: int = 0
    invented: int = 0  # episodes without a recorded final observation
    faults: Counter[str] = field(default_factory=Counter)  # non-finite rewards by `validate`'s code
    all_zero: bool = True  # all rewards are 0
    sources: str = ""  # locations of the episodes
    module: str | None = None  # module of the episodes
    chosen: Mapping[str, Any] = field(default_factory=dict)  # by --top-fraction: episodes, total, and lowest selected return
    weights: Mapping[str, Any] = field(default_factory=dict)  # by source: weight, steps, and expected steps per epoch
    notes: list[str] = field(default_factory=list)
    remembered: Any = field(default_factory=lambda: np.zeros((2, 0), np.uint64))  # the smallest of all `content_hashes`, sorted
    _first_fault: str = ""  # episode and step of the first non-finite reward
    _agents: Counter[str] = field(default_factory=Counter)  # episodes by agent
    _hashes: dict[str, Any] = field(default_factory=dict)  # running hash of ids and of each leaf, independent of batches

    def see(self, episodes: EpisodeBatch) -> None:
        """Add episodes, each once."""
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

    def remember(self, episodes: EpisodeBatch) -> None:
        """Add episodes as recorded, each once."""
        self.remembered = np.sort(np.concatenate([self.remembered, content_hashes(episodes)], 1))[:, :REMEMBERED]

    def _hash(self, name: str, data: Any) -> None:
        self._hashes.setdefault(name, hashlib.blake2b(digest_size=16)).update(data)

    @property
    def digest(self) -> str:
        """Hex digest; equal for equal episodes in the same order with the same weights."""
        lines = [f"{name} {one.hexdigest()}" for name, one in sorted(self._hashes.items())]
        lines += [json.dumps(self.weights)] if self.weights else []
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def figures(self) -> dict[str, Any]:
        """JSON values that checkpoints store with the digest, to explain a difference."""
        figures = {"sources": self.sources, "module": self.module, "episodes": self.episodes, "steps": self.steps}
        return figures | {"weights": {name: one["weight"] for name, one in self.weights.items()}}

    def own_notes(self, config: BCConfig, *, uses_rewards: bool) -> list[str]:
        """Notes on final observations, rewards, and agents that share the learning module."""
        notes, algorithm = list[str](), config.algorithm["name"]
        if self.invented:
            left_out = f"their last steps are left out, because {algorithm} bootstraps; --keep-invented keeps them"
            how = f"{algorithm} bootstraps from a copy of the previous one" if config.keep_invented else left_out
            notes.append(f"{self.invented:,} truncated episodes have no recorded last observation: {how}")
        if len(self._agents) > 1:
            named = ", ".join(f"{name} ({count:,} episodes)" for name, count in self._agents.most_common(8))
            notes.append(f"one policy learns from the episodes of {len(self._agents):,} agents of one module: {named}")
        if self.faults:
            named = ", ".join(f"{kind} {count:,}" for kind, count in self.faults.items())
            why = "" if uses_rewards else f"; {algorithm} does not use them"
            notes.append(f"non-finite rewards, first in {self._first_fault}: {named}{why}")
        if uses_rewards and self.all_zero:
            notes.append("all rewards are 0, so no action is better than another")
        return notes
