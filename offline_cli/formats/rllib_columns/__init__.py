"""RLlib's column recordings in Parquet, one row per step; `eps_id`, `obs`, `actions` and `rewards` are required.

Whatever RLlib's recorder and our own `columns` format write is read: packed cells, pickled objects, tensor types, null columns,
rows without timesteps.

* `tables`: what the columns mean, which episode and agent each row belongs to, the order of rows, and rows as arrays. Rows
  without a value, rows that cannot be read, and rows of other shapes than most go to the rejects;
* `source`: all of these as a `Source`.
"""

from __future__ import annotations

from offline_cli.formats.rllib_columns.source import ColumnsReading, RllibColumnsSource
from offline_cli.formats.rllib_columns.tables import NEEDED

__all__ = ["NEEDED", "ColumnsReading", "RllibColumnsSource"]
