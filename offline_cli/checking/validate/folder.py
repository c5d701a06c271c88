"""Checks of a dataset folder except its episodes: commit, manifest, shards, and other files.

Shards are read later like foreign recordings (`formats/`), not by the dataset's reader, which stops at the first fault; so
gaps, broken chains and unreadable rows are reported one by one. A shard that contradicts its manifest entry is reported once
and not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offline_cli.checking.validate.findings import LEAVE_OUT, Findings, Found
from offline_cli.datasets.dataset import NOT_FINISHED, Dataset, row_format
from offline_cli.datasets.file_names import DATA, MANIFEST, PART_PREFIX, UNFINISHED_WRITING
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.ownership import data_files, quarantine_files
from offline_cli.datasets.row_format import RowFormat
from offline_cli.datasets.statistics import EpisodeStatistics
from offline_cli.datasets.target_folder import REPAIRED_FIX
from offline_cli.errors import BadData, StorageNotFound, Uncommitted
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.opening import info_of
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.source import Source
from offline_cli.parquet.reading import OTHER_SHARD, dropping, fingerprint, opened, read_row_groups
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location
from offline_cli.tally import Lost

SPOILING: Final = ("duplicate-episode", "zero-length-episode", "unfinished-episode", "repeated-steps", "incomplete-episode")
"""Problems, besides errors, that make the counts differ from the manifest; they are already reported."""


@dataclass(slots=True)
class OwnFolder:
    """One dataset folder; `check` covers everything but its episodes."""

    location: Location
    findings: Findings
    memory_limit: int = MEMORY_LIMIT
    manifest: Manifest | None = None  # None: missing or unreadable
    readable: list[Location] = field(default_factory=list)  # shards to read

    def _add(self, code: str, places: Sequence[str], **more: Any) -> None:
        self.findings.add(self.location.url, Found(code, more.pop("times", len(places)), places, **more))

    def check(self, *, deep: bool, on_progress: OnProgress, allow_lost: bool = False) -> None:
        """Report the problems of the folder, and find the shards to read."""
        try:
            self.manifest = Dataset.open(self.location).manifest
        except Uncommitted as error:
            detail = error.what.removeprefix(NOT_FINISHED).lstrip(":, ")  # the code's text says it already
            self._add("uncommitted", [error.where], example=detail, fix=error.fix)
            try:  # the manifest of a dataset that was being overwritten
                self.manifest = Manifest.read(self.location) if self.location.join(MANIFEST).exists() else None
            except BadData as broken:
                self._broken_manifest(broken)
        except BadData as error:
            self._broken_manifest(error)
        else:
            self._other_files(self.manifest)
        if deep:
            self._leftovers()
        if self.manifest is not None:
            self._facts(self.manifest, allow_lost=allow_lost)
            self._shards(self.manifest, on_progress)

    def _broken_manifest(self, error: BadData) -> None:
        wrong, place = error.details.get("problems", [error.what]), self.location.join(MANIFEST).url
        self._add("broken-manifest", [f"{place}: {mistake}" for mistake in wrong], example="; ".join(wrong[:3]))

    def _other_files(self, manifest: Manifest) -> None:
        listed, root = {shard.path for shard in manifest.shards}, self.location.join(DATA).path.rstrip("/")
        for file in data_files(self.location):
            below = file.path.removeprefix(root).lstrip("/")
            if f"{DATA}/{below}" not in listed:
                hidden = any(part.startswith((".", "_")) for part in below.split("/"))  # readers skip these
                self._add("unlisted-file", [file.url], severity="warning" if hidden else None)
        halves = [child.url for child in self.location.children() if child.name.startswith(PART_PREFIX)]
        if halves:
            self._add("leftover-file", halves)

    def _leftovers(self) -> None:
        """Report unreadable files of rejected rows."""
        for file in quarantine_files(self.location).values():
            try:
                with opened(file) as parquet:
                    for _ in read_row_groups(parquet, file):
                        continue
            except BadData as error:
                self._add("damaged-quarantine", [file.url], example=error.what)

    def _facts(self, manifest: Manifest, *, allow_lost: bool) -> None:
        """Report problems that the manifest itself shows."""
        place, aside = [self.location.url], quarantine_files(self.location)
        if not manifest.complete:
            self._add("incomplete-dataset", place, fix="" if UNFINISHED_WRITING in manifest.provenance else REPAIRED_FIX)
        if manifest.episodes_lost:
            lost = ((kind, manifest.assumptions.get(kind)) for kind in Lost)
            example = ", ".join(f"{kind} {count:,}" for kind, count in lost if count)
            severity = "note" if allow_lost else "warning"
            self._add("lost-episodes", place, times=manifest.episodes_lost, severity=severity, example=example)
        if aside:
            self._add("quarantined-rows", [aside[number].url for number in sorted(aside)])

    def _shards(self, manifest: Manifest, on_progress: OnProgress) -> None:
        """Report shards that contradict the manifest, and collect the others."""
        spaces, declared = (manifest.observation_space, manifest.action_space), not manifest.spaces_inferred
        reader = row_format(manifest.format, *spaces, declared=declared, memory_limit=self.memory_limit)
        hashed, total = 0, sum(shard.bytes for shard in manifest.shards)
        for shard in manifest.shards:
            check()
            place = self.location.join(shard.path)
            fix = LEAVE_OUT.format(dropping(place))
            try:
                size, digest = fingerprint(place)
            except StorageNotFound:
                self._add("missing-shard", [place.url], fix=fix)
                continue
            on_progress(Progress("hashing", (hashed := hashed + size) // 1000, max(hashed, total) // 1000, "kB"))
            if size != shard.bytes:
                self._add("shard-size", [f"{place.url}: {size:,} bytes, the manifest says {shard.bytes:,}"], fix=fix)
            elif digest != shard.sha256:
                self._add(OTHER_SHARD, [place.url], fix=fix)
            else:
                self._open(place, shard, reader)

    def _open(self, place: Location, shard: Shard, reader: RowFormat) -> None:
        """Compare rows and columns of a shard with the manifest."""
        try:
            with opened(place) as file:
                if file.metadata.num_rows != shard.rows:
                    what = f"the shard has {file.metadata.num_rows} rows, but the manifest says {shard.rows}"
                    raise BadData(what, where=place.url, fix="compare with a copy, or rebuild the manifest with repair")
                reader.check_columns(file, place)
                if not self.readable:  # all shards have one writer: checking the spaces of the first episodes is enough
                    next(reader.read(file, place), None)
        except BadData as error:
            self.findings.add_error(self.location.url, error, "unreadable-file")
        else:
            self.readable.append(place)

    def source(self) -> Source | None:
        """The readable shards as a source, or None."""
        found = self.manifest
        if found is None or not self.readable:
            return None
        kind = RllibEpisodesSource if found.format == "episodes" else RllibColumnsSource
        return kind(self.readable, self.location.url, info_of(found, self.location.url))

    def compare(self, seen: EpisodeStatistics) -> None:
        """Report counts that differ from the manifest, unless a reported problem explains the difference."""
        manifest, source = self.manifest, self.location.url
        if manifest is None or self.findings.has(source) or self.findings.has(source, *SPOILING):
            return
        counts = seen.counts({})
        for name in ("episodes", "steps", "terminated", "truncated"):
            have, said = getattr(counts, name), getattr(manifest.counts, name)
            if have != said:
                self._add("count-mismatch", [f"{source}, {have:,} {name}, the manifest says {said:,}"])
