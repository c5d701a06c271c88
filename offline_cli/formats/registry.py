"""All readers by name: ours, those of plug-ins, and those in a user's Python file.

`--from auto` asks every reader for its certainty (`Reader.sniff`). No file, manifest or run folder selects a plug-in by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from offline_cli.errors import BadData, MissingPackage, NoData
from offline_cli.formats.hdf5.d3rlpy import open_d3rlpy
from offline_cli.formats.hdf5.d4rl import open_d4rl
from offline_cli.formats.hdf5.robomimic import open_robomimic
from offline_cli.formats.imitation import open_imitation
from offline_cli.formats.lerobot.reader import open_lerobot
from offline_cli.formats.listing import KINDS, NO_DATA, Listing
from offline_cli.formats.minari.reader import open_minari
from offline_cli.formats.npz.flat import open_npz
from offline_cli.formats.npz.ogbench import open_ogbench
from offline_cli.formats.reader import LIKELY, NO, SURE, OpenContext, Reader
from offline_cli.formats.rllib.columns import RllibColumnsSource
from offline_cli.formats.rllib.episodes import RllibEpisodesSource
from offline_cli.formats.rllib.input_reader import input_reader
from offline_cli.formats.rllib.sample_batch import SampleBatchSource
from offline_cli.formats.source import FileSource, Source
from offline_cli.formats.tables import TableSource
from offline_cli.plugins import READERS, named_plugin, plugins
from offline_cli.storage.locations import Location

AUTO: Final = "auto"
TABLE: Final = "table"
Open = Callable[[Sequence[Location], OpenContext], Source]
TABLES: Final = {
    "columns": "parquet",
    "parquet-table": "parquet",
    "arrow": "arrow",
    "hf-arrow": "arrow",
    "csv": "csv",
    "json": "json",
    "json-array": "json",
}
"""Kinds that can be read as tables, with `TableSource`'s name for them."""

_log = logging.getLogger(__name__)


def _of_files(source: type[FileSource]) -> Open:
    return lambda files, context: source(files, context.location)  # type: ignore[return-value]  # each class has `fragments`


def _open_table(files: Sequence[Location], context: OpenContext) -> Source:
    kind, data = context.listing.kind, context.listing.data
    if kind not in TABLES:
        raise no_reader(context.listing)
    if kind == "hf-arrow":  # beside files that describe it
        data = [file for file in data if file.name.endswith(".arrow")]
    storage = context.storage_options
    return TableSource(data, context.location, options=context.tables, storage_options=storage, kind=TABLES[kind])


def _reader(name: str, opened: Open, keeps: str) -> Reader:
    """A reader that is sure of files whose listing has its kind; only likely for tables and generic archives."""
    score, kinds = LIKELY if name in (TABLE, "npz") else SURE, TABLES if name == TABLE else (name,)
    return Reader(name, KINDS[name], opened, lambda listing: score if listing.kind in kinds else NO, name in MAPPED, keeps)


MAPPED: Final = (TABLE, "npz", "lerobot")  # readers that accept a mapping
OURS: Final = {
    name: _reader(name, opened, keeps)
    for name, opened, keeps in (
        ("episodes", _of_files(RllibEpisodesSource), "everything, of several agents too"),
        ("columns", _of_files(RllibColumnsSource), "steps, infos, extra columns of numbers"),
        ("sample-batch", _of_files(SampleBatchSource), "steps, infos, extra columns of a value a step, such as action_logp"),
        ("minari", open_minari, "everything: infos, seeds, environment, spaces; frames stored as JPEG with what JPEG lost"),
        ("d4rl", open_d4rl, "arrays of a row a step, last observations of next_observations; not metadata"),
        ("robomimic", open_robomimic, "steps, last observations of next_obs, states, attributes, mask/"),
        ("d3rlpy", open_d3rlpy, "everything, which is steps and terminations"),
        (TABLE, _open_table, "columns of the mapping, others of numbers as extra outputs"),
        ("npz", open_npz, "arrays of a number a row, last observations of next_observations"),
        ("ogbench", open_ogbench, "arrays of a number a row, last observations"),
        ("imitation", open_imitation, "steps, last observations; not infos, which are objects as text"),
        ("lerobot", open_lerobot, "state, actions, rewards, ends, tasks, other numbers; not videos, images, texts"),
    )
}
"""Our readers, by name."""


def reader_named(name: str) -> Reader:
    """The reader named by `--from`, except `auto`. Raises as `named_plugin` does."""
    return named_plugin(READERS, name, OURS, Reader, option="--from", made=input_reader, words=(AUTO,))


def reader_for(listing: Listing) -> Reader:
    """The reader with the highest certainty; ours among equals. Raises NoData if there is none, BadData for damaged files."""
    damage: BadData | MissingPackage | None = None  # a plug-in may recognise a file that seems damaged to us
    scores: list[tuple[float, Reader]] = []
    try:
        scores += [(reader.sniff(listing), reader) for reader in OURS.values()]
    except (BadData, MissingPackage) as error:
        damage = error
    for plugin in plugins(READERS):
        try:
            reader = plugin.load_as(Reader)
            scores.append((float(reader.sniff(listing)), reader))
        except Exception as error:  # noqa: BLE001  a plug-in may raise anything; other readers may know the file
            _log.warning(
                "note: reader %r of the package %s: %s", plugin.name, plugin.package, getattr(error, "what", repr(error))
            )
    best, reader = max(scores, key=lambda one: one[0], default=(NO, OURS[TABLE]))
    if best <= NO:
        raise damage or no_reader(listing)
    return reader


def no_reader(listing: Listing) -> NoData:
    """The error for files that no reader recognises."""
    what = f"no data in {len(listing.files)} files" if listing.kind == NO_DATA else f"found {KINDS[listing.kind]}"
    readers = [f"{reader.words} (--from {name})" for name, reader in OURS.items()]
    readers += [f"{one.distribution} (--from {one.name})" for one in plugins(READERS)]
    fix = 'convert it in Python (see "Read and write other programs\' data"), or write a table with one row per step'
    what = f"{what}; there are readers for {', '.join(readers)}, and for our own datasets"
    return NoData(what, where=listing.location, fix=fix)
