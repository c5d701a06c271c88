"""Read one or several sources as one stream of whole episodes with unique ids and known spaces; contradicting sources raise.

* Spaces are declared by the sources, else taken from `env`, else inferred from all the data and marked as inferred.
* All batches have one structure: the keys, shapes and dtypes of the spaces, and the same extra model outputs, unless the caller
  chooses the outputs it uses (`fitting.ExtraOutputs`).
* The scale of actions without a float Box is `env`. Other actions have the scale that the source declares, else the caller's,
  else `unknown`; sources of different scales raise.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from offline_cli.choices import SOURCE_FORMAT
from offline_cli.columns import Columns
from offline_cli.converting.fitting import (
    ExtraOutputs,
    Extras,
    Extremes,
    as_space,
    check_fits,
    check_same_extra,
    check_same_shapes,
    declared,
    extra_dtypes,
    first_batch,
    two_spaces,
    unused_choices,
)
from offline_cli.converting.partition_reading import on_workers
from offline_cli.converting.reset_rows import Resets
from offline_cli.converting.stitching import Stitcher, stitched
from offline_cli.datasets.manifest import Manifest, Reference
from offline_cli.engines.engine import EngineSpec
from offline_cli.environments import EnvironmentSpec, spaces_of_env, time_limit
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.fit import conform
from offline_cli.episodes.known_episodes import EarlierEpisodes
from offline_cli.errors import BadConfig, BadEpisode, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.memory_limits import MEMORY_LIMIT, EpisodeLimit, room_for_data
from offline_cli.formats.opening import open_sources
from offline_cli.formats.parquet_files import WORKERS
from offline_cli.formats.source import ENV_SCALE, NORMALIZED_SCALE, THE_POLICY, ReadOptions, Source, SourceInfo
from offline_cli.formats.tables import TableOptions
from offline_cli.meanings import NO_MEANINGS, Meanings, joined
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, only_discrete, same_space
from offline_cli.storage.locations import Sources
from offline_cli.tally import (
    DONES,
    INCOMPLETE,
    MISSING_REWARDS,
    T_FALLS,
    Lost,
    OnError,
    Reject,
    Rejects,
    Tally,
    tell_falls,
    tell_time_limit,
)
from offline_cli.trees import flatten

SCALES: Final = (ENV_SCALE, NORMALIZED_SCALE)
KEEP = 256 << 20  # bytes of episodes held while spaces are inferred, or an eighth of the memory for data
OBJECTS: Final = 400  # bytes that ids and custom data of one episode take beside its arrays


@dataclass(frozen=True, slots=True)
class AddedTo:
    """The dataset to append to: the other sources must agree with it, but it is not read."""

    info: SourceInfo
    episodes: EarlierEpisodes
    first: EpisodeBatch | None  # its first batch; None: it has no episodes


@dataclass(slots=True)
class EpisodeStream:
    """A one-time iterator over batches of whole episodes; `tally` and `rejects` are complete at its end.

    A context manager: the end, a read error and `close` close the sources. Without `with`, an abandoned iterator leaves files
    open. Create it with `read_episodes`.
    """

    opened: Sequence[Source]
    on_error: OnError
    on_progress: OnProgress
    limit: int | None  # maximum number of episodes; nothing is read, counted or inferred beyond them
    memory_limit: int  # bytes for the whole conversion
    episode_limit: EpisodeLimit | None  # None: unlimited
    extras: ExtraOutputs | None  # None: keep all extra model outputs
    added_to: AddedTo | None  # the dataset to append to
    sources: Sequence[SourceInfo] = field(init=False)  # declarations, in order

    observation_space: Space = field(init=False)
    action_space: Space = field(init=False)
    spaces_inferred: bool = False
    action_scale: str = ""  # "env" | "normalized" | "unknown"
    meanings: Meanings = NO_MEANINGS  # of columns, combined from the sources
    reference: Reference | None = None  # for normalised scores, if all sources have the same
    environment: EnvironmentSpec | None = None  # the caller's, or the one on which all sources agree
    tally: Tally = field(default_factory=Tally)  # counts so far
    rejects: Rejects = field(default_factory=Rejects)  # bad rows so far

    _location: str = ""  # source of the last batch
    _time_limit: int | None = None  # steps after which the caller's environment truncates
    _said_by: tuple[str, str] = ("", "")  # origin of each space
    _all_say_spaces: bool = False  # whether batches must not declare different spaces
    _extra_dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)  # widened over all sources
    _assumed: Counter[str] = field(default_factory=Counter)  # assumptions about all sources, kept when reading restarts
    _ahead: deque[tuple[str, EpisodeBatch]] = field(default_factory=deque)  # read ahead, with their sources
    _rest: Iterator[tuple[str, EpisodeBatch]] = field(default_factory=lambda: iter(()))
    _stitcher: Stitcher = field(init=False)
    _resets: dict[str, Resets] = field(default_factory=dict)  # by location; removed from each batch
    _held: Scope = field(default_factory=Scope)  # the sources, open
    _started: bool = False

    def __post_init__(self) -> None:
        self.sources = [source.info for source in self.opened]
        self._begin()

    def close(self) -> None:
        """Stop reading."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[EpisodeBatch]:
        if self._started:
            raise RuntimeError("a stream of episodes can be read only once")
        self._started = True
        first: EpisodeBatch | None = None
        at_limit = 0
        with self:
            for batch in self._unfitted():
                fitted = self._fit(batch)
                at_limit += int(np.count_nonzero(fitted.terminated & (fitted.lengths == self._time_limit)))
                first = fitted if first is None else first
                if first is not fitted and (difference := first.structure_difference(fitted)):
                    what = f"episodes of different structures cannot share a dataset: {difference}"
                    fix = "convert the two kinds of recordings into separate datasets"
                    raise BadEpisode(what, where=f"episodes {first.ids[0]} and {fitted.ids[0]}", fix=fix)
                yield fitted
                del batch, fitted  # free memory before the next batch is read
        if falls := self.tally.assumptions[T_FALLS] - sum(one.inherited[T_FALLS] for one in self.sources):
            tell_falls(falls)
        if at_limit and self._time_limit is not None and self.environment is not None and self.tally.assumptions[DONES]:
            tell_time_limit(at_limit, self._time_limit, self.environment.id)

    def set_aside_to(self, keep: Callable[[list[Reject]], None]) -> None:
        """Under `--on-error quarantine`, pass rejected rows to `keep`, in groups, during reading.

        Reading restarts. Without this call rejected rows are only counted.
        """
        if self.on_error is OnError.QUARANTINE:
            self._begin(keep)

    def place_of(self, batch: EpisodeBatch, step: int) -> str:
        """Place, episode and step of a step (0..N-1) of `batch`."""
        entry = int(np.searchsorted(batch.starts, step, side="right")) - 1
        step -= int(batch.starts[entry])
        return f"{self._stitcher.place_of(batch.ids[entry], step)}, episode {batch.ids[entry]}, step {step}"

    def drawn_from(self) -> str:
        """The location of the current batch's source; for an episode from several sources, the one that completes it."""
        return self._location

    # ---- combined declarations of the sources ----

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
        """The manifests of sources that are our datasets."""
        return [one.manifest for one in self.sources if one.manifest is not None]

    @property
    def commands(self) -> list[str]:
        """The commands that made the sources that are our datasets."""
        return [line for one in self.sources for line in one.commands]

    @property
    def mapping_documents(self) -> list[Mapping[str, Any]]:
        """Distinct mappings of tables, and of the sources of our datasets."""
        found: list[Mapping[str, Any]] = []
        found += (document for one in self.sources for document in one.mappings if document not in found)
        return found

    @property
    def complete(self) -> bool:
        """Whether all sources that are our datasets are complete."""
        return all(manifest.complete for manifest in self.manifests)

    @property
    def recorded_in(self) -> EnvironmentSpec | None:
        """The environment of all sources; None: unknown, or they differ."""
        said = [one.environment for one in self.sources]
        return said[0] if all(one == said[0] for one in said) else None

    @property
    def incomplete(self) -> list[str]:
        """Notes on datasets among the sources that are incomplete, or were made from incomplete ones."""
        notes = []
        for place, known in ((one.location, one.manifest) for one in self.sources):
            if known is not None and not known.complete:
                notes.append(f"{place} is incomplete: writing stopped after {known.counts.episodes:,} episodes")
            elif known is not None and known.assumptions.get(INCOMPLETE):
                notes.append(f"{place} was made from an incomplete dataset")
        return notes

    @property
    def without_rewards(self) -> tuple[str, int] | None:
        """The first source with steps without reward (which count as 0), and their number; updated during reading."""
        before = ((one.location, one.inherited[MISSING_REWARDS]) for one in self.sources)
        here = self.tally.location, self.tally.assumptions[MISSING_REWARDS]
        return next((one for one in (*before, here) if one[1]), None)

    @property
    def lost_by_reason(self) -> Mapping[str, int]:
        """Known source episodes that are missing from the stream, by `Lost`."""
        said = Counter({kind.value: sum(one.assumptions.get(kind, 0) for one in self.manifests) for kind in Lost})
        return self.rejects.lost + said

    @property
    def episodes_lost(self) -> int | None:
        """Total number of lost episodes, also those without a recorded reason; None if a dataset does not record its number."""
        before = [manifest.episodes_lost for manifest in self.manifests]
        return None if None in before else sum(filter(None, before)) + self.rejects.lost.total()

    # ---- reading, and restarting ----

    def _begin(self, keep: Callable[[list[Reject]], None] | None = None) -> None:
        """Start or restart reading. `keep`: callback for rejected rows."""
        for source in self.opened:
            source.close()
        on_error = OnError.SKIP if keep is None and self.on_error is OnError.QUARANTINE else self.on_error
        self.rejects, self._ahead = Rejects(on_error, keep=keep), deque()
        self.tally.rows_in = self.tally.duplicates_dropped = self.tally.fragments_stitched = 0
        self.tally.dropped_columns.clear()
        self.tally.assumptions = self._assumed.copy()
        for info in self.sources:
            self.tally.assumptions += info.inherited
            if info.manifest is not None and not info.manifest.complete:
                self.tally.assume(INCOMPLETE)
        earlier = None if self.added_to is None else self.added_to.episodes
        self._stitcher = Stitcher(self.tally, self.rejects, self.episode_limit, earlier)
        for resets in self._resets.values():
            resets.look()
        self._rest = self._read()

    def _read(self) -> Iterator[tuple[str, EpisodeBatch]]:
        """Batches with their sources, without resets."""
        for batch in stitched(self.opened, self._stitcher, self.on_progress, self.extras, self.limit):
            location = self.tally.location
            resets = self._resets.get(location)
            left = batch if resets is None else resets.without(batch, self.tally)
            if len(left):
                yield location, left
            del batch, left  # free memory before the next batch is read

    def _unfitted(self) -> Iterator[EpisodeBatch]:
        """The batches that were read ahead, and the rest."""
        while (one := self._ahead.popleft() if self._ahead else next(self._rest, None)) is not None:
            self._location, batch = one
            yield batch
            del one, batch  # free memory before the next batch is read
        self.rejects.hand_on()

    def _drop_resets(self) -> None:
        """Read everything once to find resets recorded as steps, then restart without them."""
        found: dict[str, Resets] = {}
        for batch in self._unfitted():
            found.setdefault(self._location, Resets()).see(batch)
        self._resets = found
        self._begin()

    def _first(self) -> EpisodeBatch:
        """Peek at the first batch; if all episodes are in the dataset to append to, that dataset's first batch.

        Raises NoData if there is none.
        """
        if not self._ahead:
            self._ahead.extend([one] if (one := next(self._rest, None)) is not None else [])
        if self._ahead:
            return self._ahead[0][1]
        if self.tally.duplicates_dropped and self.added_to is not None and self.added_to.first is not None:
            return self.added_to.first
        lost = f": {self.rejects.count:,} rows are unreadable or belong to such episodes" if self.rejects.count else ""
        fix = "use --on-error fail to see the first bad row" if lost else "check that the recording contains steps"
        raise NoData(f"the source contains no episode{lost}", where=", ".join(self.locations), fix=fix)

    # ---- spaces, scale and meanings of all episodes ----

    def _declare(
        self, env: EnvironmentSpec | None, env_spaces: tuple[Space, Space] | None, scale: str | None, *, unread: bool
    ) -> None:
        """Set the spaces, action scale, meanings and environment of all episodes. Raises as `read_episodes` does."""
        first, into = None if unread else self._first(), self.added_to
        everywhere = self.sources if into is None else [into.info, *self.sources]
        columns = None if first is None else _columns_of(first)
        self.meanings, assumed = joined([(one.location, one.meanings) for one in everywhere], columns)
        references = [None if one.manifest is None else one.manifest.reference for one in everywhere]
        self.reference = references[0] if all(one == references[0] for one in references) else None
        name = THE_POLICY if env is None else f"--env {env.id}"
        if env_spaces is not None and first is not None:
            self._said_by = (name, name)
            self._in_structure(first, env_spaces)
        known = declared(self.sources, first, name, env_spaces, None if into is None else into.info)
        (observation, action), self._said_by, inferred = known.spaces, known.said_by, False
        if observation is None or action is None:
            inferred = True
            observation, action = self._infer_spaces(observation, action)
        elif first is not None:
            spaces = observation, action
            self._agree_on_extras(first, lambda batch: None if known.by_env else _check_same_spaces(batch, *spaces))
        self.observation_space, self.action_space = observation, action
        if into is not None and into.first is not None and first is not None:
            check_same_extra(into.first, first)
            self._extra_dtypes = extra_dtypes(into.first)
        self._assume("meaning-assumed", assumed)
        played_in = [one.environment for one in everywhere if one.environment is not None]
        self._assume("mixed-environments", sum(env is None and one != played_in[0] for one in played_in))
        self.spaces_inferred = inferred or (env is None and any(one.spaces_inferred for one in self.sources))
        self.action_scale = _scale(everywhere, action, scale)
        self.environment = env or _environment(everywhere)
        self._time_limit = None if env is None else time_limit(env)
        self._all_say_spaces = not known.by_env and not self.spaces_inferred

    def _assume(self, kind: str, times: int) -> None:
        """Count assumptions about all sources."""
        self.tally.assume(kind, times)
        self._assumed[kind] += times

    def _infer_spaces(self, observation: Space | None, action: Space | None) -> tuple[Space, Space]:
        """Replace undeclared spaces (None) by inferred ones. Raises BadEpisode if episodes have no common space.

        Episodes are kept in memory meanwhile if they fit; otherwise they are read again.
        """
        first, size, extremes = self._first(), 0, Extremes()
        held, keep = deque[tuple[str, EpisodeBatch]](), min(KEEP, room_for_data(self.memory_limit) // 8)
        for location, batch in chain(self._ahead, self._rest):
            check_same_shapes(first, batch)
            extremes.see(batch)
            size += batch.nbytes + OBJECTS * len(batch)
            held.append((location, batch))
            if size > keep:
                held.clear()
        self._ahead, self._extra_dtypes = held, extremes.extra_dtypes
        if size > keep:
            self._begin()
        guessed = extremes.spaces()
        for known, space, column, kind in (
            (observation, guessed[0], Columns.OBS, "unused-observations"),
            (action, guessed[1], Columns.ACTIONS, "unused-actions"),
        ):
            self._assume(kind, 0 if known else unused_choices(space, extremes.choices.get(column), self.sources, column))
        return observation or guessed[0], action or guessed[1]

    def _agree_on_extras(self, first: EpisodeBatch, check_spaces: Callable[[EpisodeBatch], None]) -> None:
        """Widen the dtypes of extra model outputs over the first batches of all sources: spaces do not cover them.

        `check_spaces` may raise for the spaces that a batch declares. Raises BadEpisode early if the sources have different
        outputs.
        """
        if self.limit is not None or len(self.opened) == 1 or not first.num_steps:
            return
        extremes = Extremes()
        extremes.see_extra(first)
        for source in self.opened[1:]:
            batch = first_batch(source, OnError.SKIP)
            if batch is not None and batch.num_steps:
                check_spaces(batch)
                batch = batch if self.extras is None else self.extras.of(batch, source.info.location)
                check_same_extra(first, batch)
                extremes.see_extra(batch)
        self._extra_dtypes = extremes.extra_dtypes

    # ---- fitting batches to the spaces ----

    def _fit(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Convert `batch` to the structure and dtypes of the spaces. Raises SpaceMismatch, BadEpisode."""
        spaces = self.observation_space, self.action_space
        if self._all_say_spaces:
            _check_same_spaces(batch, *spaces)
        return conform(self._in_structure(batch, spaces), *spaces, self._extra_dtypes)

    def _in_structure(self, batch: EpisodeBatch, spaces: tuple[Space, Space]) -> EpisodeBatch:
        """Convert `batch` to the structure of `spaces`. Raises SpaceMismatch, naming episode and place of a misfit."""
        shaped = replace(batch, obs=as_space(batch.obs, spaces[0]), actions=as_space(batch.actions, spaces[1]))
        trees = (("observations", shaped.obs, batch.obs_starts), ("actions", shaped.actions, batch.starts))
        for (name, tree, starts), space, by in zip(trees, spaces, self._said_by, strict=True):

            def where(row: int | None, starts: Any = starts) -> str:
                entry = 0 if row is None else int(np.searchsorted(starts, row, side="right")) - 1
                step = 0 if row is None else row - int(starts[entry])
                place = self._stitcher.place_of(batch.ids[entry], min(step, int(batch.lengths[entry]) - 1))
                return f"{place}, episode {batch.ids[entry]}" + ("" if row is None else f", step {step}")

            check_fits(tree, space, name=name, said_by=by, where=where, meanings=self.meanings)
        return shaped


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
    unread: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> EpisodeStream:
    """Stream the episodes of all `sources`, in order, or of already `opened` ones.

    `env`: an environment, for sources without spaces; its missing arguments come from sources of the same environment
    (`AskedEnvironment.chosen`). `env_spaces`: its spaces, if known; without `env`, a policy's. `action_scale`: for sources that
    do not declare it. `limit`: maximum number of episodes; nothing is read, counted or inferred beyond them. `workers`: files
    read in parallel. `from_`, `tables`, `apart`, `drop`: see `open_sources`; `tables` also sets the memory limit.
    `episode_limit`: maximum size of one episode. `extras`: chooses the extra outputs to keep; None: all, which must be equal in
    all sources. `added_to`: the dataset to append to. `drop_reset_rows`: read everything twice and drop resets recorded as
    steps (`reset_rows.py`). `engine`: its workers read the sources. `unread`: read no episode, because the source is a dataset
    with spaces, whose rows the caller moves.
    Raises as `open_sources` does, NoData without episodes, UnknownEnvironment, SpaceMismatch, BadConfig for different action
    scales or contradicting meanings of a column; iterating raises BadData, unless `on_error` is `skip` or `quarantine`.
    """
    if action_scale not in (None, *SCALES):
        what, fix = f"unknown action scale {action_scale!r}", f"use {' or '.join(SCALES)}"
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
        chosen = None if extras is None else extras(opened)
        stream = EpisodeStream(opened, OnError(on_error), on_progress, limit, memory_limit, episode_limit, chosen, added_to)
        if drop_reset_rows:
            stream._drop_resets()
        stream._declare(env, env_spaces, action_scale, unread=unread)
        stream._held = scope.moved()
        return stream


def _columns_of(batch: EpisodeBatch) -> set[str]:
    """The paths of all columns that can have a meaning."""
    trees = (Columns.OBS, batch.obs), (Columns.ACTIONS, batch.actions), *batch.extra.items()
    return {Columns.REWARDS, Columns.T, *(path for name, tree in trees for path, _ in flatten(tree, name))}


def _check_same_spaces(batch: EpisodeBatch, observation: Space, action: Space) -> None:
    pairs = ((batch.observation_space, observation), (batch.action_space, action))
    for name, (own, common) in zip(("observation", "action"), pairs, strict=True):
        if own is not None and not same_space(own, common):
            raise two_spaces(name, ("the first episode", common), (f"episode {batch.ids[0]}", own))


def _scale(sources: Sequence[SourceInfo], space: Space, said: str | None) -> str:
    """The scale of all actions. Raises UsageError if `said` contradicts a source, BadConfig if sources differ."""
    if only_discrete(space):
        return ENV_SCALE
    scales = {source.action_scale: source.location for source in sources}
    for source in sources:
        source.check_scale(said)
    if said is None and len(scales) > 1:
        what, where = f"actions have different scales: {' and '.join(sorted(scales))}", " and ".join(scales.values())
        fix = "convert each source separately with its own --action-scale, and do not merge different scales"
        raise BadConfig(what, where=where, fix=fix)
    return said or next(iter(scales))


def _environment(sources: Sequence[SourceInfo]) -> EnvironmentSpec | None:
    """The environment of all sources, with the arguments and wrappers on which they agree."""
    specs = [source.environment for source in sources]
    known = [spec for spec in specs if spec is not None]
    if len(known) < len(specs) or len({spec.id for spec in known}) > 1:
        return None
    first = known[0]
    kwargs, wrappers = (all(getattr(spec, n) == getattr(first, n) for spec in known) for n in ("kwargs", "wrappers"))
    return EnvironmentSpec(first.id, first.kwargs if kwargs else {}, first.wrappers if wrappers else ())
