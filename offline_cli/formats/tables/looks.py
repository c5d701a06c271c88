"""What the first rows of a table show of each column, for a mapping that is proposed."""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.tables.arrow_types import is_bytes
from offline_cli.formats.tables.columns import Facts, texts_of
from offline_cli.formats.tables.files import TableFiles
from offline_cli.formats.tables.images import GRAY, RGB, header_of, why_no_image
from offline_cli.formats.tables.layout import Leaf, plan_of, value_sql

__all__ = ["Look", "looked_at"]

YES, ANSWERS = frozenset(("yes", "y")), frozenset(("yes", "no", "y", "n"))
MOST_ROWS: Final = 1_000_000  # whose texts are named
MOST_IMAGES: Final = 16  # cells of bytes that are looked at


@dataclass(slots=True)
class Look:
    """What the first rows show of one column."""

    kind: str  # number, flag, time, text, list, image, empty, other; "": no row
    codes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))  # (N,) comparable values, NaN for none
    is_whole: bool = False  # whole numbers, or times
    gaps: int = 0  # cells without a value
    depth: int = 0  # of lists
    texts: Sequence[str] | None = None  # all that are different; None: too many, or no text
    image: str = ""  # what its images are decoded to
    unfit: str = ""  # why its values cannot be read

    @property
    def different(self) -> int:
        """How many values."""
        return len(np.unique(self.codes))

    @property
    def in_runs(self) -> bool:
        """Whether the rows of each value stand together, two of them on average."""
        runs = 1 + int((self.codes[1:] != self.codes[:-1]).sum())
        return 2 <= runs <= len(self.codes) / 2 and runs == self.different


def looked_at(files: TableFiles, name: str, facts: Facts, decimal: str) -> Look:
    """What the rows of `files` show of one column."""
    if is_bytes(files.kind_of(name)):
        return _images(files, name)
    if not facts.kind or facts.rows == facts.nulls or facts.odd:
        return Look("other" if facts.odd else "empty" if facts.rows else "")
    if facts.kind == "list":
        return Look("list", depth=facts.depth, gaps=facts.nulls)
    column, plan = files.column(name), plan_of(name, facts)
    if plan is None or len(facts.kinds) > 1:
        cells = [
            text
            for batch in files.query(f"SELECT CAST({column} AS VARCHAR) AS c FROM {files.relation([name])}")
            for text in batch.column(0).to_pylist()
        ]
        first, files.first = files.first, None
        texts = texts_of(files, name, MOST_ROWS)
        files.first = first
        if texts and {text.strip().lower() for text in texts} <= ANSWERS:
            said = [None if text is None else float(text.strip().lower() in YES) for text in cells]
            return Look("flag", np.array(said, np.float64), True, facts.nulls, texts=texts)
        codes = np.unique([text or "" for text in cells], return_inverse=True)[1]
        return Look("text", codes.astype(np.float64), gaps=facts.nulls, texts=texts)
    sql, values = value_sql(files, Leaf(name, Columns.OBS, (), (plan,), False, plan.dtype), plan, decimal)
    query = f"SELECT CAST({sql} AS DOUBLE) AS v FROM {files.relation([name])}"
    found = [batch.column(0).to_numpy(zero_copy_only=False) for batch in files.query(query, values)]
    codes = np.concatenate(found).astype(np.float64)
    known = codes[~np.isnan(codes)]
    if plan.dtype.kind == "b" or np.isin(known, (0, 1)).all():
        return Look("flag", codes, True, facts.nulls)
    is_time = facts.kind == "time"
    return Look("time" if is_time else "number", codes, is_time or bool((known == np.floor(known)).all()), facts.nulls)


def _images(files: TableFiles, name: str) -> Look:
    """Images, where the first bytes of all cells say so; gray where none has colours."""
    column = files.column(name)
    query = f"SELECT {column} FROM {files.relation([name])} WHERE {column} IS NOT NULL LIMIT {MOST_IMAGES}"
    cells = [cell for batch in files.query(query) for cell in batch.column(0).to_pylist()]
    headers = [found for cell in cells if (found := header_of(cell)) is not None]
    if not headers or len(headers) < len(cells):
        return Look("other" if cells else "empty")
    kind = GRAY if all(one.is_gray for one in headers) else RGB
    shape = headers[0].height, headers[0].width
    unfit = next((why for cell in cells if (why := why_no_image(cell, kind, shape))), "")
    return Look("other", unfit=unfit) if unfit else Look("image", image=kind)
