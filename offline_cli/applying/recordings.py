"""The sources that a pipeline is applied to (spaces, if possible without reading, and episodes), and summaries of batches.

Spaces are those that `train-bc` would use with the same options: what the sources declare, or `env`'s where it is given and
the data fits it. Only where neither declares them are they inferred from what is read.

`Seen`: what a batch or episodes hold at some point of a pipeline, in figures for people. Columns come in every form that pieces
leave them in (`connectors/batch_items.py`): `items`, not stacked yet; `array`; `tensor`; `list`, of infos for instance. Nested
columns are named by path, `obs.camera`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from torch import Tensor

from offline_cli.applying.learned_pieces import frozen_with, learn
from offline_cli.applying.learner_batches import check_known_scale, in_learner_units, learner_spaces, with_steps
from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.connectors.batch_items import Items, is_filed
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.connector_v2 import Batch, Episodes
from offline_cli.connectors.pipeline_spec import PipelineSpec, Setting
from offline_cli.converting.fitting import misfits
from offline_cli.converting.reading import EpisodeStream, read_opened
from offline_cli.engines.engine import EngineSpec
from offline_cli.environments import Environment, EnvironmentSpec, open_environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import SpaceMismatch, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.opening import open_sources
from offline_cli.formats.source import Source
from offline_cli.formats.tables import TableOptions
from offline_cli.modules.rl_module import RLModule, is_stateful
from offline_cli.policies.run_policy import LoadedPolicy
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, same_space
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.trees import Tree, flatten

__all__ = ["Network", "Ready", "Recordings", "Said", "Seen", "dtype_name", "seen_in_batch", "seen_in_episodes"]

_log = logging.getLogger(__name__)

NO_EXTRA: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
Spaces = tuple[Space, Space]  # of observations and of actions

SHOWN: Final = 8  # values
SHOWN_OF_ONE: Final = 16  # where one row has more
SHOWN_LETTERS: Final = 60  # of a value that is not a number


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """What pieces get as `rl_module`: the policy of a run folder; without one nothing."""

    url: str = ""
    loaded: LoadedPolicy | None = None

    @property
    def module(self) -> RLModule | None:
        return None if self.loaded is None else self.loaded.module

    @property
    def axes(self) -> int:
        """Of a column before those of one value: rows, or sequences and their steps."""
        return 2 if is_stateful(self.module) else 1

    def pipeline(self, file: PipelineSpec, spaces: Spaces) -> ConnectorPipelineV2:
        """The pipeline of `file` for these spaces. Pieces that the run's policy plays through keep what they had learned there,
        and learn no more.

        Raises SpaceMismatch, naming the piece, and with every difference where the network is of other spaces than come out.
        """
        made = file.build(Setting(*spaces))
        if self.loaded is None:
            return made
        after = made.observation_space or spaces[0], made.action_space or spaces[1]
        known = self.loaded.module.observation_space, self.loaded.module.action_space
        problems = [
            text.replace("the data has", "the pipeline gives").replace("the environment", "the network takes")
            for what, space, own in zip(("observations", "actions"), after, known, strict=True)
            for text in misfits(space, own, inferred=False, what=what)
        ]
        if problems:
            fix = "the pipeline that the run was trained through, in its spaces, or another run"
            raise SpaceMismatch.of(problems, where=f"--policy {self.url}", fix=fix)
        state = {} if self.loaded.trained is None else self.loaded.trained.state
        names = {name for name, _ in made.named()}
        frozen_with(made, {name: part for name, part in state.items() if name in names})
        if lacking := [name for name in state if name not in names]:
            what = "note: the policy of %s was trained through pieces that learned and that this pipeline has not: %s"
            _log.warning(what, self.url, ", ".join(lacking))
        return made

    def told(self) -> dict[str, str]:
        """For provenance; empty: there is none."""
        if self.loaded is None:
            return {}
        return {"run": self.url, "sha256": self.loaded.sha256}


@dataclass(frozen=True, slots=True)
class Said:
    """What a caller says of the sources."""

    sources: Sources = ()
    from_: str = SOURCE_FORMAT
    env: AskedEnvironment | None = None
    action_scale: str | None = None
    tables: TableOptions | None = None
    storage_options: Mapping[str, Any] | None = None
    beside: Sequence[str] = ()  # other places that the storage options are for
    engine: EngineSpec | None = None
    on_progress: OnProgress = no_progress
    network: Network = field(default_factory=Network)  # that pieces get

    def open(self) -> Recordings:
        """Open them, reading no episode. Raises what `open_sources` and `open_environment` raise."""
        places = expand(self.sources, self.storage_options, beside=self.beside)
        if not places and self.env is None:
            raise _no_sources()
        opened = [] if not places else self._opened(places)
        if self.env is None:
            return Recordings(self, places, opened, None, None)
        with Scope() as scope:
            for source in opened:
                scope.enter(closing(source))
            spec = self.env.among((source.info.location, source.info.environment) for source in opened)
            with open_environment(spec.id, spec.kwargs, spec.wrappers) as environment:
                pass  # what is asked of it holds when it is closed, too
            scope.moved()
        return Recordings(self, places, opened, spec, environment)

    def _opened(self, places: Sequence[Location]) -> list[Source]:
        return open_sources(places, from_=self.from_, tables=self.tables, storage_options=self.storage_options)


@dataclass(frozen=True, slots=True)
class Recordings:
    """Opened sources; may be none where an environment says the spaces."""

    said: Said
    places: Sequence[Location]
    opened: Sequence[Source]
    spec: EnvironmentSpec | None  # of the environment
    environment: Environment | None  # closed

    @property
    def where(self) -> str:
        """The sources, for messages."""
        return ", ".join(source.info.location for source in self.opened) or f"--env {self.spec and self.spec.id}"

    @property
    def inferred(self) -> bool:
        """Whether a dataset calls its spaces a guess."""
        return any(source.info.spaces_inferred for source in self.opened)

    def spaces(self) -> Spaces | None:
        """What is known without reading an episode; None: nothing says it. Raises SpaceMismatch where data does not fit."""
        pairs = [source.info.spaces for source in self.opened]
        if self.environment is not None and (not pairs or any(None in pair for pair in pairs)):
            return self.environment.observation_space, self.environment.action_space
        agreed = _agreed([pair[0] for pair in pairs]), _agreed([pair[1] for pair in pairs])
        if agreed[0] is None or agreed[1] is None:
            return None
        return learner_spaces((agreed[0], agreed[1]), self.environment, inferred=self.inferred, where=self.where)

    def stream(self, *, limit: int | None) -> EpisodeStream:
        """The episodes, to be read once. Raises what `read_opened` raises, and UsageError without any source."""
        if not self.opened:
            raise _no_sources()
        given, memory_limit = self.environment, MEMORY_LIMIT if self.said.tables is None else self.said.tables.memory_limit
        return read_opened(
            self.opened,
            env=self.spec,
            env_spaces=None if given is None else (given.observation_space, given.action_space),
            action_scale=self.said.action_scale,
            limit=limit,
            memory_limit=memory_limit,
            episode_limit=EpisodeLimit.within(memory_limit),
            engine=self.said.engine,
            on_progress=self.said.on_progress,
        )

    def ready(self, file: PipelineSpec, *, limit: int | None) -> Ready:
        """Pipeline and episodes; where spaces are known without, the pipeline is built before an episode is read.

        The caller closes the stream of episodes.
        Raises SpaceMismatch, naming the piece; BadConfig for Box actions of unknown scale; what reading raises.
        """
        known, network = self.spaces(), self.said.network
        pipeline = None if known is None else network.pipeline(file, known)
        stream = self.stream(limit=limit)
        with Scope() as scope:
            scope.enter(stream)
            check_known_scale(stream)
            spaces = self.spaces_of(stream)
            ready = Ready(stream, *spaces, pipeline or network.pipeline(file, spaces), file, self.where, network)
            scope.moved()  # the owner of the stream closes it
        return ready

    def spaces_of(self, stream: EpisodeStream) -> Spaces:
        """The spaces of a stream of these. Raises SpaceMismatch."""
        said = stream.observation_space, stream.action_space
        return learner_spaces(said, self.environment, inferred=stream.spaces_inferred, where=self.where)

    def extras(self) -> dict[str, tuple[str, tuple[int, ...]]] | None:
        """Dtype and shape of each extra model output by path, from the first manifest; None: only reading would show."""
        manifests = [source.info.manifest for source in self.opened]
        if None in manifests:
            return None
        first = manifests[0] if manifests else None
        known = {} if first is None else first.statistics["columns"]
        extra = {path: column for path, column in known.items() if path.partition(".")[0] not in NO_EXTRA}
        return {path: (column["dtype"], tuple(column["shape"])) for path, column in extra.items()}


@dataclass(frozen=True, slots=True)
class Ready:
    """A pipeline, and the episodes that it is for."""

    stream: EpisodeStream
    observation_space: Space  # before the pipeline
    action_space: Space
    pipeline: ConnectorPipelineV2
    file: PipelineSpec  # that it is of
    where: str  # the sources, for messages
    network: Network = field(default_factory=Network)
    observed_ends: bool = False  # steps whose next observation is invented are left out

    def episodes(self, leave_out: Callable[[int], None] = lambda steps: None) -> Iterator[EpisodeBatch]:
        """The episodes that have a step, as a learner gets them, to be read once. `leave_out`: called with the number of steps
        that are left out of each batch.
        """
        for batch in self.stream:
            observed = batch.without_invented() if self.observed_ends else batch
            leave_out(batch.num_steps - observed.num_steps)
            moving = with_steps(observed)
            if len(moving):
                yield in_learner_units(moving, self.action_space, self.stream.action_scale)

    def learn(self, read: Callable[[], Iterable[EpisodeBatch]]) -> None:
        """Have the pieces learn from the episodes of `read`, and nothing afterwards. Raises as `learned_pieces.learn` does."""
        setting = Setting(self.observation_space, self.action_space)
        learn(self.pipeline, lambda: self.file.build(setting), read, where=self.where, rl_module=self.network.module)

    def spaces_of_columns(self) -> dict[str, Space | None]:
        """What the pipeline announces of the columns that spaces describe."""
        observations, actions = self.pipeline.observation_space, self.pipeline.action_space
        return {Columns.OBS: observations, Columns.NEXT_OBS: observations, Columns.ACTIONS: actions}


def _no_sources() -> UsageError:
    fix = "name recordings, or, to see pieces and spaces alone, --show --env ENV"
    return UsageError("no sources", where="the arguments", fix=fix)


def _agreed(spaces: Sequence[Space | None]) -> Space | None:
    """The space that all say; None where one does not say any, or says another."""
    first = spaces[0] if spaces else None
    return first if all(same_space(first, other) for other in spaces[1:]) else None


@dataclass(frozen=True, slots=True)
class Seen:
    """One column, or one leaf of a nested one."""

    name: str  # `obs`, `obs.camera`
    held: str  # "tensor" | "array" | "list" | "items"
    dtype: str  # `float32`; of things that are not numbers the name of their type
    shape: tuple[int, ...]  # of one row
    rows: int | None  # None: it has no axis of rows
    first: tuple[Any, ...]  # its first values, row by row

    def as_dict(self, *, values: bool = True) -> dict[str, Any]:
        """Plain values by name; without rows and values where those are invented."""
        known = {"name": self.name, "held": self.held, "dtype": self.dtype, "shape": list(self.shape)}
        return {**known, "rows": self.rows, "first": list(self.first)} if values else known

    @property
    def kind(self) -> tuple[str, str, tuple[int, ...]]:
        """What a piece may change: form, dtype and shape."""
        return self.held, self.dtype, self.shape


def seen_in_batch(batch: Batch) -> tuple[Seen, ...]:
    """Every column of `batch`, in its order."""
    return tuple(seen for column, held in batch.items() for seen in _column(str(column), held))


def seen_in_episodes(episodes: Episodes) -> tuple[Seen, ...]:
    """Observations, actions and rewards as pieces find them in the episodes; of a list, those of its first episode."""
    if isinstance(episodes, EpisodeBatch):
        trees = {Columns.OBS: episodes.obs, Columns.ACTIONS: episodes.actions, Columns.REWARDS: episodes.rewards}
    elif episodes and hasattr(episodes[0], "get_rewards"):
        one = episodes[0]
        trees = {Columns.OBS: one.get_observations(), Columns.ACTIONS: one.get_actions(), Columns.REWARDS: one.get_rewards()}
    else:
        return ()
    return tuple(seen for name, tree in trees.items() for seen in _column(name, tree))


def _column(name: str, held: Any) -> Iterator[Seen]:
    if is_filed(held):
        yield from _items(name, [item for items in held.values() for item in items])
    elif isinstance(held, list):
        no_numbers = not held or isinstance(held[0], (str, Mapping))
        yield from [_listed(name, held)] if no_numbers else _items(name, held)
    else:
        for path, leaf in flatten(held, name):
            yield _leaf(path, leaf, "tensor" if isinstance(leaf, Tensor) else "array")


def _listed(name: str, held: list[Any]) -> Seen:
    kind = type(held[0]).__name__ if held else "nothing"
    return Seen(name, "list", kind, (), len(held), tuple(_short(value) for value in held[:2]))


def _items(name: str, entries: list[Any]) -> Iterator[Seen]:
    """Items that are not stacked yet, by the first one of them."""
    rows = sum(entry.count if isinstance(entry, Items) else 1 for entry in entries)
    first = entries[0]
    for path, leaf in flatten(first.tree if isinstance(first, Items) else _with_row_axis(first), name):
        found = _leaf(path, leaf, "items")
        yield Seen(path, "items", found.dtype, found.shape, rows, found.first)


def _with_row_axis(item: Tree) -> Tree:
    if isinstance(item, dict):
        return {key: _with_row_axis(part) for key, part in item.items()}
    return tuple(map(_with_row_axis, item)) if isinstance(item, tuple) else np.asarray(item)[None]


def _leaf(path: str, leaf: Any, held: str) -> Seen:
    array = leaf if isinstance(leaf, Tensor) else np.asarray(leaf)
    if not array.ndim:
        return Seen(path, held, dtype_name(array), (), None, _values(array))
    return Seen(path, held, dtype_name(array), tuple(array.shape[1:]), len(array), _values(array))


def dtype_name(array: Any) -> str:
    """`float32`, of an array and of a tensor."""
    return str(array.dtype).removeprefix("torch.")


def _values(array: Any) -> tuple[Any, ...]:
    first = array.reshape(-1)[: min(max(SHOWN, math.prod(array.shape[1:])), SHOWN_OF_ONE)]
    values = first.detach().cpu().tolist() if isinstance(first, Tensor) else first.tolist()
    return tuple(value if isinstance(value, (bool, int, float)) else _short(value) for value in values)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}..."
