"""An archive written in bounded memory: rows wait in temporary files, one for each array, until their number is known."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.sink import ForeignSink, Written, file_check
from offline_cli.storage.staging import StagedFile
from offline_cli.storage.temp_files import TempFile
from offline_cli.trees import Tree, flatten

__all__ = ["ArchiveSink", "check_npz", "named_leaves"]

REWARDS: Final = "rewards"
WRITTEN_AT: Final = (1980, 1, 1, 0, 0, 0)  # the same input gives the same bytes
PIECE: Final = 8 << 20
check_npz: Final = file_check(b"PK\x03\x04", "a NumPy archive")


@dataclass(slots=True)
class _Waiting:
    """The rows of one array."""

    file: TempFile
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    count: int = 0


class ArchiveSink(ForeignSink):
    """A `Sink` of one archive, whole or not at all. Rewards are float32, as others write them, where that changes none."""

    kept: ClassVar[tuple[str, ...]] = ()  # keys of the custom data that are written

    def __enter__(self) -> Self:
        self._arrays: dict[str, _Waiting] = {}
        self._are_narrow = True  # no reward changes as float32
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.drop(lambda name: True)

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        where, arrays = f"episode {batch.ids[0]}", self._counted(batch)
        if self._arrays and self._arrays.keys() != arrays.keys():
            odd = min(self._arrays.keys() ^ arrays.keys())
            raise BadEpisode(f"only some episodes have {odd!r}", where=where, fix="convert them into two files")
        for name, rows in arrays.items():
            if name not in self._arrays:
                file = TempFile(self.context.temp_dir, holding="arrays").__enter__()
                self._arrays[name] = _Waiting(file, rows.dtype, rows.shape[1:])
            known = self._arrays[name]
            if (rows.dtype, rows.shape[1:]) != (known.dtype, known.row):
                what = f"{name!r} is {rows.dtype} {list(rows.shape[1:])} here, and {known.dtype} {list(known.row)} before"
                raise BadEpisode(what, where=where, fix="convert them into two files")
            known.file.append(np.ascontiguousarray(rows))
            known.count += len(rows)
        self.count(batch)

    def rehearse(self, batch: EpisodeBatch) -> None:
        """See `Sink`."""
        self._counted(batch)

    def _counted(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        with np.errstate(over="ignore"):
            narrow = batch.rewards.astype(np.float32).astype(np.float64)
        self._are_narrow &= bool(np.array_equal(narrow, batch.rewards, equal_nan=True))
        count_left_out(batch, self.context.tally, kept=self.kept)
        return self.arrays_of(batch)

    def arrays_of(self, batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
        """The rows of a batch, by the name of their array."""
        raise NotImplementedError

    def finish(self) -> None:
        """Before the archive is written."""

    def drop(self, unwanted: Callable[[str], bool]) -> None:
        """Leave arrays out of what is written."""
        for name in [name for name in self._arrays if unwanted(name)]:
            self._arrays.pop(name).file.__exit__(None, None, None)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        self.finish()
        folder = self.target.parent() or self.target
        if folder is not self.target:
            folder.make_folder()
        staged = StagedFile(self.target, folder=folder)
        try:
            with zipfile.ZipFile(staged, "w", allowZip64=True) as archive:
                for name, waiting in self._arrays.items():
                    is_narrow = name == REWARDS and self._are_narrow
                    _put(archive, name, waiting, np.dtype("<f4") if is_narrow else waiting.dtype)
            staged.commit()
        except BaseException:
            staged.discard()
            raise
        return Written(self.episodes, self.steps, 1, staged.bytes)


def _put(archive: zipfile.ZipFile, name: str, waiting: _Waiting, written: np.dtype[Any]) -> None:
    header = io.BytesIO()
    shape = (waiting.count, *waiting.row)
    described = {"descr": np.lib.format.dtype_to_descr(written), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    with archive.open(zipfile.ZipInfo(f"{name}.npy", WRITTEN_AT), "w", force_zip64=True) as member:
        member.write(header.getvalue())
        for offset in range(0, waiting.file.size, PIECE):
            piece = waiting.file.read(offset, min(PIECE, waiting.file.size - offset))
            same = written == waiting.dtype
            member.write(piece if same else np.frombuffer(piece, waiting.dtype).astype(written).tobytes())


def named_leaves(name: str, tree: Tree) -> dict[str, NDArray[Any]]:
    """The leaves by the names of their arrays: `observations/camera`."""
    return {path.replace(".", "/"): leaf for path, leaf in flatten(tree, name)}
