"""What is to be validated, opened place by place; refuses wrong usage and missing places, and reports all faults of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from offline_cli.datasets.validate.findings import Findings
from offline_cli.datasets.validate.folder import OwnFolder
from offline_cli.errors import BadData, UsageError
from offline_cli.formats.source import Source
from offline_cli.storage.dataset import holds_dataset
from offline_cli.storage.locations import Location

__all__ = ["OpenGroup", "Subject", "open_subjects"]

OpenGroup = Callable[[Sequence[Location]], Sequence[Source]]
CheckFolder = Callable[[OwnFolder], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """One source among those that were given."""

    name: str
    source: Source | None  # None: there is nothing that could be read
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
