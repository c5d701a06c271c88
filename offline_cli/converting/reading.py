"""One source or several as one stream of whole episodes with unique ids and known spaces; contradicting sources raise.

Decisions:

* Spaces are those that the sources declare, else those of `env`, else inferred from all the data and marked so.
* All batches have one structure: the keys, shapes and dtypes of the spaces, and the same extra model outputs, unless the caller
  names those that it uses (`ExtraOutputs` of `whole_episodes.py`).
* The scale of actions without a Box of floats is `env`: there is only one. Others have the scale that the source declares, else
  the one that the caller gives, else `unknown`; sources of different scales raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.converting.fitting import as_space, check_fits, declared, two_spaces, unused_choices
from offline_cli.converting.partition_reading import on_workers
from offline_cli.converting.whole_episodes import AddedTo, ExtraOutputs, WholeEpisodes
from offline_cli.datasets.manifest import Manifest
from offline_cli.engines.engine import EngineSpec
from offline_cli.environments import EnvironmentSpec, spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.fit import conform
from offline_cli.errors import BadConfig, BadEpisode, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit
from offline_cli.formats.opening import open_sources
from offline_cli.formats.parquet_files import WORKERS
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, ReadOptions, Source, SourceInfo
from offline_cli.formats.tables import TableOptions
from offline_cli.meanings import Meanings, joined
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, only_discrete, same_space
from offline_cli.storage.locations import Sources
from offline_cli.tally import INCOMPLETE, MISSING_REWARDS, T_FALLS, Lost, OnError, Reject, Rejects, Tally, tell_falls
from offline_cli.trees import flatten

__all__ = ["EpisodeStream", "Extras", "read_episodes", "read_opened"]

Extras = Callable[[Sequence[Source]], ExtraOutputs | None] | None
SCALES: Final = (ENV_SCALE, NORMALIZED_SCALE)


@dataclass(slots=True)
class EpisodeStream:
    """Whole episodes in batches, read while iterating, once; `tally` and `rejects` are complete when it ends.

    A context manager: its end, an error in reading and `close` close the sources. Without `with` files stay open halfway.
    """

    observation_space: Space
    action_space: Space
    spaces_inferred: bool
    action_scale: str  # "env" | "normalized" | "unknown"
    meanings: Meanings  # of columns: what the sources say together
    environment: EnvironmentSpec | None  # that was asked for, or what all sources agree in
    sources: Sequence[SourceInfo]  # what each declares, in their order
    tally: Tally
    rejects: Rejects
    _episodes: WholeEpisodes
    _said_by: tuple[str, str]  # who declares each space
    _all_say_spaces: bool  # a batch may declare no others
    _held: Scope  # the sources, open
    _started: bool = False

    def close(self) -> None:
        """Stop reading."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[EpisodeBatch]:
        if self._started:
            raise RuntimeError("a stream of episodes can be read once")
        self._started = True
        first: EpisodeBatch | None = None
        with self:
            for batch in iter(self._episodes):
                fitted = self._fit(batch)
                first = fitted if first is None else first
                _check_structure(first, fitted)
                yield fitted
                del batch, fitted
                self._episodes.give_back()
        if falls := self.tally.assumptions[T_FALLS] - sum(one.inherited[T_FALLS] for one in self.sources):
            tell_falls(falls)

    def drawn_from(self) -> str:
        """Which of `locations` the batch at hand is of; of an episode with parts in several, the one that completes it."""
        return self._episodes.location

    @property
    def locations(self) -> list[str]:
        """Of the sources."""
        return [one.location for one in self.sources]

    @property
    def formats(self) -> list[str]:
        """Of the sources."""
        return [one.format for one in self.sources]

    @property
    def manifests(self) -> list[Manifest]:
        """Of those of the sources that are datasets of ours."""
        return [one.manifest for one in self.sources if one.manifest is not None]

    @property
    def commands(self) -> list[str]:
        """That made those of the sources which are datasets of ours."""
        return [line for one in self.sources for line in one.commands]

    @property
    def mapping_documents(self) -> list[Mapping[str, Any]]:
        """Whole mappings, each once: those of datasets among the sources too."""
        found = [document for one in self.sources for document in one.mappings]
        return [document for number, document in enumerate(found) if document not in found[:number]]

    @property
    def complete(self) -> bool:
        """False: a dataset among the sources was committed before all that was asked for was in it."""
        return all(manifest.complete for manifest in self.manifests)

    @property
    def recorded_in(self) -> EnvironmentSpec | None:
        """The environment of all sources, made in one way; None: not known, or not one."""
        said = [one.environment for one in self.sources]
        return said[0] if all(one == said[0] for one in said) else None

    @property
    def environment_id(self) -> str | None:
        """Of the environment."""
        return None if self.environment is None else self.environment.id

    @property
    def incomplete(self) -> list[str]:
        """A note on each dataset among the sources that lacks episodes, or was made from one that does."""
        notes = []
        for place, known in ((one.location, one.manifest) for one in self.sources):
            if known is not None and not known.complete:
                notes.append(f"{place} is incomplete: its writing ended early, after {known.counts.episodes:,} episodes")
            elif known is not None and known.assumptions.get(INCOMPLETE):
                notes.append(f"{place} was made from an incomplete dataset")
        return notes

    @property
    def without_rewards(self) -> tuple[str, int] | None:
        """The first source known to have steps without reward, which count as 0, and how many; more are known as it is read."""
        before = ((one.location, one.inherited[MISSING_REWARDS]) for one in self.sources)
        here = self.tally.location, self.tally.assumptions[MISSING_REWARDS]
        return next((one for one in (*before, here) if one[1]), None)

    @property
    def lost_by_reason(self) -> Mapping[str, int]:
        """Episodes of the sources that are not in the stream, as far as they are known; by `Lost`."""
        said = Counter({kind.value: sum(one.assumptions.get(kind, 0) for one in self.manifests) for kind in Lost})
        return self.rejects.lost + said

    @property
    def episodes_lost(self) -> int | None:
        """How many in all, more than by reason where a dataset gives fewer; None where one does not record how many it lost."""
        before = [manifest.episodes_lost for manifest in self.manifests]
        return None if None in before else sum(filter(None, before)) + self.rejects.lost.total()

    def set_aside_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """Pass the rows set aside to `keep`: those so far now, later ones in groups, the last with `rejects.hand_on()`."""
        self._episodes.waiting.hand_to(keep)
        self.rejects.keep = keep

    def _fit(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` in the structure and dtypes of the spaces. Raises SpaceMismatch, BadEpisode."""
        if self._all_say_spaces:
            _check_same_spaces(batch, self.observation_space, self.action_space)
        batch = _structured(batch, (self.observation_space, self.action_space))
        _check_batch(batch, (self.observation_space, self.action_space), self._said_by, self._episodes.place_of, self.meanings)
        return conform(batch, self.observation_space, self.action_space, self._episodes.extra_dtypes)


def read_episodes(
    sources: Sources,
    *,
    from_: str = SOURCE_FORMAT,
    on_error: str = OnError.FAIL,
    env: str | AskedEnvironment | EnvironmentSpec | None = None,
    env_spaces: tuple[Space, Space] | None = None,
    action_scale: str | None = None,
    limit: int | None = None,
    workers: int = WORKERS,
    tables: TableOptions | None = None,
    episode_limit: EpisodeLimit | None = None,
    extras: Extras = None,
    added_to: AddedTo | None = None,
    apart: bool = False,
    drop_reset_rows: bool = False,
    drop: Sequence[str] = (),
    engine: EngineSpec | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> EpisodeStream:
    """The episodes of all `sources`, in their order.

    `env`: an environment, for sources without spaces; by name, or as it is asked for, it is made as sources of that environment
    say (`AskedEnvironment.chosen`); `env_spaces`: its spaces, where they are known. `action_scale`: for sources that do not
    declare it. `limit`: only the first so many episodes; nothing is read, counted or inferred beyond them. `workers`: files
    read at a time.
    `tables`, `apart`: see `open_sources`. `episode_limit`: on the size of one episode. `extras`: chooses the extra outputs that
    are kept; None: all, which have to be the same ones. `added_to`: whose episodes count as read. `drop_reset_rows`: all is
    read twice, and resets that were recorded as steps are left out (`reset_rows.py`). `drop`: see `open_sources`. `engine`:
    whose workers read.
    Raises what `open_sources` raises, NoData without episodes, UnknownEnvironment, SpaceMismatch, BadConfig for sources of two
    action scales, or of two meanings of a column; iterating raises BadData, unless `on_error` is `skip` or `quarantine`.
    """
    if action_scale not in (None, *SCALES):
        raise UsageError(
            f"no action scale is called {action_scale!r}", where="--action-scale", fix=f"use {' or '.join(SCALES)}"
        )
    opened = open_sources(sources, from_=from_, tables=tables, apart=apart, storage_options=storage_options, drop=drop)
    with Scope() as scope:
        for source in opened:
            scope.enter(closing(source))
        if isinstance(env, str):
            env = AskedEnvironment(env)
        if isinstance(env, AskedEnvironment):
            env = env.among((source.info.location, source.info.environment) for source in opened)
        if env is not None and env_spaces is None:
            env_spaces = spaces_of_env(env)
        scope.moved()
    return read_opened(
        opened,
        on_error=on_error,
        env=env,
        env_spaces=env_spaces,
        action_scale=action_scale,
        limit=limit,
        workers=workers,
        memory_limit=MEMORY_LIMIT if tables is None else tables.memory_limit,
        episode_limit=episode_limit,
        extras=extras,
        added_to=added_to,
        drop_reset_rows=drop_reset_rows,
        engine=engine,
        temp_dir=None if tables is None else tables.temp_dir,
        on_progress=on_progress,
    )


def read_opened(
    opened: Sequence[Source],
    *,
    on_error: str = OnError.FAIL,
    env: EnvironmentSpec | None = None,
    env_spaces: tuple[Space, Space] | None = None,
    action_scale: str | None = None,
    limit: int | None = None,
    workers: int = WORKERS,
    memory_limit: int = MEMORY_LIMIT,
    episode_limit: EpisodeLimit | None = None,
    extras: Extras = None,
    added_to: AddedTo | None = None,
    drop_reset_rows: bool = False,
    engine: EngineSpec | None = None,
    temp_dir: str | None = None,
    on_progress: OnProgress = no_progress,
) -> EpisodeStream:
    """As `read_episodes`, of open sources; `env_spaces` are those of `env`."""
    name = None if env is None else env.id
    with Scope() as scope:
        options = ReadOptions(env_spaces, workers, limit, on_progress, memory_limit)
        for source in [scope.enter(closing(one)) for one in opened]:
            source.prepare(options)
        if engine is not None and limit is None:
            opened = on_workers(opened, engine, options, scope)
        said = [source.info for source in opened]
        everywhere = said if added_to is None else [added_to.info, *said]
        episodes = WholeEpisodes(
            opened,
            OnError(on_error),
            on_progress,
            limit,
            memory_limit=memory_limit,
            episode_limit=episode_limit,
            temp_dir=temp_dir,
            extras=None if extras is None else extras(opened),
            added_to=added_to,
            drop_reset_rows=drop_reset_rows,
        )
        scope.enter(closing(episodes.waiting))
        first = episodes.first()
        meanings, assumed = joined([(one.location, one.meanings) for one in everywhere], _columns_of(first))
        if env_spaces is not None:
            _check_batch(first, env_spaces, (f"--env {name}",) * 2, episodes.place_of, meanings)
        known = declared(said, first, name, env_spaces, None if added_to is None else added_to.info)
        observation, action = known.observation, known.action
        inferred = observation is None or action is None
        if observation is None or action is None:
            guessed = episodes.inferred_spaces()
            observation, action = observation or guessed[0], action or guessed[1]
            for column, kind, was in (
                (Columns.OBS, "observations", known.observation),
                (Columns.ACTIONS, "actions", known.action),
            ):
                space, choices = guessed[column == Columns.ACTIONS], episodes.extremes.choices.get(column)
                unused = 0 if was is not None else unused_choices(space, choices, said, column)
                episodes.tally.assume(f"unused-{kind}", unused)
        else:
            spaces = observation, action
            episodes.compare_later_sources(lambda batch: None if known.by_env else _check_same_spaces(batch, *spaces))
        if added_to is not None and added_to.first is not None:
            episodes.fit_into(added_to.first)
        episodes.tally.assume("meaning-assumed", assumed)  # reading may have begun anew before
        played_in = [one.environment for one in everywhere if one.environment is not None]
        episodes.tally.assume("mixed-environments", sum(env is None and one != played_in[0] for one in played_in))
        spaces_inferred = inferred or (env is None and any(one.spaces_inferred for one in said))
        return EpisodeStream(
            observation_space=observation,
            action_space=action,
            spaces_inferred=spaces_inferred,
            action_scale=_scale(everywhere, action, action_scale),
            meanings=meanings,
            environment=env or _environment(everywhere),
            sources=said,
            tally=episodes.tally,
            rejects=episodes.rejects,
            _episodes=episodes,
            _said_by=known.said_by,
            _all_say_spaces=not known.by_env and not spaces_inferred,
            _held=scope.moved(),
        )


def _columns_of(batch: EpisodeBatch) -> set[str]:
    """The paths of all columns that can have a meaning."""
    trees = (Columns.OBS, batch.obs), (Columns.ACTIONS, batch.actions), *batch.extra.items()
    return {Columns.REWARDS, Columns.T, *(path for name, tree in trees for path, _ in flatten(tree, name))}


def _check_same_spaces(batch: EpisodeBatch, observation: Space, action: Space) -> None:
    pairs = ((batch.observation_space, observation), (batch.action_space, action))
    for name, (own, common) in zip(("observation", "action"), pairs, strict=True):
        if own is not None and not same_space(own, common):
            raise two_spaces(name, ("the first episode", common), (f"episode {batch.ids[0]}", own))


def _structured(batch: EpisodeBatch, spaces: tuple[Space, Space]) -> EpisodeBatch:
    return replace(batch, obs=as_space(batch.obs, spaces[0]), actions=as_space(batch.actions, spaces[1]))


def _check_batch(
    batch: EpisodeBatch,
    spaces: tuple[Space, Space],
    said_by: tuple[str, str],
    place_of: Callable[[str, int], str],
    meanings: Meanings,
) -> None:
    """Raise SpaceMismatch, naming the episode with the value that does not fit; `place_of` gives its place."""
    shaped = _structured(batch, spaces)
    trees = (("observations", shaped.obs, batch.obs_starts), ("actions", shaped.actions, batch.starts))
    for (name, tree, starts), space, by in zip(trees, spaces, said_by, strict=True):

        def where(row: int | None, starts: NDArray[np.int64] = starts) -> str:
            entry = 0 if row is None else int(np.searchsorted(starts, row, side="right")) - 1
            step = 0 if row is None else row - int(starts[entry])
            said = "" if row is None else f", step {step}"
            return f"{place_of(batch.ids[entry], min(step, int(batch.lengths[entry]) - 1))}, episode {batch.ids[entry]}{said}"

        check_fits(tree, space, name=name, said_by=by, where=where, meanings=meanings)


def _scale(sources: Sequence[SourceInfo], space: Space, said: str | None) -> str:
    """The scale of all actions. Raises UsageError where `said` contradicts a source, BadConfig where sources differ."""
    if only_discrete(space):
        return ENV_SCALE
    scales = {source.action_scale: source.location for source in sources}
    for source in sources:
        source.check_scale(said)
    if said is None and len(scales) > 1:
        what, where = f"actions of different scales: {' and '.join(sorted(scales))}", " and ".join(scales.values())
        fix = "convert each source by itself with the --action-scale that it has, and do not merge scales that differ"
        raise BadConfig(what, where=where, fix=fix)
    return said or next(iter(scales))


def _environment(sources: Sequence[SourceInfo]) -> EnvironmentSpec | None:
    """The environment of all sources, and how it was made, as far as they agree."""
    first, *others = (source.environment for source in sources)
    if first is None or any(other is None or other.id != first.id for other in others):
        return None
    kwargs = all(other.kwargs == first.kwargs for other in others if other is not None)
    wrappers = all(other.wrappers == first.wrappers for other in others if other is not None)
    return EnvironmentSpec(first.id, first.kwargs if kwargs else {}, first.wrappers if wrappers else ())


def _check_structure(first: EpisodeBatch, other: EpisodeBatch) -> None:
    difference = "" if first is other else first.structure_difference(other)
    if difference:
        what, where = f"episodes of two structures cannot be in one dataset: {difference}", f"{first.ids[0]} and {other.ids[0]}"
        raise BadEpisode(what, where=f"episodes {where}", fix="convert the two kinds of recording into two datasets")
