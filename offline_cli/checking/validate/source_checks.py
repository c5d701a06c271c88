"""The sources to be validated, opened place by place, and all checks of one source's episodes, batch by batch.

Wrong usage and missing places raise; all faults of data are reported. No episode is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from offline_cli.checking.validate.findings import Findings
from offline_cli.checking.validate.folder import OwnFolder
from offline_cli.checking.validate.structures import CommonForm, Dimensions, Structures
from offline_cli.checking.validate.values import ValueChecks
from offline_cli.converting.fitting import only_discrete
from offline_cli.converting.reading import check_scale_of
from offline_cli.datasets.dataset import holds_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, UsageError
from offline_cli.files.locations import Location
from offline_cli.formats.source import ENV_SCALE, UNKNOWN_SCALE, Fragments, Source
from offline_cli.spaces import Space
from offline_cli.tally import Rejects, Tally
from offline_cli.trees import leaves

__all__ = ["OpenGroup", "SourceChecks", "Subject", "WatchedSource", "open_subjects"]

OpenGroup = Callable[[Sequence[Location]], Sequence[Source]]
CheckFolder = Callable[[OwnFolder], None]

Spaces = tuple[Space | None, Space | None]  # of observations and actions


@dataclass(frozen=True, slots=True)
class Subject:
    """One source among those that were given."""

    name: str
    source: Source | None  # None: nothing can be read
    own: OwnFolder | None = None  # where it is a dataset of ours


def open_subjects(
    places: Sequence[Location], findings: Findings, *, from_: str, open_group: OpenGroup, check_folder: CheckFolder
) -> Iterator[Subject]:
    """A subject for each folder and for each group of files that follow each other, as `open_sources` groups them.

    `open_group` opens what is no dataset of ours; `check_folder` checks what is. Raises UsageError where `from_` names another
    format than a dataset has.
    """
    for is_folder, group in groupby(places, key=Location.is_dir):
        for members in [[place] for place in group] if is_folder else [list(group)]:
            if is_folder and holds_dataset(members[0]):
                yield _own(members[0], from_, check_folder)
            else:
                yield from _foreign(members, findings, open_group)


def _own(place: Location, from_: str, check_folder: CheckFolder) -> Subject:
    own = OwnFolder(place)
    check_folder(own)
    if own.manifest is not None and from_ not in ("auto", own.manifest.format):
        raise UsageError(f"--from {from_} for a dataset of {own.manifest.format}", where=place.url, fix="leave out --from")
    return Subject(place.url, own.source(), own)


def _foreign(members: Sequence[Location], findings: Findings, open_group: OpenGroup) -> Iterator[Subject]:
    try:
        opened = open_group(members)
    except BadData as error:
        findings.add_error(members[0].url, error, "unreadable-source")
        yield Subject(members[0].url, None)
    else:
        yield from (Subject(source.info.location, source) for source in opened)


class SourceChecks:
    """The checks of one source, and its size."""

    def __init__(
        self,
        subject: Subject,
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
        self._said = env_spaces or source.info.spaces
        self._scale = _one_scale(source, scale)
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
        if self._figures is not None:
            self._figures.see(batch)

    def _begun(self, batch: EpisodeBatch, spaces: Spaces) -> tuple[ValueChecks, Dimensions]:
        if self._values is None or self._dimensions is None:
            if self._inferred or None in spaces:
                self.findings.add(self.name, "spaces-inferred", 1, [self.name])
            boxes = _has_floats(batch) if spaces[1] is None else not only_discrete(spaces[1])
            scale = self._scale if boxes else ENV_SCALE
            if scale == UNKNOWN_SCALE:
                self.findings.add(self.name, "action-scale-unknown", 1, [self.name])
            mixed = self._common.other_scale(self.name, scale) if boxes else ""
            if mixed:
                self.findings.add(self.name, "mixed-action-scales", 1, [self.name], example=mixed)
            self._values = ValueChecks(
                self.findings, self.name, scale, env=self._env, scale_is_said=self._scale_is_said and boxes
            )
            self._dimensions = Dimensions(scale)
        return self._values, self._dimensions

    def tell(self) -> None:
        """Report what only all episodes together show."""
        if not self.entries and not self.findings.has(self.name):
            self.findings.add(self.name, "no-episodes", 1, [self.name])
        if self._dimensions is not None:
            self._dimensions.tell(self.findings, self.name)
        if self._figures is not None:
            self._figures.tell(self.findings, self.name)
        totals = {
            "observations": self.steps + self.episodes,
            "actions": self.steps,
            "rewards": self.steps,
            "extras": self.steps,
        }
        for plural, total in totals.items():
            for code in (f"nan-in-{plural}", f"infinite-in-{plural}", f"{plural[:-1]}-outside-space"):
                self.findings.set_total(self.name, code, total)


def _one_scale(source: Source, said: str | None) -> str:
    """The scale that the source declares, else the caller's. Raises UsageError where they differ."""
    check_scale_of(source.info, said)
    return source.info.action_scale if said is None else said


def _has_floats(batch: EpisodeBatch) -> bool:
    return any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves(batch.actions))


class WatchedSource:
    """A source whose fragments are checked on their way; an error about its data is reported, and ends this source only."""

    def __init__(self, source: Source, checks: SourceChecks) -> None:
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
