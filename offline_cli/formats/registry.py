"""All readers by name: ours, those that other packages register, and those of a user's own Python file.

`--from auto` asks every reader how certain it is (`Reader.sniff`). No file, manifest or run folder selects a plug-in by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, UsageError
from offline_cli.formats.hdf5.d3rlpy import open_d3rlpy
from offline_cli.formats.hdf5.d4rl import open_d4rl
from offline_cli.formats.hdf5.robomimic import open_robomimic
from offline_cli.formats.imitation import open_imitation
from offline_cli.formats.lerobot.reader import open_lerobot
from offline_cli.formats.listing import KINDS, LOOKED_AT, NO_DATA, Listing
from offline_cli.formats.minari.reader import open_minari
from offline_cli.formats.npz.flat import open_npz
from offline_cli.formats.npz.ogbench import open_ogbench
from offline_cli.formats.reader import LIKELY, NO, SURE, OpenContext, Reader
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.rllib.input_reader import input_reader
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.source import Source
from offline_cli.formats.tables import TableSource
from offline_cli.plugins import READERS, Plugin, named_plugin, plugins
from offline_cli.storage.locations import Location

__all__ = ["AUTO", "OURS", "ReaderChoice", "no_reader", "reader_named"]

AUTO: Final = "auto"
TABLE: Final = "table"
Open = Callable[[Sequence[Location], OpenContext], Source]
TABLES: Final = dict.fromkeys(("columns", "parquet-table"), "parquet") | dict.fromkeys(("arrow", "hf-arrow"), "arrow")
TABLES.update({"csv": "csv", "json": "json", "json-array": "json"})
"""The kinds that can be read as tables, by what `TableSource` calls their files."""

RECIPES: Final = {"npy": "numpy-arrays", "rlds": "rlds-datasets"}
"""Where docs/formats.md has some lines of Python for them."""

_log = logging.getLogger(__name__)


def _open_sample_batch(files: Sequence[Location], context: OpenContext) -> Source:
    """Lines of a Parquet file would be noise, each with an error of its own."""
    if context.listing.starts_with_parquet:
        fix = "--from auto tells the format by the file's content"
        raise BadData("this is a Parquet file, not JSON lines", where=files[0].url, fix=fix)
    return SampleBatchSource(files, context.location)


def _open_table(files: Sequence[Location], context: OpenContext) -> Source:
    listing = context.listing
    if listing.kind not in TABLES:
        raise no_reader(listing)
    files, kind = listing.data, TABLES[listing.kind]
    if listing.kind == "hf-arrow":  # beside files that describe it
        files = [file for file in files if file.name.endswith(".arrow")]
    return TableSource(files, context.location, options=context.tables, storage_options=context.storage_options, kind=kind)


_READERS: Final[tuple[tuple[str, Open, str], ...]] = (
    (
        "episodes",
        lambda files, one: RllibEpisodesSource(files, one.location),
        "everything that RLlib packs, of several agents too",
    ),
    (
        "columns",
        lambda files, one: RllibColumnsSource(files, one.location),
        "steps, infos, extra columns of numbers; left out by name: others",
    ),
    (
        "sample-batch",
        _open_sample_batch,
        "steps, infos, extra columns of a value a step; left out by name: others, such as unroll_id",
    ),
    ("minari", open_minari, "everything: infos, seeds, environment, spaces too; frames stored as JPEG with what JPEG lost"),
    ("d4rl", open_d4rl, "arrays of a row a step, last observations of next_observations; left out by name: metadata"),
    (
        "robomimic",
        open_robomimic,
        "steps, last observations of next_obs, states, attributes, mask/; left out by name: other rows",
    ),
    ("d3rlpy", open_d3rlpy, "everything, which is steps and terminations"),
    (TABLE, _open_table, "columns of the mapping, others of numbers as extra outputs; left out by name: the rest"),
    ("npz", open_npz, "arrays of a number a row, last observations of next_observations; left out by name: the rest"),
    ("ogbench", open_ogbench, "arrays of a number a row, last observations; left out by name: the rest"),
    ("imitation", open_imitation, "steps, last observations; left out by name: infos, which are objects as text"),
    ("lerobot", open_lerobot, "state, actions, rewards, ends, tasks, other numbers; left out by name: videos, images, texts"),
)
MAPPED: Final = (TABLE, "npz", "lerobot")  # they take a mapping


def _sniff(name: str) -> Callable[[Listing], float]:
    """Sure of the files that a listing calls by the reader's name; tables, and archives that may be any, are only likely."""
    score, kinds = LIKELY if name in (TABLE, "npz") else SURE, TABLES if name == TABLE else (name,)
    return lambda listing: score if listing.kind in kinds else NO


OURS: Final = {name: Reader(name, KINDS[name], opened, _sniff(name), name in MAPPED, keeps) for name, opened, keeps in _READERS}
"""Those that come with us, by name."""


def reader_named(name: str) -> Reader:
    """The reader that `--from` names, but `auto`. Raises as `named_plugin` does."""
    return named_plugin(READERS, name, OURS, Reader, option="--from", made=input_reader, words=(AUTO,))


@dataclass(slots=True)
class ReaderChoice:
    """Readers for several sources, by their content; a plug-in is loaded once, and one that fails is noted once."""

    _others: list[tuple[Plugin, Reader]] | None = None  # None: not loaded yet

    def reader_for(self, listing: Listing) -> Reader:
        """The reader that is most certain of the files.

        Raises NoData where none is, BadData for files that no reader can read, UsageError where several packages' are equally
        certain.
        """
        errors: list[BadData | MissingPackage] = []  # of damaged files; a reader of another package may recognise them
        scores: list[tuple[float, Reader, Plugin | None]] = []
        try:
            scores += [(reader.sniff(listing), reader, None) for reader in OURS.values()]
        except (BadData, MissingPackage) as error:
            errors.append(error)
        if self._others is None:
            self._others = list(_loaded_readers())
        for plugin, reader in tuple(self._others):
            try:
                scores.append((float(reader.sniff(listing)), reader, plugin))
            except (BadData, MissingPackage) as error:
                errors.append(error)
            except Exception as error:  # noqa: BLE001  it is foreign code, which may raise anything
                _log.warning("note: reader %r of the package %s raised %r", plugin.name, plugin.package, error)
                self._others.remove((plugin, reader))
        best = max((score for score, _, _ in scores), default=NO)
        if best <= NO:
            raise errors[0] if errors else no_reader(listing)
        surest = [(reader, plugin) for score, reader, plugin in scores if score == best]
        rivals = {(id(reader), plugin.package): plugin for reader, plugin in surest if plugin is not None}  # without aliases
        if surest[0][1] is not None and len(rivals) > 1:
            raise _undecided([*rivals.values()], listing)
        return surest[0][0]


def _undecided(equals: Sequence[Plugin], listing: Listing) -> UsageError:
    names = " and ".join(f"{one.name!r} of the package {one.package}" for one in equals)
    options = list(dict.fromkeys(f"--from {one.name}" for one in equals))
    fix = f"say which: {' or '.join(options)}" if len(options) == len(equals) else "uninstall one of these packages"
    return UsageError(f"the readers {names} are equally sure of these files", where=listing.location, fix=fix)


def _loaded_readers() -> Iterator[tuple[Plugin, Reader]]:
    """Those of other packages; one that cannot be loaded was not named by the user, and is only logged."""
    for registered in plugins(READERS):
        try:
            yield registered, registered.load_as(Reader)
        except (BadConfig, MissingPackage) as error:
            _log.warning("note: %s", error.what)


def _nothing_in(files: Sequence[Location]) -> str:
    empty = [file.url for file in files[:LOOKED_AT] if not file.size()]
    if len(empty) == len(files):
        return f"all {len(files)} files are empty" if len(files) > 1 else "the file is empty"
    return f"no data in {len(files)} file{'s' * (len(files) > 1)}" + (f" ({empty[0]} is empty)" if empty else "")


def no_reader(listing: Listing) -> NoData:
    """The error for files that no reader knows."""
    what = _nothing_in(listing.files) if listing.kind == NO_DATA else f"found {KINDS[listing.kind]}"
    readers = [f"{reader.words} (--from {name})" for name, reader in OURS.items()]
    readers += [f"what {one.distribution} reads (--from {one.name})" for one in plugins(READERS)]
    recipe = RECIPES.get(listing.kind)
    fix = "record in one of these, or write a table: a row a step, as Parquet, CSV or JSON lines (docs/tables.md)"
    if recipe:
        fix = f"some lines of Python convert it: docs/formats.md#{recipe}; or write a table, a row a step (docs/tables.md)"
    return NoData(
        f"{what}; there are readers for {', '.join(readers)}, and for our own datasets",
        where=listing.location,
        fix=fix,
    )
