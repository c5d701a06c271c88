"""Whether the plain columns of an `episodes` dataset say what the packed bytes beside them say; refuses nothing.

Other tools filter and weigh episodes by `eps_id, length, return, terminated, truncated` without unpacking them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import EPISODE_COLUMNS, Columns
from offline_cli.datasets.validate.findings import Findings
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadData
from offline_cli.formats.source import Origins
from offline_cli.storage.episode_tables import EPISODE_SCHEMA
from offline_cli.storage.locations import Location
from offline_cli.storage.shards import opened, read_row_groups

__all__ = ["PlainColumns"]

NAMES: Final = tuple(name for name in EPISODE_COLUMNS if name != Columns.ITEM)
DIGITS: Final = 1e-9


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
                    findings.add(source, "plain-columns-differ", len(wrong), found)

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
    """By row: the first column that says something else than the episode."""
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
