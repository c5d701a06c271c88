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

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.converting.fitting import as_space, check_fits, declared, two_spaces, unused_choices
from offline_cli.converting.partition_reading import on_workers
from offline_cli.converting.whole_episodes import AddedTo, Extras, WholeEpisodes
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
                del batch, fitted  # nothing is held while the next is read
                self._episodes.give_back()
        if falls := self.tally.assumptions[T_FALLS] - sum(one.inherited[T_FALLS] for one in self.sources):
            tell_falls(falls)

    def _fit(self, batch: EpisodeBatch) -> EpisodeBatch:
        """`batch` in the structure and dtypes of the spaces. Raises SpaceMismatch, BadEpisode."""
        spaces = self.observation_space, self.action_space
        if self._all_say_spaces:
            _check_same_spaces(batch, *spaces)
        batch = _checked(batch, spaces, self._said_by, self._episodes.stitcher.place_of, self.meanings)
        return conform(batch, *spaces, self._episodes.extra_dtypes)

    def set_aside_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """Under `--on-error quarantine`, pass the rows set aside to `keep`, in groups, while the episodes are read.

        Reading starts anew. Without this call the rows are only counted.
        """
        self._episodes.set_aside_to(keep)

    @property
    def tally(self) -> Tally:
        """What reading has counted so far."""
        return self._episodes.tally

    @property
    def rejects(self) -> Rejects:
        """The bad rows so far."""
        return self._episodes.rejects

    def drawn_from(self) -> str:
        """Which of `locations` the batch at hand is of; of an episode with parts in several, the one that completes it."""
        return self._episodes.location

    @property
    def locations(self) -> list[str]:
        """The place of each source."""
        return [one.location for one in self.sources]

    @property
    def formats(self) -> list[str]:
        """The format of each source."""
        return [one.format for one in self.sources]

    @property
    def manifests(self) -> list[Manifest]:
        """The manifests of those sources that are our datasets."""
        return [one.manifest for one in self.sources if one.manifest is not None]

    @property
    def commands(self) -> list[str]:
        """The commands that made those sources that are our datasets."""
        return [line for one in self.sources for line in one.commands]

    @property
    def mapping_documents(self) -> list[Mapping[str, Any]]:
        """Mappings of tables, each once; of our datasets those of their sources."""
        found: list[Mapping[str, Any]] = []
        found += (document for one in self.sources for document in one.mappings if document not in found)
        return found

    @property
    def complete(self) -> bool:
        """False where one of our datasets was committed before all that was asked for was in it."""
        return all(manifest.complete for manifest in self.manifests)

    @property
    def recorded_in(self) -> EnvironmentSpec | None:
        """The environment of all sources, made in one way; None: not known, or not one."""
        said = [one.environment for one in self.sources]
        return said[0] if all(one == said[0] for one in said) else None

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


def read_episodes(
    sources: Sources = (),
    *,
    opened: Sequence[Source] | None = None,
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
    """The episodes of all `sources`, in their order; or of those that are `opened` already.

    `env`: an environment, for sources without spaces; by name, or as it is asked for, it is made as sources of that environment
    say (`AskedEnvironment.chosen`); `env_spaces`: its spaces, where they are known. `action_scale`: for sources that do not
    declare it. `limit`: only the first so many episodes; nothing is read, counted or inferred beyond them. `workers`: files
    read at a time. `from_`, `tables`, `apart`, `drop`: see `open_sources`; the memory limit is that of `tables`.
    `episode_limit`: on the size of one episode. `extras`: chooses the extra outputs that are kept; None: all, which have to be
    the same ones. `added_to`: whose episodes count as read. `drop_reset_rows`: all is read twice, and resets that were recorded
    as steps are left out (`reset_rows.py`). `engine`: whose workers read.
    Raises what `open_sources` raises, NoData without episodes, UnknownEnvironment, SpaceMismatch, BadConfig for sources of two
    action scales, or of two meanings of a column; iterating raises BadData, unless `on_error` is `skip` or `quarantine`.
    """
    if action_scale not in (None, *SCALES):
        what, fix = f"no action scale is called {action_scale!r}", f"use {' or '.join(SCALES)}"
        raise UsageError(what, where="--action-scale", fix=fix)
    if opened is None:
        opened = open_sources(sources, from_=from_, tables=tables, apart=apart, storage_options=storage_options, drop=drop)
    memory_limit = MEMORY_LIMIT if tables is None else tables.memory_limit
    with Scope() as scope:
        for source in opened:
            scope.enter(closing(source))
        env = AskedEnvironment(env) if isinstance(env, str) else env
        if isinstance(env, AskedEnvironment):
            env = env.among((source.info.location, source.info.environment) for source in opened)
        if env is not None and env_spaces is None:
            env_spaces = spaces_of_env(env)
        options = ReadOptions(env_spaces, workers, limit, on_progress, memory_limit)
        for source in opened:
            source.prepare(options)
        if engine is not None and limit is None:
            opened = on_workers(opened, engine, options, scope)
        episodes = WholeEpisodes(
            opened,
            OnError(on_error),
            on_progress,
            limit,
            memory_limit=memory_limit,
            episode_limit=episode_limit,
            extras=None if extras is None else extras(opened),
            added_to=added_to,
            drop_reset_rows=drop_reset_rows,
        )
        said = [source.info for source in opened]
        everywhere = said if added_to is None else [added_to.info, *said]
        first = episodes.first()
        meanings, meanings_assumed = joined([(one.location, one.meanings) for one in everywhere], _columns_of(first))
        name = None if env is None else env.id
        if env_spaces is not None:
            _checked(first, env_spaces, (f"--env {name}",) * 2, episodes.stitcher.place_of, meanings)
        known = declared(said, first, name, env_spaces, None if added_to is None else added_to.info)
        (observation, action), inferred = known.spaces, False
        if observation is None or action is None:
            guessed, inferred = episodes.inferred_spaces(), True
            for was, space, column, kind in zip(
                (observation, action), guessed, (Columns.OBS, Columns.ACTIONS), ("observations", "actions"), strict=True
            ):
                choices = episodes.extremes.choices.get(column)
                episodes.assume(f"unused-{kind}", 0 if was is not None else unused_choices(space, choices, said, column))
            observation, action = observation or guessed[0], action or guessed[1]
        else:
            spaces = observation, action
            episodes.agree_on_extras(lambda batch: None if known.by_env else _check_same_spaces(batch, *spaces))
        if added_to is not None and added_to.first is not None:
            episodes.fit_into(added_to.first)
        episodes.assume("meaning-assumed", meanings_assumed)
        played_in = [one.environment for one in everywhere if one.environment is not None]
        episodes.assume("mixed-environments", sum(env is None and one != played_in[0] for one in played_in))
        spaces_inferred = inferred or (env is None and any(one.spaces_inferred for one in said))
        return EpisodeStream(
            observation_space=observation,
            action_space=action,
            spaces_inferred=spaces_inferred,
            action_scale=_scale(everywhere, action, action_scale),
            meanings=meanings,
            environment=env or _environment(everywhere),
            sources=said,
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


def _checked(
    batch: EpisodeBatch,
    spaces: tuple[Space, Space],
    said_by: tuple[str, str],
    place_of: Callable[[str, int], str],
    meanings: Meanings,
) -> EpisodeBatch:
    """`batch` in the structure of `spaces`. Raises SpaceMismatch, naming the episode and the place of the value that does not
    fit.
    """
    shaped = replace(batch, obs=as_space(batch.obs, spaces[0]), actions=as_space(batch.actions, spaces[1]))
    trees = (("observations", shaped.obs, batch.obs_starts), ("actions", shaped.actions, batch.starts))
    for (name, tree, starts), space, by in zip(trees, spaces, said_by, strict=True):

        def where(row: int | None, starts: Any = starts) -> str:
            entry = 0 if row is None else int(np.searchsorted(starts, row, side="right")) - 1
            step = 0 if row is None else row - int(starts[entry])
            said = "" if row is None else f", step {step}"
            return f"{place_of(batch.ids[entry], min(step, int(batch.lengths[entry]) - 1))}, episode {batch.ids[entry]}{said}"

        check_fits(tree, space, name=name, said_by=by, where=where, meanings=meanings)
    return shaped


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
    specs = [source.environment for source in sources]
    known = [spec for spec in specs if spec is not None]
    if len(known) < len(specs) or len({spec.id for spec in known}) > 1:
        return None
    first = known[0]
    kwargs, wrappers = (all(getattr(spec, n) == getattr(first, n) for spec in known) for n in ("kwargs", "wrappers"))
    return EnvironmentSpec(first.id, first.kwargs if kwargs else {}, first.wrappers if wrappers else ())


def _check_structure(first: EpisodeBatch, other: EpisodeBatch) -> None:
    if first is not other and (difference := first.structure_difference(other)):
        what, where = f"episodes of two structures cannot be in one dataset: {difference}", f"{first.ids[0]} and {other.ids[0]}"
        raise BadEpisode(what, where=f"episodes {where}", fix="convert the two kinds of recording into two datasets")
