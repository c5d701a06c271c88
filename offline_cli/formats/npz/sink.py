"""Episodes as a NumPy archive of flat arrays, in bounded memory: rows wait in temporary files until their number is known."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode
from offline_cli.formats.flat_steps import NEXT, REWARDS, FlatSteps, narrow
from offline_cli.formats.left_out import count_left_out
from offline_cli.formats.sink import ForeignSink, SinkContext, SinkKind, Written, file_check
from offline_cli.scopes import Scope
from offline_cli.storage.local_files import TempFile
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile

WRITTEN_AT: Final = (1980, 1, 1, 0, 0, 0)  # the same input gives the same bytes
PIECE: Final = 8 << 20


class NpzSink(ForeignSink):
    """A `Sink` of one archive, whole or not at all. Rewards are float32, as others write them, where that changes none."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "npz")
        self._steps = FlatSteps(context.tally)
        self._scope = Scope()  # owns the temporary files
        self._files: dict[str, TempFile] = {}
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}  # of a row
        self._are_narrow = True  # no reward changes as float32

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.close()

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`. Raises BadEpisode for arrays of another form than before."""
        count_left_out(batch, self.context.tally)
        arrays = self._steps.arrays(batch, batch.extra)
        forms = {name: (rows.dtype, rows.shape[1:]) for name, rows in arrays.items()}
        if not self._forms:
            self._forms = forms
            self._files = {name: self._scope.enter(TempFile(self.context.temp_dir, holding="arrays")) for name in forms}
        if self._forms != forms:
            odd = next(name for name in {**self._forms, **forms} if self._forms.get(name) != forms.get(name))
            what = f"{odd!r} is {forms.get(odd, 'not there')}, and {self._forms.get(odd, 'not there')} before"
            raise BadEpisode(what, where=f"episode {batch.ids[0]}", fix="convert them into two files")
        for name, rows in arrays.items():
            self._files[name].append(np.ascontiguousarray(rows))
        self._are_narrow &= narrow(batch.rewards).dtype == np.float32
        self.count(batch)

    def commit(self, *, assumptions: Mapping[str, int], episodes_lost: int | None) -> Written:
        """See `Sink`."""
        are_finals_known, folder = self._steps.are_finals_known(), self.target.parent() or self.target
        folder.make_folder()
        staged = StagedFile(self.target, folder=folder)
        try:
            with zipfile.ZipFile(staged, "w", allowZip64=True) as archive:
                for name in self._files:
                    if are_finals_known or name.partition("/")[0] != NEXT:
                        self._put(archive, name)
            staged.commit()
        except BaseException:
            staged.discard()
            raise
        return Written(self.episodes, self.steps, 1, staged.bytes)

    def _put(self, archive: zipfile.ZipFile, name: str) -> None:
        file, (dtype, row) = self._files[name], self._forms[name]
        written = np.dtype("<f4") if name == REWARDS and self._are_narrow else dtype
        header = {"descr": np.lib.format.dtype_to_descr(written), "fortran_order": False, "shape": (self.steps, *row)}
        with archive.open(zipfile.ZipInfo(f"{name}.npy", WRITTEN_AT), "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for offset in range(0, file.size, PIECE):
                piece = np.frombuffer(file.read(offset, min(PIECE, file.size - offset)), dtype)
                member.write(piece.astype(written, copy=False).tobytes())


NPZ_SINK: Final = SinkKind(
    "npz",
    "a NumPy archive of flat arrays, a row a step, as D4RL's",
    NpzSink,
    file_check(b"PK\x03\x04", "a NumPy archive"),
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, spaces, infos, custom data, clocks",
)
