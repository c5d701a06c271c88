"""Read and write NumPy archives of flat arrays, one row per step, as in D4RL.

Arrays with another number of rows are dropped and reported by name.

The sink uses bounded memory: rows go to temporary files until their number is known.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np

from offline_cli.columns import Columns
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadEpisode, BadMapping
from offline_cli.formats.npz.archive import ALIASES, TREES, NpzArchive, column_names
from offline_cli.formats.reader import OpenContext
from offline_cli.formats.sink import ForeignSink, SinkContext, SinkKind, Written, count_left_out, file_check
from offline_cli.formats.source import LEFT_OUT, Fragments, Source
from offline_cli.formats.tables import TableSource
from offline_cli.formats.whole_episodes import NEXT, REWARDS, FlatSteps, narrow
from offline_cli.scopes import Scope
from offline_cli.storage.local_files import TempFile
from offline_cli.storage.locations import Location
from offline_cli.storage.staging import StagedFile
from offline_cli.tally import Rejects, Tally

HOW: Final = (
    "give --mapping FILE, which maps the arrays to columns, or name the arrays observations, actions,"
    " rewards, terminals and timeouts"
)


def open_npz(files: Sequence[Location], context: OpenContext) -> Source:
    """Open archives as a table. Raises BadMapping if no mapping is given and the array names are unknown; BadData."""
    tables, left_out = context.tables, dict[str, str]()
    for file in files:
        with Scope() as scope:
            archive = NpzArchive(file, scope, memory_limit=tables.memory_limit)
            names, rows = column_names(archive)
        left_out |= {name: one.why_no_column(rows) for name, one in archive.arrays.items() if name not in names}
        if tables.mapping is None:
            columns = _columns_of(names)
            if not {Columns.OBS, Columns.ACTIONS} <= {name.partition(".")[0] for name in columns}:
                what = f"no array is named as observations or actions; the arrays are {', '.join(names)[:500]}{_and(left_out)}"
                raise BadMapping(what, where=file.url, fix=HOW)
            left_out |= dict.fromkeys(context.drop.intersection(columns), LEFT_OUT)
            columns = {ours: theirs for ours, theirs in columns.items() if ours not in context.drop}
            tables = replace(tables, mapping={"description": "Arrays by the names that this field uses.", "columns": columns})
    try:
        source = NpzSource(files, context.location, options=tables, storage_options=context.storage_options, kind="npz")
    except BadMapping as error:
        raise BadMapping(f"{error.what}{_and(left_out)}", where=error.where, fix=error.fix) from error
    source.left_out = left_out
    return source


def _and(left_out: Mapping[str, str]) -> str:
    """The end of a message: arrays that are not columns, and why."""
    return f"; not columns: {'; '.join(f'{name} ({why})' for name, why in left_out.items())}"[:2000] if left_out else ""


def _columns_of(names: Collection[str]) -> dict[str, str]:
    """Recognized arrays: our column name to theirs, as in a mapping."""
    columns: dict[str, str] = {}
    for ours, aliases in ALIASES.items():
        for theirs in aliases:
            below = [name for name in names if name.startswith(f"{theirs}/")] if ours in TREES else []
            parts = {f"{ours}.{name[len(theirs) + 1 :].replace('/', '.')}": name for name in below}
            if theirs in names or parts:
                columns |= {ours: theirs} if theirs in names else parts
                break
    return columns


@dataclass(slots=True)
class NpzSource(TableSource):
    """Archives read as one table, in the order given."""

    format: ClassVar = "npz"
    left_out: Mapping[str, str] | None = None  # arrays that are not columns, and why

    def fragments(self, tally: Tally, rejects: Rejects) -> Iterator[Fragments]:
        """See `Source`; also counts the dropped arrays."""
        for name, why in (self.left_out or {}).items():
            tally.drop_column(name, why)
        yield from TableSource.fragments(self, tally, rejects)


# ---- writing ----


WRITTEN_AT: Final = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same input gives the same bytes
PIECE: Final = 8 << 20


class NpzSink(ForeignSink):
    """A `Sink` that writes one archive, atomically. Rewards are float32, as is usual, if that is lossless for all."""

    def __init__(self, target: Location, context: SinkContext) -> None:
        super().__init__(target, context, "npz")
        self._steps = FlatSteps(context.tally)
        self._scope = Scope()  # owns the temporary files
        self._files: dict[str, TempFile] = {}
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}  # of a row
        self._are_narrow = True  # all rewards are exact as float32

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scope.close()

    def write(self, batch: EpisodeBatch) -> None:
        """See `Sink`. Raises BadEpisode if an array's dtype or shape differs from earlier episodes."""
        count_left_out(batch, self.context.tally)
        arrays = self._steps.arrays(batch, batch.extra)
        forms = {name: (rows.dtype, rows.shape[1:]) for name, rows in arrays.items()}
        if not self._forms:
            self._forms = forms
            self._files = {name: self._scope.enter(TempFile(self.context.temp_dir, holding="arrays")) for name in forms}
        if self._forms != forms:
            odd = next(name for name in {**self._forms, **forms} if self._forms.get(name) != forms.get(name))
            what = f"{odd!r} is {forms.get(odd, 'missing')}, but {self._forms.get(odd, 'missing')} in earlier episodes"
            raise BadEpisode(what, where=f"episode {batch.ids[0]}", fix="convert the two kinds of episodes into separate files")
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
    "a NumPy archive of flat arrays, one row per step, as in D4RL",
    NpzSink,
    file_check(b"PK\x03\x04", "a NumPy archive"),
    {"overwrite"},
    "steps, last observations, extra outputs; not ids, spaces, infos, custom data, clocks",
)
