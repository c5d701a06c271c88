"""`validate`: run all checks on all sources in one pass. Only wrong usage raises; problems of the data are the result.

Data is read as `convert` reads it (readers, stitching), with `--on-error skip` and a reporting tally and rejects. So everything
that conversion would drop, repair or reject is reported. All sources form one recording: an episode may span them, and ids must
be unique.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import compress, groupby
from typing import Any

import numpy as np

from offline_cli.checked_keywords import checked
from offline_cli.checking.validate.findings import Findings, Found, ListeningRejects, ListeningTally, Validation
from offline_cli.checking.validate.folder import OwnFolder
from offline_cli.checking.validate.values import Spaces, TablePlaces, value_problems
from offline_cli.choices import TABLE_MEMORY_LIMIT, ActionScale, EpisodeEnds
from offline_cli.converting.fitting import difference, extra_kinds, shapes
from offline_cli.converting.reset_rows import Resets
from offline_cli.converting.stitching import Stitcher, stitched
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.opening import open_sources
from offline_cli.formats.source import ENV_SCALE, UNKNOWN_SCALE, Fragments, ReadOptions, Source, WrappedSource
from offline_cli.formats.tables.source import TableOptions, TableSource
from offline_cli.meanings import joined
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, describe, only_discrete, same_space
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import leaves


@checked
def validate(
    sources: Sources,
    *,
    from_: str = "auto",
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    rows_as_episodes: bool = False,
    episode_ends: EpisodeEnds | None = None,
    env: str | None = None,
    action_scale: ActionScale | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[str] | None = None,
    strict: bool = False,
    deep: bool = False,
    allow_lost: bool = False,
    temp_dir: str | os.PathLike[str] | None = None,
    memory_limit: int | str = TABLE_MEMORY_LIMIT,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
) -> Validation:
    """Report all problems of `sources`: datasets, committed or not, and recordings in any known format.

    With `strict`, warnings are failures too (`Validation.passed`, `.check()`). Problems are returned, not raised. Raises
    UsageError, BadMapping, StorageNotFound, StorageError, UnknownEnvironment.
    """
    options = dict(locals())
    began = time.monotonic()
    asked_env, tables = AskedEnvironment.of(options), TableOptions.of(options)
    findings, folders, sources_of = Findings(), dict[str, OwnFolder](), dict[str, Source | None]()
    places = expand(sources, storage_options)
    if not places:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    for is_folder, group in groupby(places, key=Location.is_dir):  # consecutive files form one source, as in `open_sources`
        for members in [[place] for place in group] if is_folder else [list(group)]:
            place = members[0]
            if is_folder and holds_dataset(place):
                folder = folders[place.url] = OwnFolder(place, findings, tables.memory_limit)
                folder.check(deep=options["deep"], on_progress=on_progress, allow_lost=options["allow_lost"])
                if folder.manifest is not None and from_ not in ("auto", folder.manifest.format):
                    what = f"--from {from_}, but this is a dataset in the format {folder.manifest.format}"
                    raise UsageError(what, where=place.url, fix="remove --from")
                sources_of[place.url] = folder.source()
                continue
            try:
                opened = open_sources(members, from_=from_, tables=tables, storage_options=storage_options)
                sources_of |= {source.info.location: source for source in opened}
            except BadData as error:
                findings.add_error(place.url, error, "unreadable-source")
                sources_of[place.url] = None
    with Scope() as scope:
        readable = {name: scope.enter(closing(source)) for name, source in sources_of.items() if source is not None}
        declared = ((name, source.info.environment) for name, source in readable.items())
        spec = None if asked_env is None else asked_env.among(declared)
        read_as = ReadOptions(None if spec is None else spaces_of_env(spec), memory_limit=tables.memory_limit)
        for source in readable.values():
            source.prepare(read_as)
        structures = Structures(by_env=spec is not None)
        checked = {
            name: _CheckedSource(source, findings, structures, folders.get(name), read_as.spaces, options["action_scale"])
            for name, source in readable.items()
        }
        tally = _read(checked, findings, on_progress)
    return Validation(
        problems=findings.problems(list(sources_of)),
        sources=tuple(sources_of),
        formats=tuple(source.info.format for source in readable.values()),
        episodes=sum(one.episodes for one in checked.values()),
        steps=sum(one.steps for one in checked.values()),
        rows=tally.rows_in,
        deep=options["deep"],
        strict=options["strict"],
        seconds=round(time.monotonic() - began, 3),
        agents=sum((one.agents for one in checked.values()), Counter()),
        modules=sum((one.modules for one in checked.values()), Counter()),
    )


def _read(checked: Mapping[str, _CheckedSource], findings: Findings, on_progress: OnProgress) -> Tally:
    """Read and check all readable sources in one pass; return the tally."""
    tally = ListeningTally(findings)
    try:
        tally.location = next(iter(checked), "")
        tally.assume("meaning-assumed", joined([(name, source.info.meanings) for name, source in checked.items()])[1])
    except BadConfig as error:
        findings.add_error(error.details["sources"][1], error, "mixed-meanings")
    stitcher = Stitcher(tally, ListeningRejects(findings, tally))
    for batch in stitched([*checked.values()], stitcher, on_progress):
        checked[tally.location].see(batch, stitcher.place_of)
    for source in checked.values():
        source.finish()
    for name, source in checked.items():  # after the counts are compared, because reported problems prevent that
        made_by = {} if source.info.manifest is None else source.info.manifest.provenance.get("operation") or {}
        tally.inherit(name, source.info.inherited, were_dropped="drop_problems" in made_by)
    tally.tell_counted()
    return tally


class _CheckedSource(WrappedSource):
    """A source with checks of its whole episodes. A data error is reported, and ends only this source."""

    def __init__(
        self,
        source: Source,
        findings: Findings,
        structures: Structures,
        folder: OwnFolder | None,
        env_spaces: tuple[Space, Space] | None,
        scale: str | None,
    ) -> None:
        """`structures`: shared by all sources; `folder`: for our own datasets; `env_spaces`: of `--env`; `scale`: the caller's
        action scale.
        """
        super().__init__(source)
        self.info.check_scale(scale)
        self._findings, self._structures, self._folder, self._name = findings, structures, folder, self.info.location
        self._inferred = self.info.manifest is not None and self.info.spaces_inferred
        self._said, self._scale = env_spaces or self.info.spaces, scale or self.info.action_scale
        self.agents, self.modules = Counter[str](), Counter[str]()  # episodes by name
        self.episodes, self.steps, self._has_any = 0, 0, False
        self._resets, self._statistics = Resets(), EpisodeStatistics()

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`. Reports BadData instead of raising it."""
        tally.location = self._name
        try:
            for fragments in self.source.fragments(tally, rejects):
                self._has_any |= len(fragments.batch) > 0
                yield fragments
        except BadData as error:
            self._findings.add_error(self._name, error, "unreadable-source")

    def see(self, batch: EpisodeBatch, place_of: Callable[[str, int], str]) -> None:
        """Check whole episodes. `place_of`: of a step of an episode."""
        spaces = self._said[0] or batch.observation_space, self._said[1] or batch.action_space
        if not self.episodes:
            self._begin(batch, spaces)
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps
        parts = self.source.mapping.parts if isinstance(self.source, TableSource) else ()
        table = TablePlaces({part.name: part.columns[0] for part in parts if not part.stacked}, place_of) if parts else None
        self._add(value_problems(batch, spaces, self._scale, self.info.meanings, table))
        self._add(self._structures.problems(self._name, batch, spaces))
        self.agents.update(name for name in batch.agent_ids or () if name is not None)
        self.modules.update(name for name in batch.module_ids or () if name is not None)
        self._resets.see(batch)
        self._statistics.add(batch)

    def _begin(self, batch: EpisodeBatch, spaces: tuple[Space | None, Space | None]) -> None:
        """Check properties of the source at its first episodes."""
        if self._inferred or None in spaces:
            self._add([self._of_source("spaces-inferred")])
        floats = any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves(batch.actions))
        if not (floats if spaces[1] is None else not only_discrete(spaces[1])):
            self._scale = ENV_SCALE
            return
        if self._scale == UNKNOWN_SCALE:
            self._add([self._of_source("action-scale-unknown")])
        if mixed := self._structures.other_scale(self._name, self._scale):
            self._add([self._of_source("mixed-action-scales", mixed)])

    def _add(self, found: Iterable[Found]) -> None:
        """Report problems, adding the source to their places."""
        for one in found:
            one.places = (f"{self._name}, {place}" if place.startswith("episode ") else place for place in one.places)
            self._findings.add(self._name, one)

    def _of_source(self, code: str, example: str = "") -> Found:
        return Found(code, 1, [self._name], example=example)

    def finish(self) -> None:
        """Report problems that depend on all episodes."""
        if not self._has_any and not self._findings.has(self._name):
            self._add([self._of_source("no-episodes")])
        if self._folder is not None:
            self._folder.compare(self._statistics)
        if (found := self._resets.found()) is not None:
            kind, marked = found
            places = (f"episode {name}" for name in compress(self._resets.ids, marked.tolist()))
            self._add([Found(kind.value, int(np.count_nonzero(marked)), places)])


# ---- structures that all episodes must share ----


class Structures:
    """Compares every batch with the first of all sources."""

    def __init__(self, *, by_env: bool) -> None:
        """`by_env`: the caller named an environment, so declared spaces are ignored."""
        self._by_env = by_env
        self._first: tuple[str, dict[str, str], dict[str, str], Spaces] | None = None
        self._scale: tuple[str, str] | None = None

    def problems(self, source: str, batch: EpisodeBatch, spaces: Spaces) -> Iterator[Found]:
        """Report how `batch` differs. `spaces`: of its source, or else its own; where both are known, shapes are compared with
        them elsewhere.
        """
        extra, shaped = extra_kinds(batch), shapes(batch)
        first, first_extra, first_shaped, first_spaces = self._first = self._first or (source, extra, shaped, spaces)
        where = "" if source == first else f" in {first}"
        known = None not in spaces and None not in first_spaces
        if other := difference(extra, first_extra) or ("" if known else difference(shaped, first_shaped)):
            yield Found.of_all("mixed-structures", batch, f"{other}{where}")
        for mine, theirs in zip(spaces, first_spaces, strict=True):
            if not self._by_env and mine is not None and theirs is not None and not same_space(mine, theirs):
                yield Found.of_all("mixed-spaces", batch, f"{describe(mine)}, before {describe(theirs)}{where}")
                return

    def other_scale(self, source: str, scale: str) -> str:
        """Describe how the scale of a source with Box actions differs from that of the first such source."""
        self._scale = self._scale or (source, scale)
        return "" if scale == self._scale[1] else f"{scale}, before {self._scale[1]} in {self._scale[0]}"
