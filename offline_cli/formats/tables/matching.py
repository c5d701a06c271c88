"""A mapping checked against the columns of the files, and the one that is used, or proposed, where none is given.

* `match`: decided before any data is read; raises with every column that is missing, and near names. A column exists where a
  file has it by that name, or has structs of which it is a part or the whole (`state.x` of the column `state`; `state` of
  `state.x` and `state.y`).
* `default_mapping`: the preset `rllib`, or an error with a draft for people to correct (`proposals.py`).
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gymnasium import spaces

from offline_cli.columns import STEP_COLUMNS, Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.step_rows import END_FLAGS
from offline_cli.formats.tables.column_looks import Seen
from offline_cli.formats.tables.csv_files import NO_LETTER, SAY_ENCODING
from offline_cli.formats.tables.json_files import wholes
from offline_cli.formats.tables.mapping import (
    AS_USUAL,
    DEFAULT,
    EXTRA,
    FILLED_ROLES,
    CsvForm,
    Part,
    TableMapping,
    mapping_of,
    nearest,
    preset_names,
    preset_text,
)
from offline_cli.formats.tables.proposals import MAX_GUESSED, starting_mapping
from offline_cli.meanings import Element, Meanings
from offline_cli.spaces import Space

__all__ = ["Matched", "category_space", "default_mapping", "match", "meanings_of"]

MEANINGS = frozenset({*STEP_COLUMNS, *END_FLAGS, Columns.INFOS, Columns.RESET_INFOS})
INDEXES = ("", "__index_level_0__", "Unnamed: 0")  # what pandas calls the numbers of its rows
DELIMITERS = (";", "\t", "|", ",")  # , in a file called .tsv
ROLE_ALONE = re.compile(
    r"(obs|observations?|states?|a|acts?|actions?|r|rewards?|[oar]_t)"
)  # names that say no more than a role
MAX_SHOWN = 40  # columns listed in a message
MAX_TOLD = 1000  # to programs

_log = logging.getLogger(__name__)

FileColumns = Mapping[str, Collection[str]]  # by URL: names of columns in their order, those of structs dotted


@dataclass(frozen=True, slots=True)
class Matched:
    """A mapping whose columns all exist."""

    mapping: TableMapping  # without optional parts that no file has
    spare: tuple[str, ...]  # columns of all files, not named, that may become extra model outputs, where they hold numbers
    dropped: Mapping[str, str]  # columns of any file, not named, that are left out unread, and why


NOTHING_SHARED = "the files have no column in common"
APART = "convert them apart, each with its own mapping"


def match(mapping: TableMapping, files: FileColumns) -> Matched:
    """`mapping` for these files. Raises BadMapping with every column that is missing, or that `unmapped` refuses."""
    every = _common(files)
    absent = [part for part in mapping.parts if part.said_as in mapping.optional and not _all_there(part, every)]
    used = mapping.without({part.name for part in absent})
    problems = [problem for url, columns in files.items() for problem in _missing(used, columns, url if len(files) > 1 else "")]
    problems += [problem for part in absent for problem in _only_in_some(part, files)]
    anywhere = dict.fromkeys(name for columns in files.values() for name in columns)
    named = _named(used)
    rest = [name for name in anywhere if not named.intersection(wholes(name))]
    problems += _refused(rest, used.unmapped)
    if problems:
        fix = (
            f"the columns are: {_listed(every)}{_other_delimiter(every)}{_lost_letters(every)}"
            if every or len(files) == 1
            else f"{NOTHING_SHARED}: {APART}"
        )
        raise BadMapping.of(problems, where=_where(mapping, files), fix=fix)
    shown, acted = (
        {name for part in used.parts if part.role == role for name in part.columns} for role in (Columns.OBS, Columns.ACTIONS)
    )
    for name in sorted(shown & acted):
        _log.warning("note: column %r is in obs and in actions: a policy that sees its own action learns to copy it", name)
    spare = [name for name in rest if used.unmapped == EXTRA and name not in INDEXES and name in every]
    kept = set(spare)
    return Matched(used, tuple(spare), {name: _why_dropped(name, used.unmapped, every) for name in rest if name not in kept})


def _why_dropped(name: str, unmapped: str, every: Collection[str]) -> str:
    if unmapped != EXTRA:
        return f'not named, and unmapped = "{unmapped}"'
    return "not in every file" if name not in every else "the numbers of a data frame's rows"


def default_mapping(
    files: FileColumns, seen: Callable[[Sequence[str], CsvForm], Seen], form: CsvForm = AS_USUAL
) -> TableMapping:
    """The preset that is used where no mapping is given. Raises BadMapping with a mapping to start from, if it does not fit.

    `seen`: reads rows of these columns, for that one; `form`: that the columns were read in.
    """
    columns = list(_common(files))
    if not columns and len(files) > 1:
        listed = "; ".join(f"{url}: {_listed(names)}" for url, names in islice(files.items(), 2))
        fix = f"{APART}, and merge the datasets{_lost_letters([listed])}"
        raise BadMapping(f"{NOTHING_SHARED}; {listed}", where=_first(files), fix=fix)
    default = mapping_of(preset_text(DEFAULT), DEFAULT)
    if not _lacking(default, columns) and form == AS_USUAL:
        return default
    near = [text for name in preset_names() if (text := _nearly(mapping_of(preset_text(name), name), columns))]
    more = f"; {'; '.join(near)}" if near else ""
    proposed = _divided(columns, seen, form) or starting_mapping(columns, seen(columns[:MAX_GUESSED], form), form)
    raise BadMapping(
        f"a table whose columns nothing explains: {_listed(columns)}{more}",
        where=_first(files),
        fix="--mapping FILE, where FILE says what the columns mean (docs/tables.md)"
        f"{_other_delimiter(columns)}{_other_encoding(form)}. To start from:\n\n" + proposed,
        details={"columns": columns[:MAX_TOLD], "starting_mapping": proposed},
    )


def _common(files: FileColumns) -> dict[str, None]:
    """The columns that every file has, in the order of the first one."""
    first, *others = (dict.fromkeys(columns) for columns in files.values())
    return {name: None for name in first if all(name in other for other in others)}


def _divided(columns: Sequence[str], seen: Callable[[Sequence[str], CsvForm], Seen], form: CsvForm) -> str:
    """A mapping for a header that another delimiter divides into three names or more; empty: none does."""
    for delimiter in DELIMITERS if len(columns) == 1 else ():
        if columns[0].count(delimiter) > 1:
            names = next(csv.reader([columns[0]], delimiter=delimiter))
            divided = replace(form, delimiter=delimiter)
            return starting_mapping(dict.fromkeys(names), seen(names[:MAX_GUESSED], divided), divided)
    return ""


def _other_delimiter(columns: Collection[str]) -> str:
    """What to do about a header that was read as one long name."""
    name = next(iter(columns)) if len(columns) == 1 else ""
    found = next((text for text in DELIMITERS if text in name), None)
    return "" if found is None else f"; if that is no name, say [csv] delimiter = {json.dumps(found)} in the mapping"


def _lost_letters(columns: Collection[str]) -> str:
    """What to do about names with letters that were not understood."""
    return f"; for the letters that are missing there, {SAY_ENCODING}" if any(NO_LETTER in name for name in columns) else ""


def _other_encoding(form: CsvForm) -> str:
    """What to do about names that are not UTF-8, and in what they seem to be."""
    is_usual = form.encoding == AS_USUAL.encoding
    return "" if is_usual else f"; the names are not UTF-8, perhaps [csv] encoding = {json.dumps(form.encoding)}"


def _nearly(preset: TableMapping, columns: Collection[str]) -> str:
    """Why `columns` do not fit `preset`, where at least half of its required ones exist."""
    lacking = _lacking(preset, columns)
    needed = [part for part in preset.parts if part.said_as not in preset.optional]
    if not lacking:
        return f"--mapping {preset.name} would fit"
    return f"for --mapping {preset.name} there is no column {', '.join(lacking)}" if 2 * len(lacking) <= len(needed) else ""


def _lacking(mapping: TableMapping, columns: Collection[str]) -> list[str]:
    needed = [part for part in mapping.parts if part.said_as not in mapping.optional]
    return [theirs for part in needed for theirs in part.columns if not _is_there(theirs, columns)]


def _all_there(part: Part, columns: Collection[str]) -> bool:
    return all(_is_there(theirs, columns) for theirs in part.columns)


def _is_there(theirs: str, columns: Collection[str]) -> bool:
    return theirs in columns or any(_covers(theirs, name) for name in columns)


def _covers(theirs: str, name: str) -> bool:
    """Whether the column or struct `theirs` holds the column `name`."""
    return name == theirs or name.startswith(f"{theirs}.")


def _named(mapping: TableMapping) -> set[str]:
    return {theirs for part in mapping.parts for theirs in part.columns}


def _missing(mapping: TableMapping, columns: Collection[str], url: str) -> list[str]:
    """The problems of one file; `url` is named where there are several."""
    lacking: dict[str, list[str]] = {}
    for part in mapping.parts:
        for theirs in part.columns:
            if not _is_there(theirs, columns):
                lacking.setdefault(theirs, []).append(part.said_as)
    place = f" in {url}" if url else ""
    return [
        f"no column '{theirs}'{place} (for {', '.join(dict.fromkeys(ours))}){nearest(theirs, columns)}"
        for theirs, ours in lacking.items()
    ]


def _only_in_some(part: Part, files: FileColumns) -> list[str]:
    """A problem where an optional part is in one file and not in another: leaving it out of all would lose it silently."""
    having = [url for url, columns in files.items() if _all_there(part, columns)]
    if not having:
        return []
    lacking = next(url for url in files if url not in having)
    fix = "convert these files apart, or leave it out of the mapping"
    return [f"column '{', '.join(part.columns)}' (for {part.said_as}) is in {having[0]} and not in {lacking}: {fix}"]


def _refused(rest: Sequence[str], unmapped: str) -> list[str]:
    if unmapped == "error":
        return [f"column '{name}' is not mapped, and unmapped = \"error\"" for name in rest]
    if unmapped == EXTRA:
        fix = 'name it under [columns], or say unmapped = "drop"'
        return [f"column '{name}' is not mapped, but its name has a meaning here: {fix}" for name in rest if name in MEANINGS]
    return []


def _where(mapping: TableMapping, files: FileColumns) -> str:
    return f"mapping {mapping.name} for {_first(files)}"


def _first(files: FileColumns) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{next(iter(files))}{more}"


def _listed(columns: Collection[str]) -> str:
    shown = list(columns)[:MAX_SHOWN]
    more = f" and {len(columns) - len(shown)} more" if len(columns) > len(shown) else ""
    return ", ".join(shown) + more


def category_space(mapping: TableMapping, role: str) -> Space | None:
    """The space of a column of categories: as many as the mapping names, whether or not each of them is there."""
    parts = mapping.of(role)
    names = mapping.categories.get(parts[0].columns[0], ())
    return spaces.Discrete(len(names)) if names and len(parts) == 1 and not (parts[0].path or parts[0].stacked) else None


def meanings_of(mapping: TableMapping) -> Meanings:
    """What the mapping says of its columns. A single column gives its name, unless that, or a part's own, says as much."""
    names, units = (mapping.document.get(section, {}) for section in ("names", "units"))
    found: dict[str, tuple[Element, ...]] = {}
    for part in mapping.parts:
        is_named = part.stacked or not (part.path or ROLE_ALONE.fullmatch(part.columns[0].lower()))
        elements = tuple(
            Element(names.get(name, name if is_named else None), mapping.categories.get(name), units.get(name))
            for name in part.columns
        )
        if part.role in FILLED_ROLES and part.role != Columns.NEXT_OBS and any(one != Element() for one in elements):
            found[part.said_as] = elements
    return Meanings(found)
