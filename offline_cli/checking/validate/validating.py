"""`validate`: every check over every source, in one pass. Only wrong usage raises; faults of data are its result.

Data is read as `convert` reads it (readers, stitching), with `--on-error skip`, and with a tally and rejects that listen. So
whatever would be dropped, repaired or refused on converting is reported. All sources together are one recording: an episode may
span them, and ids must be unique in all.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any, cast

import numpy as np

from offline_cli.checked_keywords import checked
from offline_cli.checking.validate.agents import Agents
from offline_cli.checking.validate.findings import Findings, ListeningRejects, ListeningTally, Validation
from offline_cli.checking.validate.folder import OwnFolder
from offline_cli.checking.validate.structures import CommonForm, Dimensions, Structures
from offline_cli.checking.validate.values import ValueChecks
from offline_cli.choices import TABLE_MEMORY_LIMIT, ActionScale, EpisodeEnds
from offline_cli.converting.reset_rows import Resets
from offline_cli.converting.stitching import Stitcher
from offline_cli.converting.whole_episodes import stitched
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.environments import spaces_of_env
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, UsageError
from offline_cli.formats.asked_environment import AskedEnvironment
from offline_cli.formats.opening import open_sources
from offline_cli.formats.source import ENV_SCALE, UNKNOWN_SCALE, Fragments, ReadOptions, Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.meanings import joined
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space, only_discrete
from offline_cli.storage.locations import Location, Sources, expand
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import leaves

__all__ = ["validate"]

Spaces = tuple[Space | None, Space | None]  # of observations and actions


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
    """Every problem of `sources`: datasets, committed or not, and recordings of any known format.

    With `strict`, warnings are failures too (`Validation.passed`, `.check()`). Problems are returned, not raised. Raises
    UsageError, BadMapping, StorageNotFound, StorageError, UnknownEnvironment.
    """
    options = dict(locals())
    began = time.monotonic()
    asked_env = AskedEnvironment.of(options)
    tables = TableOptions.of(options)
    findings = Findings()
    tally = ListeningTally(findings)

    def own_folder(place: Location) -> _Subject:
        own = OwnFolder(place, memory_limit=tables.memory_limit)
        own.check(findings, deep=options["deep"], on_progress=on_progress, allow_lost=options["allow_lost"])
        if own.manifest is not None and from_ not in ("auto", own.manifest.format):
            raise UsageError(f"--from {from_} for a dataset of {own.manifest.format}", where=place.url, fix="leave out --from")
        return _Subject(place.url, own.source(), own)

    def foreign(members: Sequence[Location]) -> list[_Subject]:
        try:
            opened = open_sources(members, from_=from_, tables=tables, storage_options=storage_options)
        except BadData as error:
            findings.add_error(members[0].url, error, "unreadable-source")
            return [_Subject(members[0].url, None)]
        return [_Subject(source.info.location, source) for source in opened]

    places = expand(sources, storage_options)
    if not places:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    subjects: list[_Subject] = []  # each folder, and each group of files that follow each other, as `open_sources` groups them
    for is_folder, group in groupby(places, key=Location.is_dir):
        for members in [[place] for place in group] if is_folder else [list(group)]:
            is_own = is_folder and holds_dataset(members[0])
            subjects += [own_folder(members[0])] if is_own else foreign(members)
    env_spaces = None if asked_env is None else _spaces_in(asked_env, subjects)
    read_as = ReadOptions(env_spaces, memory_limit=tables.memory_limit)
    checks = _read(
        subjects, findings, tally, None if asked_env is None else asked_env.id, read_as, options["action_scale"], on_progress
    )
    names = [subject.name for subject in subjects]
    return Validation(
        problems=findings.problems(names),
        sources=tuple(names),
        formats=tuple(subject.source.info.format for subject in subjects if subject.source is not None),
        episodes=sum(check.episodes for check in checks),
        steps=sum(check.steps for check in checks),
        rows=tally.rows_in,
        deep=options["deep"],
        strict=options["strict"],
        hashes_unchecked=sum(subject.own.unhashed for subject in subjects if subject.own is not None),
        seconds=time.monotonic() - began,
        agents=sum((check.agents.episodes for check in checks), Counter()),
        modules=sum((check.agents.modules for check in checks), Counter()),
    )


def _spaces_in(env: AskedEnvironment, subjects: Sequence[_Subject]) -> tuple[Space, Space]:
    """The spaces of the environment, made as the sources say; they are closed where it cannot be made."""
    with Scope() as scope:
        sources = [subject.source for subject in subjects if subject.source is not None]
        for source in sources:
            scope.enter(closing(source))
        spaces = spaces_of_env(env.among((source.info.location, source.info.environment) for source in sources))
        scope.moved()
    return spaces


def _read(
    subjects: Sequence[_Subject],
    findings: Findings,
    tally: ListeningTally,
    env: str | None,
    read_as: ReadOptions,
    scale: str | None,
    on_progress: OnProgress,
) -> Sequence[_Checks]:
    """The one pass over all sources that can be read; the checks that it ran."""
    checks: dict[str, _Checks] = {}
    watched: list[Source] = []
    env_spaces = read_as.spaces
    common = CommonForm(compare_spaces=env_spaces is None)
    for subject in subjects:
        source = subject.source
        if source is not None:
            source.prepare(read_as)
            check = checks[subject.name] = _Checks(subject, source, findings, common, env_spaces, scale, env)
            watched.append(cast(Source, _Watched(source, check)))
    said = [(check.name, check.meanings) for check in checks.values()]
    try:
        tally.location = next(iter(checks), "")
        tally.assume("meaning-assumed", joined(said)[1])
    except BadConfig as error:
        findings.add_error(error.details["sources"][1], error, "mixed-meanings")
    rejects = ListeningRejects(findings, tally)
    with Scope() as scope:
        for source in watched:
            scope.enter(closing(source))
        for batch in stitched(watched, Stitcher(tally, rejects), on_progress):
            checks[tally.location].see(batch)
    for check in checks.values():
        check.tell()
    for subject in subjects:  # now that its figures are compared, which a problem of its own would spoil
        if subject.source is not None:
            tally.inherit(subject.name, subject.source.info.inherited)
    tally.tell_counted()
    return list(checks.values())


# ---- one source ----


@dataclass(frozen=True, slots=True)
class _Subject:
    """One source among those that were given."""

    name: str
    source: Source | None  # None: nothing can be read
    own: OwnFolder | None = None  # where it is a dataset of ours


class _Checks:
    """The checks of one source, and its size."""

    def __init__(
        self,
        subject: _Subject,
        source: Source,
        findings: Findings,
        common: CommonForm,
        env_spaces: Spaces | None,
        scale: str | None,
        env: str | None,
    ) -> None:
        """`env_spaces`: those of the environment `env` that the caller names; `scale`: of actions, as the caller gives it.

        `common`: what is compared between sources.
        """
        self._common = common
        self._env, self._scale_is_said = env, scale is not None
        self.name, self.findings = subject.name, findings
        self.episodes = self.steps = self.entries = 0
        self._inferred = subject.own is not None and subject.own.manifest is not None and subject.own.manifest.spaces_inferred
        self._said, self.meanings = env_spaces or source.info.spaces, source.info.meanings
        source.info.check_scale(scale)
        self._scale = source.info.action_scale if scale is None else scale
        self._figures, self._plain = subject.own.comparisons() if subject.own is not None else (None, None)
        self._structures = Structures(
            findings,
            self.name,
            common,
            spaces_known=None not in self._said,
            compare_spaces=env_spaces is None and not self._inferred,
        )
        self._values: ValueChecks | None = None  # made with the first batch, which may declare the spaces
        self._dimensions: Dimensions | None = None
        self.agents = Agents(findings, self.name)
        self._resets = Resets()

    def see_fragments(self, fragments: Fragments) -> None:
        """Check entries as they are in the source."""
        batch, places = fragments.batch, fragments.origins
        self.entries += len(batch)
        if self._figures is not None:
            self._figures.see_fragments(batch, places)
        if self._plain is not None:
            self._plain.see_fragments(batch, places, self.findings, self.name)

    def see(self, batch: EpisodeBatch) -> None:
        """Check whole episodes."""
        self.episodes, self.steps = self.episodes + len(batch), self.steps + batch.num_steps
        spaces = self._said[0] or batch.observation_space, self._said[1] or batch.action_space
        values, dimensions = self._begun(batch, spaces)
        values.see(batch, spaces)
        dimensions.see(batch, spaces)
        self._structures.see(batch, spaces)
        self.agents.see(batch)
        self._resets.see(batch)
        if self._figures is not None:
            self._figures.see(batch)

    def _begun(self, batch: EpisodeBatch, spaces: Spaces) -> tuple[ValueChecks, Dimensions]:
        if self._values is None or self._dimensions is None:
            if self._inferred or None in spaces:
                self.findings.add(self.name, "spaces-inferred", 1, [self.name])
            floats = any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves(batch.actions))
            boxes = floats if spaces[1] is None else not only_discrete(spaces[1])
            scale = self._scale if boxes else ENV_SCALE
            if scale == UNKNOWN_SCALE:
                self.findings.add(self.name, "action-scale-unknown", 1, [self.name])
            mixed = self._common.other_scale(self.name, scale) if boxes else ""
            if mixed:
                self.findings.add(self.name, "mixed-action-scales", 1, [self.name], example=mixed)
            self._values = ValueChecks(
                self.findings,
                self.name,
                scale,
                env=self._env,
                scale_is_said=self._scale_is_said and boxes,
                meanings=self.meanings,
            )
            self._dimensions = Dimensions(scale, self.meanings)
        return self._values, self._dimensions

    def tell(self) -> None:
        """Report what only all episodes together show."""
        if not self.entries and not self.findings.has(self.name):
            self.findings.add(self.name, "no-episodes", 1, [self.name])
        if self._dimensions is not None:
            self._dimensions.tell(self.findings, self.name)
        if self._figures is not None:
            self._figures.tell(self.findings, self.name)
        if (found := self._resets.found()) is not None:
            kind, marked = found
            places = (f"{self.name}, episode {name}" for name in compress(self._resets.ids, marked.tolist()))
            self.findings.add(self.name, kind.value, int(np.count_nonzero(marked)), places)
            self.findings.set_total(self.name, kind.value, self.episodes)
        totals = {
            "observations": self.steps + self.episodes,
            "actions": self.steps,
            "rewards": self.steps,
            "extras": self.steps,
        }
        for plural, total in totals.items():
            for code in (f"nan-in-{plural}", f"infinite-in-{plural}", f"{plural[:-1]}-outside-space"):
                self.findings.set_total(self.name, code, total)


class _Watched:
    """A source whose fragments are checked on their way; an error about its data is reported, and ends this source only."""

    def __init__(self, source: Source, checks: _Checks) -> None:
        self._source, self._checks = source, checks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """As the source's own."""
        tally.location = location = self._source.info.location
        try:
            for fragments in self._source.fragments(tally, rejects):
                self._checks.see_fragments(fragments)
                yield fragments
                tally.location = location
        except BadData as error:
            self._checks.findings.add_error(location, error, "unreadable-source")
