"""Read tables of steps (Parquet, Arrow, CSV, JSON lines) in any layout, described by a mapping of their columns."""

from __future__ import annotations

from offline_cli.formats.tables.source import TableOptions, TableSource

__all__ = ["TableOptions", "TableSource"]
