"""Sources and the learner pipeline that they go through, checked against each other before an episode is read; refuses actions
and observations that no policy could learn from.

Decisions: NaN and infinity are refused in actions and in observations that were acted on; the observation after the last action
is never learned from, and may be anything. What else the learner pipeline gets: `applying/learner_episodes.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.applying.learner_episodes import check_known_scale, in_learner_units, learner_spaces, with_steps
from offline_cli.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from offline_cli.connectors.play_pipelines import TrainedPipeline
from offline_cli.connectors.state_bytes import state_from_bytes, state_to_bytes
from offline_cli.converting.large_episodes import EpisodeLimit
from offline_cli.converting.reading import EpisodeStream, read_episodes
from offline_cli.environments import Environment
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, OfflineCliError
from offline_cli.formats.memory import MEMORY_LIMIT
from offline_cli.formats.tables.options import TableOptions
from offline_cli.progress import OnProgress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, check_supported, leaf_spaces, tree_from_lists
from offline_cli.storage.locations import Sources
from offline_cli.storage.urls import is_of_bucket
from offline_cli.training.config import BCConfig
from offline_cli.training.given_pipelines import Given, GivenPipeline, Side, read_given
from offline_cli.training.learner_columns import choices_of, learner_columns
from offline_cli.training.module_choice import of_one_module
from offline_cli.training.play_pieces import PlayPieces, beside_learner, plays_alone
from offline_cli.training.used_extras import UsedExtras
from offline_cli.trees import Tree, flatten

__all__ = ["Lesson", "place_of_first", "prepare"]

PLACE: Final = "learner pipeline"


@dataclass(slots=True, eq=False)
class Lesson:
    """What is known before an episode is read; a context manager, at whose end no source is open."""

    where: str  # the sources, for messages
    fetched: bool  # whether parts of some of them are fetched before they are read
    action_scale: str
    spaces: tuple[Space, Space]  # of observations and actions before the pipeline
    announced: tuple[Space, Space]  # and after it
    pipeline: ConnectorPipelineV2
    given: GivenPipeline
    beside: Side
    environment: Environment | None
    pieces: PlayPieces | None  # what the policy plays between in `environment`; None: no pieces
    alone: bool  # the policy plays without pieces
    module_id: str | None  # whose episodes are learned from; None: there is one module
    extras: UsedExtras
    _open: Callable[[], EpisodeStream]
    _streams: Scope  # owns those that are open
    _opened: list[EpisodeStream] = field(default_factory=list)  # one that nobody has read yet
    _modules: Counter[str] = field(default_factory=Counter)  # episodes of each, of the reading at hand

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._streams.__exit__(kind, error, trace)

    def episodes(self) -> Iterator[EpisodeBatch]:
        """All episodes of the module that have a step, as they were recorded; each call reads the sources.

        Raises what reading raises, and BadConfig at the end of the data where it holds several modules or not the one wanted.
        """
        with self._streams.part() as held:
            stream = held.enter(self._opened.pop() if self._opened else self._open())
            self._modules = Counter()
            batches = filter(len, map(with_steps, stream))
            yield from of_one_module(batches, self.module_id, where=self.where, seen=self._modules)

    @property
    def module(self) -> str | None:
        """The module whose episodes were read; None before they were."""
        return self.module_id or next(iter(self._modules), None)

    def checked(self, episodes: EpisodeBatch) -> EpisodeBatch:
        """`episodes`, with actions as a network learns them. Raises BadData for values outside the spaces."""
        observations, actions = self.spaces
        _check_values(episodes, episodes.acted_obs(), observations, "observations", self.where)
        _check_values(episodes, episodes.actions, actions, "actions", self.where)
        return in_learner_units(episodes, actions, self.action_scale)

    def columns(self, episodes: EpisodeBatch, *, allow_empty: bool = False) -> dict[str, Tree]:
        """What the pipeline makes of checked episodes: see `learner_columns`.

        Raises BadEpisode where a piece asks for an extra model output that not all sources have in one form.
        """
        try:
            return learner_columns(self.pipeline, episodes, self.announced, where=self.where, allow_empty=allow_empty)
        except OfflineCliError as err:
            missed = None if self.extras.kept is None else self.extras.kept.missed_by(err)
            if missed is None:
                raise
            raise missed from err

    def learned(self) -> tuple[TrainedPipeline | None, PlayPieces | None]:
        """What the policy takes to play, once the pieces have seen all that they learn from; they learn no more.

        Raises BadPiece for a state that cannot be saved, and whatever keeps the policy from playing in `environment`.
        """
        self.pipeline.freeze()
        trained = None if self.alone else _trained(self.given, self.pipeline)
        if self.environment is None or self.pieces is None:
            return trained, self.pieces
        pieces = replace(self.pieces, trained=trained)
        pieces.check(self.environment, *self.announced, where=PLACE)  # learned states have to find their pieces now, not later
        return trained, pieces

    @property
    def name(self) -> str:
        """The pipeline's, which a run that is resumed has to share; empty: the default one."""
        beside = "" if self.beside is None else f"; beside the environment {GivenPipeline(self.beside).name}"
        return self.given.name + beside


def prepare(
    sources: Sources,
    config: BCConfig,
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
) -> Lesson:
    """Open `sources` and build the pipeline for them.

    Raises what `read_episodes` raises; BadConfig for an unknown scale of Box actions, and where either pipeline is wrong;
    SpaceMismatch where the policy could not play in `environment` or a piece cannot take the spaces.
    """
    given, beside = GivenPipeline.read(pipeline), read_given(env_to_module, "env_to_module", "learner")

    def opened() -> EpisodeStream:
        return read_episodes(
            sources,
            from_=from_,
            env=config.env,
            action_scale=config.action_scale,
            tables=tables or TableOptions(memory_limit=max(MEMORY_LIMIT, config.memory_limit or 0)),
            episode_limit=episode_limit,
            extras=extras,
            storage_options=storage_options,
            on_progress=on_progress,
        )

    extras = UsedExtras(given)
    with Scope() as scope:
        stream = scope.enter(opened())
        return _prepared(stream, scope, opened, config, environment, given, beside, module_id=module_id, extras=extras)


def _prepared(
    stream: EpisodeStream,
    scope: Scope,
    opened: Callable[[], EpisodeStream],
    config: BCConfig,
    environment: Environment | None,
    given: GivenPipeline,
    beside: Side,
    *,
    module_id: str | None,
    extras: UsedExtras,
) -> Lesson:
    """The lesson takes over what `scope` holds; an error leaves it there."""
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
    return Lesson(
        where=where,
        fetched=any(map(is_of_bucket, stream.locations)),
        action_scale=stream.action_scale,
        spaces=(observations, actions),
        announced=(seen, done),
        pipeline=to_columns,
        given=given,
        beside=beside,
        environment=environment,
        pieces=pieces,
        alone=alone,
        module_id=module_id,
        extras=extras,
        _open=opened,
        _streams=scope.moved(),
        _opened=[stream],
    )


def _trained(given: GivenPipeline, pipeline: ConnectorPipelineV2) -> TrainedPipeline:
    """What the pieces have learned, as a run folder will tell it. Raises BadPiece for a state that cannot be saved."""
    state = state_from_bytes(state_to_bytes(pipeline.get_state(), where=PLACE), where=PLACE)
    return TrainedPipeline(given.document, state, PLACE, tuple(name for name, _ in pipeline.named()))


def _check_values(episodes: EpisodeBatch, tree: Tree, space: Space, name: str, where: str) -> None:
    """Raise BadData, naming episode and step, for a value in `tree` (leaves (N, ...)) that is no number or no choice."""
    for (path, leaf), part in zip(flatten(tree_from_lists(tree, space), name), leaf_spaces(space).values(), strict=True):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            place = place_of_first(episodes, ~np.isfinite(leaf))
            fix = "take such steps out of the recording: a policy cannot learn from them"
            raise BadData(f"{path} hold NaN or infinity, first in {place}", where=where, fix=fix)
        low, high = choices_of(part)
        if low is not None and ((leaf < low) | (leaf > high)).any():
            place = place_of_first(episodes, (leaf < low) | (leaf > high))
            fix = "--env with the environment the data is from, or convert again with the right space"
            raise BadData(f"{path} hold choices outside {part}, first in {place}", where=where, fix=fix)


def place_of_first(episodes: EpisodeBatch, wrong: NDArray[np.bool_]) -> str:
    """Where the first of the steps (N, ...) that are `wrong` is."""
    step = int(np.argmax(wrong.reshape(len(wrong), -1).any(1)))
    episode = int(np.searchsorted(episodes.starts, step, side="right")) - 1
    return f"episode {episodes.ids[episode]}, step {step - int(episodes.starts[episode])}"
