"""Checks of a dataset folder around its episodes: commit, manifest, shards, and what else is in it.

* `OwnFolder`: shards are read afterwards as any recording is (`formats/`), and not by the dataset's own reader, which stops at
  the first fault: so gaps, chains and unreadable rows in a dataset are reported one by one. A shard that differs from its
  manifest entry is reported once, and not read.
* `told_of`: the report on an incomplete dataset, by how it came about; it names only remedies that would be accepted.
* `check_leftovers`: what only `--deep` checks: rows set aside, uploads left open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offline_cli.checking.repair import LEFT_OUT
from offline_cli.checking.validate.against_manifest import ManifestFigures, PlainColumns
from offline_cli.checking.validate.findings import Findings
from offline_cli.checking.validate.problem_codes import Severity
from offline_cli.datasets.dataset import NOT_FINISHED, Dataset
from offline_cli.datasets.file_names import DATA, MANIFEST, PART_PREFIX, UNFINISHED_WRITING
from offline_cli.datasets.manifest import Manifest, Shard
from offline_cli.datasets.ownership import quarantine_files
from offline_cli.datasets.reading import ShardReader
from offline_cli.datasets.target_folder import REPAIRED_FIX
from offline_cli.errors import BadData, StorageNotFound, Uncommitted
from offline_cli.formats.memory_limits import MEMORY_LIMIT
from offline_cli.formats.opening import info_of
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.source import Source
from offline_cli.parquet.shards import OTHER_SHARD, fingerprint, opened, read_row_groups
from offline_cli.progress import OnProgress, Progress
from offline_cli.stop_signals import check
from offline_cli.storage.locations import Location
from offline_cli.storage.uploads import open_uploads
from offline_cli.tally import Lost

__all__ = ["OwnFolder", "check_leftovers", "told_of"]


def told_of(manifest: Manifest) -> dict[str, Any]:
    """For `Findings.add`, of a manifest with `complete: false`."""
    if UNFINISHED_WRITING in manifest.provenance:
        return {}  # --resume continues from there
    left_out = manifest.assumptions.get(LEFT_OUT, 0)
    if left_out:
        return {"example": f"repair left out {left_out:,} {'shard' if left_out == 1 else 'shards'}", "fix": REPAIRED_FIX}
    if "repaired" in manifest.provenance:
        counted = f"compare {manifest.counts.episodes:,} episodes with what was asked for"
        return {
            "severity": "note",
            "example": "repair built the manifest anew from every shard, and nothing says whether there were to be more",
            "fix": f"{counted}; where some are missing, {REPAIRED_FIX}",
        }
    return {  # readers refuse it: `Dataset.refuse_unexplained`
        "severity": "error",
        "example": "nothing in the manifest says what is missing, or how that came about",
        "fix": "write the dataset again from its source, or read its shards without the manifest, as data/",
    }


def check_leftovers(folder: Location, findings: Findings) -> None:
    """Report uploads to dataset `folder` that were never completed, and files of rows set aside that cannot be read."""
    for upload in open_uploads(folder.join(DATA)):
        findings.add(folder.url, "leftover-file", 1, [str(upload)])
    for file in quarantine_files(folder).values():
        try:
            with opened(file) as parquet:
                for _ in read_row_groups(parquet, file):
                    continue
        except BadData as error:
            findings.add(folder.url, "damaged-quarantine", 1, [file.url], example=error.what)


@dataclass(slots=True)
class OwnFolder:
    """One dataset folder; `check` covers everything but its episodes."""

    location: Location
    manifest: Manifest | None = None  # None: there is none that can be read
    readable: list[Location] = field(default_factory=list)  # shards that are worth reading
    unhashed: int = 0  # shards whose sha256 is not compared, because they are missing or have another size
    memory_limit: int = MEMORY_LIMIT

    def check(self, findings: Findings, *, deep: bool, on_progress: OnProgress, allow_lost: bool = False) -> None:
        """Report what is wrong with the folder, and find the shards to read."""
        try:
            self.manifest = Dataset.open(self.location).manifest
        except Uncommitted as error:
            said = error.what.removeprefix(NOT_FINISHED).lstrip(":, ")  # which the code's text includes
            findings.add(self.location.url, "uncommitted", 1, [error.where], example=said, fix=error.fix)
            self._read_old_manifest(findings)
        except BadData as error:
            self._broken_manifest(findings, error)
        else:
            self._other_files(findings)
        if deep:
            check_leftovers(self.location, findings)
        if self.manifest is not None:
            self._facts(findings, allow_lost=allow_lost)
            self._shards(findings, on_progress=on_progress)

    def _read_old_manifest(self, findings: Findings) -> None:
        """That of the dataset that was being overwritten, if there is one."""
        if self.location.join(MANIFEST).exists():
            try:
                self.manifest = Manifest.read(self.location)
            except BadData as error:
                self._broken_manifest(findings, error)

    def _broken_manifest(self, findings: Findings, error: BadData) -> None:
        wrong = error.details.get("problems", [error.what])
        findings.add(
            self.location.url,
            "broken-manifest",
            len(wrong),
            [f"{self.location.join(MANIFEST).url}: {mistake}" for mistake in wrong],
            example="; ".join(wrong[:3]),
        )

    # ---- what lies there ----

    def _other_files(self, findings: Findings) -> None:
        assert self.manifest is not None
        listed = {shard.path for shard in self.manifest.shards}
        data, source = self.location.join(DATA), self.location.url
        for file in data.files() if data.exists() else []:
            below = file.path.removeprefix(data.path.rstrip("/")).lstrip("/")
            if f"{DATA}/{below}" not in listed:
                hidden = any(part.startswith((".", "_")) for part in below.split("/"))  # readers skip these
                findings.add(source, "unlisted-file", 1, [file.url], severity="warning" if hidden else None)
        for child in (child for child in self.location.children() if child.name.startswith(PART_PREFIX)):
            findings.add(source, "leftover-file", 1, [child.url])

    def _facts(self, findings: Findings, *, allow_lost: bool) -> None:
        """The manifest by itself."""
        assert self.manifest is not None
        source = self.location.url
        if not self.manifest.complete:
            findings.add(source, "incomplete-dataset", 1, [source], **told_of(self.manifest))
        lost = {kind: self.manifest.assumptions[kind] for kind in Lost if kind in self.manifest.assumptions}
        if self.manifest.episodes_lost:
            example = ", ".join(f"{kind} {count:,}" for kind, count in lost.items())
            severity: Severity = "note" if allow_lost else "warning"
            findings.add(source, "lost-episodes", self.manifest.episodes_lost, [source], severity=severity, example=example)
        aside = quarantine_files(self.location)
        if aside:
            findings.add(source, "quarantined-rows", len(aside), [aside[number].url for number in sorted(aside)])

    # ---- shards ----

    def _shards(self, findings: Findings, *, on_progress: OnProgress) -> None:
        assert self.manifest is not None
        reader = ShardReader(self.manifest.format, self.manifest.observation_space, self.manifest.action_space)
        hashed, total = 0, sum(shard.bytes for shard in self.manifest.shards)
        for shard in self.manifest.shards:
            check()
            place = self.location.join(shard.path)
            if self._is_whole(shard, place, findings) and self._has_columns(reader, place, findings):
                self.readable.append(place)
            hashed += shard.bytes
            on_progress(Progress("hashing", hashed // 1000, total // 1000, "kB"))

    def _is_whole(self, shard: Shard, place: Location, findings: Findings) -> bool:
        """Whether the shard has the bytes that its manifest says."""
        source = self.location.url
        try:
            size = place.size()
        except StorageNotFound:
            findings.add(source, "missing-shard", 1, [place.url])
            self.unhashed += 1
            return False
        if size != shard.bytes:
            findings.add(source, "shard-size", 1, [f"{place.url}: {size:,} bytes, the manifest says {shard.bytes:,}"])
            self.unhashed += 1
            return False
        if fingerprint(place)[1] != shard.sha256:
            findings.add(source, OTHER_SHARD, 1, [place.url])
            return False
        return True

    def _has_columns(self, reader: ShardReader, place: Location, findings: Findings) -> bool:
        try:
            with opened(place) as file:
                reader.check_columns(file, place)
        except BadData as error:
            findings.add_error(self.location.url, error, "unreadable-file")
            return False
        return True

    # ---- its episodes ----

    def source(self) -> Source | None:
        """The shards worth reading, as a source; None where there is none."""
        found = self.manifest
        if found is None or not self.readable:
            return None
        kind = RllibEpisodesSource if found.format == "episodes" else RllibColumnsSource
        return kind(self.readable, self.location.url, info_of(found, self.location.url))

    def comparisons(self) -> tuple[ManifestFigures | None, PlainColumns | None]:
        """What is to be compared while the shards are read: figures, and columns beside packed bytes."""
        if self.manifest is None:
            return None, None
        packed = self.manifest.format == "episodes"
        plain = PlainColumns({file.url: file for file in self.readable}) if packed else None
        return ManifestFigures(self.manifest, self.location), plain
