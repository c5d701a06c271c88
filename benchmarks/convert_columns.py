"""How fast do RLlib's packed columns become packed episodes? Rival: the script of RLlib's page, on a slice of the same rows.

Ours reads 20 copies of the recording, 716,340 rows, in four files; the rival reads one of the recording's own size, as a file:
its rate does not depend on the number of rows, and it would take minutes for all of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Floor, Missing, Row, against, missing, recording, timed
from offline_cli.columns import Columns
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.codec import encode_batch
from offline_cli.tally import Tally

COPIES, FILES, ROW_GROUP = 20, 4, 100_000
FLOOR = Floor(100, words=">= 100x the documented script")


def rows(small: bool = False) -> list[Row]:
    try:
        source = recording("rllib_columns_cartpole_expert")
    except Missing as error:
        return [missing("packed columns to packed episodes", error, unit="rows/s", floor=FLOOR)]
    with tempfile.TemporaryDirectory() as folder:
        files = copied(source, Path(folder), copies=1 if small else COPIES, files=1 if small else FILES)
        (part,) = copied(source, Path(folder, "slice"), copies=1, files=1)
        count = sum(pq.read_metadata(file).num_rows for file in files)
        return [
            against(
                "rllib_packed_columns.py",
                f"packed columns to packed episodes, {count:,} rows in {len(files)} files",
                timed(lambda: converted(files), count),
                unit="rows/s",
                rival_name=f"RLlib's documented script, on {pq.read_metadata(part).num_rows:,} of the rows",
                floor=FLOOR,
                pairs=1 if small else 3,
                files=[part],
            )
        ]


def copied(source: Path, folder: Path, *, copies: int, files: int) -> list[str]:
    """`copies` of all rows under `source`, each with new ids, in `files` Parquet files of a few row groups."""
    folder.mkdir(exist_ok=True)
    table = pa.concat_tables(map(pq.read_table, sorted(source.rglob("*.parquet"))), promote_options="default")
    place = table.schema.get_field_index(Columns.EPS_ID)
    made = []
    for file in range(files):
        ids = [pc.binary_join_element_wise(f"{file}.{copy}", table[Columns.EPS_ID], "-") for copy in range(copies // files)]
        made.append(str(folder / f"packed-{file}.parquet"))
        parts = [table.set_column(place, Columns.EPS_ID, renamed) for renamed in ids]
        pq.write_table(pa.concat_tables(parts), made[-1], row_group_size=ROW_GROUP)
    return made


def converted(files: list[str]) -> int:
    return sum(len(encode_batch(batch, where="benchmark", tally=Tally())) for batch in read_episodes(files))
