"""An archive written in bounded memory: rows wait in temporary files, one for each array, until their number is known."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.errors import BadEpisode
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.storage.temp_files import TempFile

__all__ = ["ArrayFiles"]

ENDING: Final = ".npy"
WRITTEN_AT: Final = (1980, 1, 1, 0, 0, 0)  # the same input gives the same bytes
PIECE: Final = 8 << 20


class ArrayFiles:
    """Arrays by name, whose rows are appended; a context manager. Raises StorageError, BadEpisode for rows of another form."""

    def __init__(self, temp_dir: str | None) -> None:
        self._temp_dir = temp_dir
        self._files: dict[str, tuple[TempFile, np.dtype[Any], tuple[int, ...]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _, _ in self._files.values():
            file.__exit__(kind, error, trace)
        self._files.clear()

    def append(self, arrays: Mapping[str, NDArray[Any]], *, where: str) -> None:
        """Add rows to each array; all of them have to be there each time."""
        if self._files and self._files.keys() != arrays.keys():
            odd = min(self._files.keys() ^ arrays.keys())
            raise BadEpisode(f"only some episodes have {odd!r}", where=where, fix="convert them into two files")
        for name, rows in arrays.items():
            if name not in self._files:
                file = TempFile(self._temp_dir, holding="arrays")
                self._files[name] = (file.__enter__(), rows.dtype, rows.shape[1:])
            file, dtype, row = self._files[name]
            if (rows.dtype, rows.shape[1:]) != (dtype, row):
                what = f"{name!r} is {rows.dtype} {list(rows.shape[1:])} here, and {dtype} {list(row)} before"
                raise BadEpisode(what, where=where, fix="convert them into two files")
            file.append(np.ascontiguousarray(rows))

    def drop(self, name: str) -> None:
        """Leave an array out of what is written."""
        if name in self._files:
            self._files.pop(name)[0].__exit__(None, None, None)

    def write(self, target: Location, rows: int, *, narrowed: frozenset[str] = frozenset()) -> int:
        """The archive at `target`, whole or not at all; its bytes. `narrowed`: float64 arrays that are written as float32."""
        folder = target.parent() or target
        if folder is not target:
            folder.make_folder()
        staged = StagedFile(target, folder=folder)
        try:
            with zipfile.ZipFile(staged, "w", allowZip64=True) as archive:
                for name, (file, dtype, row) in self._files.items():
                    self._member(archive, name, file, (dtype, (rows, *row)), np.dtype("<f4") if name in narrowed else dtype)
            staged.commit()
        except BaseException:
            staged.discard()
            raise
        return staged.bytes

    @staticmethod
    def _member(
        archive: zipfile.ZipFile, name: str, file: TempFile, form: tuple[np.dtype[Any], tuple[int, ...]], written: np.dtype[Any]
    ) -> None:
        dtype, shape = form
        header = io.BytesIO()
        described = {"descr": np.lib.format.dtype_to_descr(written), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        with archive.open(zipfile.ZipInfo(f"{name}{ENDING}", WRITTEN_AT), "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for offset in range(0, file.size, PIECE):
                piece = file.read(offset, min(PIECE, file.size - offset))
                member.write(piece if written == dtype else np.frombuffer(piece, dtype).astype(written).tobytes())
