"""Whether a dataset holds what its manifest counts and measures, and what its plain columns say of packed episodes.

* `ManifestFigures`: counts must agree exactly, extremes too; means, standard deviations and quantiles to nine digits, because
  sums depend on the order and size of the blocks that they are made of. Nothing is compared where parts of the dataset could
  not be read.
* `PlainColumns`: whether the plain columns of an `episodes` dataset agree with the packed bytes beside them. Other tools filter
  and weigh episodes by `eps_id, length, return, terminated, truncated` without unpacking them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.checking.validate.findings import Findings
from offline_cli.columns import EPISODE_COLUMNS, Columns
from offline_cli.datasets.episode_tables import EPISODE_SCHEMA
from offline_cli.datasets.manifest import Manifest
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData, BadEpisode
from offline_cli.formats.source import Origins
from offline_cli.parquet.shards import opened, read_row_groups
from offline_cli.storage.locations import Location

__all__ = ["ManifestFigures", "PlainColumns"]

DIGITS: Final = 1e-9
EXACT: Final = ("dtype", "shape", "pooled", "count", "nan", "infinite", "min", "max")
CLOSE: Final = ("mean", "std", "quantiles")
SPOILING: Final = (
    "unreadable-file",
    "unreadable-row",
    "unreadable-source",
    "length-mismatch",
    "unsafe-data",
    "unsupported-space",
    "conflicting-episode",
    "duplicate-episode",
    "gap-in-episode",
    "steps-after-end",
    "mixed-structures",
    "zero-length-episode",
    "unfinished-episode",
    "repeated-steps",
    "missing-shard",
    "shard-size",
    "shard-hash",
    "shard-columns",
)
"""What leaves something out of the figures, so that they differ for a reason that is reported already."""

NAMES: Final = tuple(name for name in EPISODE_COLUMNS if name != Columns.ITEM)


class ManifestFigures:
    """The figures of one dataset, taken while it is read."""

    def __init__(self, manifest: Manifest, folder: Location) -> None:
        self._manifest = manifest
        self._shards = {folder.join(shard.path).url: number for number, shard in enumerate(manifest.shards)}
        self._episodes = np.zeros(len(manifest.shards), np.int64)
        self._steps = np.zeros(len(manifest.shards), np.int64)
        self._flags = {"terminated": 0, "truncated": 0}
        self._statistics = StatisticsBuilder()
        self._has_places = True

    def see_fragments(self, batch: EpisodeBatch, places: Origins | None) -> None:
        """Count the entries of `batch`, as they are in their shards."""
        if places is None:
            self._has_places = False
            return
        shard = np.array([self._shards[url] for url in places.files])[places.file]
        begins = np.ones(len(batch), np.bool_) if batch.t_started is None else batch.t_started == 0
        self._episodes += np.bincount(shard[begins], minlength=len(self._episodes))
        np.add.at(self._steps, shard, batch.lengths)
        self._flags["terminated"] += int(np.count_nonzero(batch.terminated))
        self._flags["truncated"] += int(np.count_nonzero(batch.truncated))

    def see(self, batch: EpisodeBatch) -> None:
        """Measure whole episodes."""
        try:
            self._statistics.add(batch)
        except BadEpisode:  # reported as mixed structures
            self._has_places = False

    def tell(self, findings: Findings, source: str) -> None:
        """Report what differs, unless something was left out."""
        if not self._has_places or findings.has(source, *SPOILING):
            return
        wrong = list(self._wrong_counts())
        if wrong:
            findings.add(source, "count-mismatch", len(wrong), (f"{source}, {what}" for what in wrong))
        have = self._statistics.as_json()
        if not self._manifest.statistics["columns"]:  # left out, where rows were moved
            have["columns"] = {}
        columns = list(_wrong_statistics(have, self._manifest.statistics))
        if columns:
            findings.add(source, "statistics-mismatch", len(columns), (f"{source}, {what}" for what in columns))

    def _wrong_counts(self) -> Iterator[str]:
        rows = self._episodes if self._manifest.format == "episodes" else self._steps
        for name, found in (("episodes", self._episodes), ("steps", self._steps), ("rows", rows)):
            for shard, have in zip(self._manifest.shards, found.tolist(), strict=True):
                if (said := getattr(shard, name)) != have:
                    yield f"{shard.path}: {have:,} {name}, the manifest says {said:,}"
        for name, have in self._flags.items():
            if (said := getattr(self._manifest.counts, name)) != have:
                yield f"{have:,} {name} episodes, the manifest says {said:,}"


def _wrong_statistics(have: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    """The columns, and `return` and `length`, whose figures differ."""
    mine, theirs = ({**part["columns"], "return": part["return"], "length": part["length"]} for part in (have, said))
    for name in {**mine, **theirs}:
        if name not in mine or name not in theirs:
            yield f"{name}: {'not in the data' if name in theirs else 'not in the manifest'}"
        elif wrong := [key for key in (*EXACT, *CLOSE) if not _same(mine[name], theirs[name], key)]:
            key = wrong[0]
            yield f"{name}: {key} is {mine[name].get(key)}, the manifest says {theirs[name].get(key)}"


def _same(mine: Mapping[str, Any], theirs: Mapping[str, Any], key: str) -> bool:
    if key in EXACT or key not in mine or key not in theirs:
        return bool(mine.get(key) == theirs.get(key))
    left, right = _numbers(mine[key]), _numbers(theirs[key])
    if left.shape != right.shape:
        return False
    ends = np.abs(np.concatenate([_numbers(mine.get(end)).reshape(-1) for end in ("min", "max")]))
    scale = float(ends[np.isfinite(ends)].max(initial=0.0))
    return bool(np.allclose(left, right, rtol=DIGITS, atol=DIGITS * scale, equal_nan=True))


def _numbers(value: Any) -> NDArray[np.float64]:
    """A figure, a nested list of figures, or quantiles by percent, null as NaN and "inf" as infinity."""
    if isinstance(value, Mapping):
        value = [value[name] for name in sorted(value)]
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError):  # ragged, or text that is not a number: a manifest may hold anything here
        return np.full(1, np.nan)


class PlainColumns:
    """Compares the columns of shards, one shard in memory at a time."""

    def __init__(self, shards: Mapping[str, Location]) -> None:
        self._shards = shards
        self._url = ""
        self._table: Any = None  # of that shard; None: its columns cannot be read

    def see_fragments(self, batch: EpisodeBatch, places: Origins | None, findings: Findings, source: str) -> None:
        """Compare the rows that the episodes of `batch` were packed in."""
        for number in [] if places is None else np.unique(places.file).tolist():
            assert places is not None
            table = self._columns(places.files[number], findings, source)
            chosen = np.flatnonzero(places.file == number)
            if table is not None and len(chosen):
                rows = places.row[chosen]
                wrong = _differing(batch.select(chosen), table.take(rows))
                found = (f"{places.files[number]} row {rows[row]}: {name}" for row, name in wrong.items())
                if wrong:
                    ids = [batch.ids[int(chosen[row])] for row in wrong]
                    findings.add(source, "plain-columns-differ", len(wrong), found, episodes=ids)

    def _columns(self, url: str, findings: Findings, source: str) -> Any:
        if url != self._url:
            self._url, self._table = url, None
            try:
                with opened(self._shards[url]) as file:
                    have = [name for name in NAMES if name in file.schema_arrow.names]
                    tables = list(read_row_groups(file, self._shards[url], columns=have))
                    self._table = pa.concat_tables(tables).cast(pa.schema([EPISODE_SCHEMA.field(name) for name in have]))
            except (BadData, pa.ArrowException, UnicodeDecodeError) as error:
                findings.add(source, "shard-columns", 1, [url], example=str(error).splitlines()[0])
        return self._table


def _differing(batch: EpisodeBatch, table: Any) -> dict[int, str]:
    """By row: the first column that differs from the episode."""
    names: NDArray[Any] = np.array(batch.ids, object)
    want: dict[str, NDArray[Any]] = {
        Columns.EPS_ID: names,
        Columns.LENGTH: batch.lengths,
        Columns.RETURN: batch.returns,
        Columns.TERMINATED: batch.terminated,
        Columns.TRUNCATED: batch.truncated,
    }
    wrong: dict[int, str] = {}
    for name in table.column_names:
        have = table[name].to_numpy()
        same = np.isclose(have, want[name], DIGITS, DIGITS, equal_nan=True) if name == Columns.RETURN else have == want[name]
        for row in np.flatnonzero(~np.asarray(same, np.bool_)).tolist():
            wrong.setdefault(row, name)
    return wrong
