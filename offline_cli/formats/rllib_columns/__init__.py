"""RLlib's column recordings, one row per step, in Parquet; refuses files without `eps_id`, `obs`, `actions` and `rewards`.

Whatever RLlib's recorder and our own `columns` format write is read: packed cells, pickled objects, tensor types, null columns,
rows without timesteps.

* `names`: which columns mean what;
* `tables`: the columns of a table made ready; rows without a value go to the rejects;
* `keys`: which episode and agent each row belongs to, and the order of rows;
* `parts`: rows as arrays; those that cannot be read, or have other shapes than most, go to the rejects;
* `source`: all of these as a `Source`.
"""

from __future__ import annotations

from offline_cli.formats.rllib_columns.source import RllibColumnsSource
from offline_cli.formats.rllib_columns.tables import NEEDED

__all__ = ["NEEDED", "RllibColumnsSource"]
