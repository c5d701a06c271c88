"""All readers by name: ours, those that other packages register, and those of a user's own Python file.

`--from auto` asks every reader how certain it is (`Reader.sniff`). No file, manifest or run folder selects a plug-in by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from offline_cli.errors import BadConfig, BadData, MissingPackage, NoData, UsageError
from offline_cli.formats.hdf5.d3rlpy import open_d3rlpy
from offline_cli.formats.hdf5.d4rl import open_d4rl
from offline_cli.formats.hdf5.robomimic import open_robomimic
from offline_cli.formats.imitation import open_imitation
from offline_cli.formats.lerobot import open_lerobot
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
TABLES: Final = {"columns": "parquet", "parquet-table": "parquet", "arrow": "arrow", "hf-arrow": "arrow"} | {
    **{"csv": "csv", "json": "json", "json-array": "json"}
}
"""The kinds that can be read as tables, by what `TableSource` calls their files."""

RECIPES: Final = {"npy": "numpy-arrays", "rlds": "rlds-datasets"}
"""Where docs/formats.md has some lines of Python for them."""

_log = logging.getLogger(__name__)


def _open_episodes(files: Sequence[Location], context: OpenContext) -> Source:
    return RllibEpisodesSource(files, context.location)


def _open_columns(files: Sequence[Location], context: OpenContext) -> Source:
    return RllibColumnsSource(files, context.location)


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


def _reader(name: str, opened: Open, keeps: str, *, takes_mapping: bool = False) -> Reader:
    """A reader of ours, which is sure of the files that a listing calls by its name, or of tables thinks them likely."""
    score, kinds = (LIKELY, TABLES) if name == TABLE else (LIKELY if takes_mapping and name == "npz" else SURE, {name})
    return Reader(name, KINDS[name], opened, lambda one: score if one.kind in kinds else NO, takes_mapping, keeps)


OURS: Final = {
    reader.name: reader
    for reader in (
        _reader("episodes", _open_episodes, "everything that RLlib packs, of several agents too"),
        _reader("columns", _open_columns, "steps, infos, extra columns of numbers; left out by name: others"),
        _reader(
            "sample-batch",
            _open_sample_batch,
            "steps, infos, extra columns of a value a step; left out by name: others, such as unroll_id",
        ),
        _reader(
            "minari",
            open_minari,
            "everything: infos, seeds, environment, spaces too; frames stored as JPEG with what JPEG lost",
        ),
        _reader(
            "d4rl",
            open_d4rl,
            "arrays of a row a step, last observations of next_observations; left out by name: metadata",
        ),
        _reader(
            "robomimic",
            open_robomimic,
            "steps, last observations of next_obs, states, attributes, mask/; left out by name: other rows",
        ),
        _reader("d3rlpy", open_d3rlpy, "everything, which is steps and terminations"),
        _reader(
            TABLE,
            _open_table,
            "columns of the mapping, others of numbers as extra outputs; left out by name: the rest",
            takes_mapping=True,
        ),
        _reader(
            "npz",
            open_npz,
            "arrays of a number a row, last observations of next_observations; left out by name: the rest",
            takes_mapping=True,
        ),
        _reader("ogbench", open_ogbench, "arrays of a number a row, last observations; left out by name: the rest"),
        _reader(
            "imitation",
            open_imitation,
            "steps, last observations; left out by name: infos, which are objects as text",
        ),
        _reader(
            "lerobot",
            open_lerobot,
            "state, actions, rewards, ends, tasks, other numbers; left out by name: videos, images, texts",
            takes_mapping=True,
        ),
    )
}
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
        errors: list[BadData | MissingPackage] = []
        best, score = _surest_of_ours(listing, errors)
        equals: list[Plugin] = []  # that are as certain as `best`, which is the first one's
        if self._others is None:
            self._others = list(_loaded_readers())
        for asked in tuple(self._others):
            try:
                sure = float(asked[1].sniff(listing))
            except (BadData, MissingPackage) as error:  # of damaged files, or of an error in our own check of them
                errors.append(error)
                continue
            except Exception as error:  # noqa: BLE001  it is foreign code, which may raise anything
                _log.warning("note: reader %r of the package %s raised %r", asked[0].name, asked[0].package, error)
                self._others.remove(asked)
                continue
            if sure > score:
                best, score, equals = asked[1], sure, [asked[0]]
            elif sure == score and equals and not (asked[1] is best and asked[0].package == equals[0].package):  # no alias
                equals.append(asked[0])
        if best is None:
            raise errors[0] if errors else no_reader(listing)
        if len(equals) > 1:
            raise _undecided(equals, listing)
        return best


def _undecided(equals: Sequence[Plugin], listing: Listing) -> UsageError:
    names = " and ".join(f"{one.name!r} of the package {one.package}" for one in equals)
    options = list(dict.fromkeys(f"--from {one.name}" for one in equals))
    fix = f"say which: {' or '.join(options)}" if len(options) == len(equals) else "uninstall one of these packages"
    return UsageError(f"the readers {names} are equally sure of these files", where=listing.location, fix=fix)


def _surest_of_ours(listing: Listing, errors: list[BadData | MissingPackage]) -> tuple[Reader | None, float]:
    try:
        score, best = max(((reader.sniff(listing), reader) for reader in OURS.values()), key=itemgetter(0))
    except (BadData, MissingPackage) as error:  # a reader of another package may recognise them
        errors.append(error)
        return None, NO
    return (best, score) if score > NO else (None, NO)


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
