"""Row groups that were encoded apart, at the same time, as one Parquet file: the bytes that one writer would have made of them.

Each part is a Parquet file of its own until then. Between its magic number and its footer are its row groups, whose bytes do
not depend on where they are: they are taken as they are. The footer says where they are: those numbers, and the ones that
count rows and row groups, are written anew (Thrift's compact protocol, parquet.thrift), and everything else is taken from the
parts.
"""

from __future__ import annotations

from typing import Any, Final

from offline_cli.parquet.thrift_footers import CHUNK_DATA, CHUNKS, GROUPS, MAGIC, ROWS, Path, integer, list_head, signed, walked

__all__ = ["RowGroupParts"]

GROUP_PLACE, ORDINAL = 5, 7  # of RowGroup
OF_DATA: Final = ((CHUNK_DATA, field) for field in (9, 10, 11, 14))
CHUNK_PLACES: Final = frozenset(((2,), (4,), (6,), *OF_DATA))  # of ColumnChunk: where it has what


class RowGroupParts:
    """The footer of the parts so far, in their order."""

    def __init__(self) -> None:
        self._first: tuple[bytes, bytes, bytes] | None = None  # around the rows and the row groups in the first footer
        self._rows = 0
        self._groups: list[bytes] = []

    def add(self, footer: bytes, at: int) -> None:
        """A part; its bytes after the magic number begin at `at` in the file. Raises OddStruct for a footer not of Arrow's."""
        walk = walked(footer, 0, len(footer), _is_place)
        rows, groups = walk.spans[ROWS], walk.spans[GROUPS]
        if self._first is None:
            self._first = footer[: rows[0]], footer[rows[1] : groups[0]], footer[groups[1] : walk.spans[()][1]]
        self._rows += signed(walk.numbers[ROWS])
        shift, places = at - len(MAGIC), iter(walk.free)
        place = next(places, None)
        for number in range(_count(walk.spans)):
            begin, end = walk.spans[(*GROUPS, number)]
            parts = list[bytes]()
            while place is not None and place.path[:2] == (*GROUPS, number):
                first, last = walk.spans[place.path]
                told = signed(walk.numbers[place.path])
                is_ordinal = place.path[2:] == (ORDINAL,)
                new = len(self._groups) if is_ordinal else told + shift if told else 0  # 0: it has none
                parts += footer[begin:first], integer(new)
                begin, place = last, next(places, None)
            self._groups.append(b"".join((*parts, footer[begin:end])))

    def footer(self) -> bytes:
        """What comes after the row groups in the file."""
        assert self._first is not None, "a file has a row group"
        before, between, after = self._first
        footer = b"".join((before, integer(self._rows), between, list_head(len(self._groups)), *self._groups, after))
        return footer + len(footer).to_bytes(4, "little") + MAGIC


def _is_place(path: Path) -> bool:
    return path[:1] == GROUPS and (
        path[2:] in ((GROUP_PLACE,), (ORDINAL,)) or (path[2:3] == (CHUNKS,) and path[4:] in CHUNK_PLACES)
    )


def _count(spans: Any) -> int:
    count = 0
    while (*GROUPS, count) in spans:
        count += 1
    return count
