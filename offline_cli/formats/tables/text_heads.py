"""Whether the first bytes of a file are those of a CSV table; refuses prose: two lines of as many cells, or the name."""

from __future__ import annotations

import csv
import io

__all__ = ["is_named_csv", "looks_like_csv"]

NAMED = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst", ".csv.zstd", ".tsv.zstd")
PROSE = (".md", ".rst", ".html", ".htm", ".xml", ".py", ".sh", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".log", ".tex", ".svg")
DELIMITERS = (",", "\t", ";", "|")
MAX_NAME = 64  # letters of the name of a column


def is_named_csv(name: str) -> bool:
    """Whether a file is called a CSV table, packed or not."""
    return name.lower().endswith(NAMED)


def looks_like_csv(head: bytes, name: str) -> bool:
    """`head`: the first bytes; `name`: of the file, which helps where a table has one column, or prose has commas."""
    if not head.strip() or name.lower().endswith(PROSE):
        return False
    text = _text(head)
    return is_named_csv(name) or any(_is_table(text, delimiter) for delimiter in DELIMITERS)


def _text(head: bytes) -> str:
    """Empty where the bytes are no text."""
    if b"\0" in head:
        return ""
    try:
        return head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cut_in_half = error.start > len(head) - 4
        return head[: error.start].decode("utf-8-sig") if cut_in_half else ""


def _is_table(text: str, delimiter: str) -> bool:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header, first = next(rows, []), next(rows, [])
    except csv.Error:
        return False
    names = [name.strip() for name in header]
    return (
        len(names) > 1
        and len(first) == len(names)
        and len(set(names)) == len(names)
        and all(len(name) <= MAX_NAME for name in names)
    )
