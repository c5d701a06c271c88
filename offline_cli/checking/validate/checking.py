"""`validate`: every check over every source, in one pass. Only wrong usage raises; faults of data are its result.

Data is read as `convert` reads it (readers, stitching), with `--on-error skip`, and with a tally and rejects that listen. So
whatever would be dropped, repaired or refused on converting is reported. All sources together are one recording: an episode may
span them, and ids must be unique in all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Unpack, cast

from offline_cli.checking.validate.findings import Findings, ListeningRejects, ListeningTally, Validation
from offline_cli.checking.validate.folder import OwnFolder
from offline_cli.checking.validate.source_checks import SourceChecks, Subject, WatchedSource, open_subjects
from offline_cli.checking.validate.structures import CommonForm
from offline_cli.converting.stitching import Stitcher
from offline_cli.converting.whole_episodes import stitched
from offline_cli.environments import spaces_of_env
from offline_cli.errors import NoData
from offline_cli.files.locations import Location, Sources, expand
from offline_cli.formats.detect import open_sources
from offline_cli.formats.source import ReadOptions, Source
from offline_cli.formats.tables.source import TableOptions
from offline_cli.options.datasets import ValidateOptions
from offline_cli.options.keywords import check_values, takes
from offline_cli.progress import OnProgress, no_progress
from offline_cli.scopes import Scope
from offline_cli.spaces import Space

__all__ = ["validate"]


@takes(ValidateOptions)
def validate(sources: Sources, *, on_progress: OnProgress = no_progress, **options: Unpack[ValidateOptions]) -> Validation:
    """Every problem of `sources`: datasets, committed or not, and recordings of any known format.

    With `strict`, warnings are failures too (`Validation.passed`, `.check()`). Problems are returned, not raised. Raises
    UsageError, BadMapping, StorageNotFound, StorageError, UnknownEnvironment.
    """
    began = time.monotonic()
    check_values(ValidateOptions, options, command="offline-cli validate")
    env, from_, storage_options = options["env"], options["from_"], options["storage_options"]
    tables = TableOptions.of(options)
    env_spaces: tuple[Space, Space] | None = None if env is None else spaces_of_env(env)
    findings = Findings()
    tally = ListeningTally(findings)

    def open_group(places: Sequence[Location]) -> Sequence[Source]:
        return open_sources(places, from_=from_, tables=tables, storage_options=storage_options)

    def check_folder(own: OwnFolder) -> None:
        own.memory_limit = tables.memory_limit
        own.check(findings, tally, deep=options["deep"], on_progress=on_progress, allow_lost=options["allow_lost"])

    places = expand(sources, storage_options)
    if not places:
        raise NoData("no source was given", where="the sources", fix="name a folder, a file or a URL")
    subjects = list(open_subjects(places, findings, from_=from_, open_group=open_group, check_folder=check_folder))
    read_as = ReadOptions(env_spaces, memory_limit=tables.memory_limit)
    checks = _read(subjects, findings, tally, env, read_as, options["action_scale"], on_progress)
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
    )


def _read(
    subjects: Sequence[Subject],
    findings: Findings,
    tally: ListeningTally,
    env: str | None,
    read_as: ReadOptions,
    scale: str | None,
    on_progress: OnProgress,
) -> Sequence[SourceChecks]:
    """The one pass over all sources that can be read; the checks that it ran."""
    checks: dict[str, SourceChecks] = {}
    watched: list[Source] = []
    env_spaces = read_as.spaces
    common = CommonForm(compare_spaces=env_spaces is None)
    for subject in subjects:
        source = subject.source
        if source is not None:
            source.prepare(read_as)
            check = checks[subject.name] = SourceChecks(subject, source, findings, common, env_spaces, scale, env)
            watched.append(cast(Source, WatchedSource(source, check)))
    rejects = ListeningRejects(findings, tally)
    with Scope() as scope:
        for source in watched:
            scope.enter(closing(source))
        for batch in stitched(watched, Stitcher(tally, rejects), on_progress):
            checks[tally.location].see(batch)
    tally.tell_counted()
    for check in checks.values():
        check.tell()
    return list(checks.values())
