"""Tables of anybody's steps (Parquet, Arrow, CSV, JSON lines) as a source; every column used is explained by a mapping."""

from __future__ import annotations

from offline_cli.formats.tables.source import TableOptions, TableSource

__all__ = ["TableOptions", "TableSource"]
