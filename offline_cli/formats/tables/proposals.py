"""A mapping proposed for a table that nothing explains: text to read, correct and copy, and never used unread.

It rests on names and on the first rows: ids whose rows stand together, a column that grows within each id, a flag that is true
in last rows alone, lists of a value a step. It is tried on these rows before it is shown: what does not fit becomes a comment.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.tables.arrow_types import is_bytes
from offline_cli.formats.tables.columns import (
    DAY_FIRST,
    Column,
    are_decimal_commas,
    columns_of,
    common_columns,
    first_url,
    listed,
    texts_of,
    toml_key,
    value_sql,
)
from offline_cli.formats.tables.files import TableFiles
from offline_cli.formats.tables.mapping import (
    DEFAULT,
    FILE_ID,
    STARTS,
    CsvForm,
    TableMapping,
    mapping_of,
    preset_text,
)
from offline_cli.formats.tables.values import likely_image

__all__ = ["default_mapping"]

LIKELY: Final = (
    (Columns.EPS_ID, r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$"),
    (Columns.AGENT_ID, r"^(agent|player)(_?(id|name|index|no|number|nr))?$"),
    (Columns.T, r"^(t|step|steps|time_?step|time|timestamp|ts|stamp|tick|frame(_index)?|date(_?time)?|.*_step|.*_time)$"),
    (STARTS, r"^(episode_starts?|is_first|ep(isode)?_?first|first_step)$"),
    (Columns.TERMINATEDS, r"^(terminateds?|terminals?|terminations?|is_terminal)$"),
    (Columns.TRUNCATEDS, r"^(truncateds?|truncations?|timeouts?)$"),
    (Columns.DONES, r"^(dones?|d|d_t|is_last|end|episode_end|(is_)?(done|finished|completed)|ended|success|failed|crashed)$"),
    (Columns.REWARDS, r"^(r|r_t|rewards?|reward_.*|.*_reward|score)$"),
    (Columns.NEXT_OBS, r"^(new_|next_).+|^o_tp1$"),
    (
        Columns.ACTIONS,
        r"^(a|a_t|acts?|actions?|action[_.].*|(cmd|command|motor|torque|throttle|steer\w*)([_.].*)?|.*_(action|cmd|command))$",
    ),
    (Columns.INFOS, r"^(i_t|infos?)$"),
)
VECTORS: Final = (Columns.OBS, Columns.ACTIONS, Columns.NEXT_OBS)
FLAGS: Final = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.DONES)
FIRST: Final = (Columns.EPS_ID, Columns.AGENT_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS)
COSTS: Final = re.compile(r"^(costs?|penalt(y|ies)|loss(es)?|.*_(cost|penalty))$")
COUNTER: Final = re.compile(r"^(t|step|steps|time_?step|tick|frame(_index)?|.*_step)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
DELIMITERS: Final = (";", "\t", "|", ",")
ROWS: Final = 1 << 16  # that a proposal rests on
ALL_ROWS: Final = 1_000_000  # whose texts are named
MOST_IMAGES: Final = 16  # cells of bytes that are looked at
MOST_COLUMNS: Final = 64  # a longer list is of no use
MOST_TEXTS: Final = 64  # of a column that is proposed as an observation
TRIES: Final = 8
LONG_GAP: Final = 10  # times the usual step of a time
ENOUGH_ROWS: Final = 5  # for what values alone show

Tried = Callable[[TableMapping, int], Any]  # what is wrong with a mapping, by so many first rows; None: nothing


def default_mapping(files: TableFiles, tried: Tried) -> TableMapping:
    """The preset that is used where no mapping is given. Raises BadMapping with a mapping to start from, if it does not fit."""
    columns = common_columns(files.columns)
    if not columns and len(files.columns) > 1:
        shown = "; ".join(f"{url}: {listed(names)}" for url, names in list(files.columns.items())[:2])
        fix = "convert them apart, each with its own mapping, and merge the datasets"
        raise BadMapping(f"the files have no column in common; {shown}", where=first_url(files.columns), fix=fix)
    default = mapping_of(preset_text(DEFAULT), DEFAULT)
    needed = [name for part in default.parts if part.said_as not in default.said.optional for name in part.columns]
    there = [any(one == name or one.startswith(f"{name}.") for one in columns) for name in needed]
    if all(there) and files.form == CsvForm():
        return default
    delimiter = next((one for one in DELIMITERS if len(columns) == 1 and columns[0].count(one) > 1), None)
    if delimiter is not None and files.kind == "csv":  # the header was read as one long name
        form = files.form.model_copy(update={"delimiter": delimiter})
        files = TableFiles(files.files, files.kind, form, files.memory_limit, files.temp_dir)
        files.open()
        columns = next(csv.reader([columns[0]], delimiter=delimiter))
    try:
        proposed = _Draft(files, [name for name in columns if name][:MOST_COLUMNS], tried).text()
    finally:
        files.close()
    raise BadMapping(
        f"a table whose columns nothing explains: {listed(columns)}",
        where=first_url(files.columns),
        fix=f"--mapping FILE, where FILE says what the columns mean (docs/tables.md). To start from:\n\n{proposed}",
        details={"columns": columns[:1000], "starting_mapping": proposed},
    )


# ---- what the first rows show ----


@dataclass(slots=True)
class Look:
    """What the first rows show of one column."""

    kind: str  # number, flag, time, text, list, image, empty, other; "": no row
    codes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))  # (N,) comparable values, NaN for none
    is_whole: bool = False  # whole numbers, or times
    depth: int = 0  # of lists
    texts: Sequence[str] | None = None  # all that are different; None: too many, or no text
    image: str = ""  # what its images are decoded to

    @property
    def in_runs(self) -> bool:
        """Whether the rows of each value stand together, two of them on average."""
        runs = 1 + int((self.codes[1:] != self.codes[:-1]).sum())
        return 2 <= runs <= len(self.codes) / 2 and runs == len(np.unique(self.codes))

    def grows(self, episodes: NDArray[Any] | None) -> bool:
        """Whether numbers or times grow from row to row of each episode; without ids, whole ones of all rows."""
        is_one = self.kind in ("number", "time") and (self.is_whole or episodes is not None)
        if len(self.codes) < ENOUGH_ROWS or not is_one:
            return False
        episodes = np.zeros(len(self.codes)) if episodes is None else episodes
        rows = np.argsort(episodes, kind="stable")
        same = episodes[rows][1:] == episodes[rows][:-1]
        return bool(same.sum() >= len(rows) / 2 and (self.codes[rows][1:] > self.codes[rows][:-1])[same].all())


def _look(files: TableFiles, column: Column, decimal: str) -> Look:
    name, place = column.name, files.column(column.name)
    if is_bytes(files.kind_of(name)):  # images, where the first bytes of all cells say so
        query = f"SELECT {place} FROM {files.relation([name])} WHERE {place} IS NOT NULL LIMIT {MOST_IMAGES}"
        cells = [cell for batch in files.query(query) for cell in batch.column(0).to_pylist()]
        image = likely_image(cells)
        return Look("image" if image else "other" if cells else "empty", image=image)
    if column.held or not column.cells or column.rows == column.nulls:
        return Look("other" if column.held else "empty" if column.rows else "")
    if column.cells == "list":
        return Look("list", depth=column.depth)
    if column.cells == "text" or len(column.kinds) > 1:
        query = f"SELECT coalesce(CAST({place} AS VARCHAR), '') AS c FROM {files.relation([name])}"
        cells = [text for batch in files.query(query) for text in batch.column(0).to_pylist()]
        first, files.first = files.first, None
        texts = texts_of(files, name, ALL_ROWS)
        files.first = first
        return Look("text", np.unique(cells, return_inverse=True)[1].astype(np.float64), texts=texts)
    sql, values = value_sql(files, Columns.OBS, column, decimal)
    batches = files.query(f"SELECT CAST({sql} AS DOUBLE) AS v FROM {files.relation([name])}", values)
    codes = np.concatenate([batch.column(0).to_numpy(zero_copy_only=False) for batch in batches])
    known, is_time = codes[~np.isnan(codes)], column.cells == "time"
    if column.dtype.kind == "b" or np.isin(known, (0, 1)).all():
        return Look("flag", codes, True)
    return Look("time" if is_time else "number", codes, is_time or bool((known == np.floor(known)).all()))


# ---- a draft ----


class _Draft:
    """Roles of columns by rules over their names and what was seen of them; each rule takes its columns out of the rest."""

    def __init__(self, files: TableFiles, names: Sequence[str], tried: Tried) -> None:
        self.files, self.names, self.tried, self.form = files, names, tried, files.form
        files.first = ROWS
        decimal = files.form.decimal
        columns = columns_of(files, names, decimal=decimal, times=names, nulls=names)
        commas = [one.samples for one in columns.values() if decimal == "." and are_decimal_commas(one.samples)]
        self.comma = commas[0][0] if commas else ""
        if self.comma:
            decimal = ","
            columns = columns_of(files, names, decimal=decimal, times=names, nulls=names)
        self.looks = {name: _look(files, columns[name], decimal) for name in names}
        self.gaps = {name: column.nulls for name, column in columns.items() if column.nulls}
        files.first = None
        self.roles: dict[str, list[str]] = {}
        self.why: dict[str, str] = {}  # by role: what its values show
        self.left_out: dict[str, str] = {}
        self.head: list[str] = []  # lines above [columns]
        lists = [name for name in names if self.looks[name].kind == "list" and self.looks[name].depth == 1]
        self.row_is_episode = any(_role_of(name) in (Columns.REWARDS, *FLAGS) for name in lists)

    def text(self) -> str:
        """TOML that names every column once, those with unknown names as observations, and that the first rows fit."""
        times = [name for name in self.names if _role_of(name) == Columns.T and self._fits(Columns.T, name)]
        times = [] if self.row_is_episode else times
        rest = [name for name in self.names if name not in times and not self._by_name(name)]
        for name in self._by_values(rest, times):
            self._as_rest(name)
        self._divide()
        for needed in (Columns.OBS, Columns.ACTIONS):
            self.roles.setdefault(needed, ["?"])
        if self.roles[Columns.ACTIONS] == ["?"]:
            self.why[Columns.ACTIONS] = "the column that was chosen or commanded; take it out of obs"
        if Columns.NEXT_OBS in self.roles and self._part_names(Columns.NEXT_OBS) != self._part_names(Columns.OBS):
            for name in self.roles.pop(Columns.NEXT_OBS):
                self.left_out[name] = "next observations lack parts of the observations"
        return self._tried_text()

    def take(self, role: str, name: str, why: str = "") -> str:
        """Name a column for a role; `why`: what its values show."""
        self.roles.setdefault(role, []).append(name)
        if why:
            self.why[role] = why
        return name

    def codes(self, role: str) -> NDArray[Any] | None:
        """(N,) the values of the column of a role."""
        look = self.looks.get(self.roles.get(role, ["?"])[0])
        return look.codes if look is not None and len(look.codes) else None

    # ---- rules ----

    def _fits(self, role: str, name: str) -> bool:
        """Whether the values of a column do not contradict what its name says."""
        look = self.looks[name]
        steps = ("list",) if self.row_is_episode and look.depth == 1 else ()
        fits = {
            Columns.EPS_ID: look.kind not in ("list", "other"),
            Columns.T: look.kind in ("", "number", "time", "flag", *steps),
            Columns.AGENT_ID: look.kind in ("", "text") or (look.is_whole and len(np.unique(look.codes)) <= MOST_TEXTS),
            Columns.REWARDS: look.kind in ("", "number", "flag", *steps),
            Columns.ACTIONS: look.kind not in ("time", "other", "empty", "image"),
            STARTS: look.kind == "flag",
            **dict.fromkeys(FLAGS, look.kind in ("", "flag", "empty", *steps) or len(look.texts or "few") <= 2),
        }
        return fits.get(role, look.kind != "image" or role == Columns.NEXT_OBS)

    def _by_name(self, name: str) -> bool:
        """Whether the column's name says what it is, and its values do not contradict that."""
        role = _role_of(name)
        if not role or not self._fits(role, name):
            return False
        if role in VECTORS or role not in self.roles:
            self.take(role, name)
        else:
            words = {Columns.EPS_ID: "an id", Columns.AGENT_ID: "an agent", Columns.REWARDS: "a reward", STARTS: "a start"}
            self.left_out[name] = f"looks like {words.get(role, 'a time' if role == Columns.T else 'an end')} too"
        return True

    def _by_values(self, rest: list[str], times: Sequence[str]) -> list[str]:
        """The rest, without what values show to be ids, the order of rows, or ends; `times`: columns that are called so."""
        for name in [name for name in rest if ANY_ID.search(name.lower()) and self.looks[name].kind != "image"]:
            rest.remove(name)
            if Columns.EPS_ID not in self.roles and self.looks[name].in_runs:
                self.take(Columns.EPS_ID, name, "rows of one value follow each other")
            else:
                self.left_out[name] = "looks like an id"
        if Columns.EPS_ID not in self.roles and (found := self._ids_among(rest, times)):
            rest.remove(self.take(Columns.EPS_ID, *found))
        ids, agents = self.codes(Columns.EPS_ID), self.codes(Columns.AGENT_ID)
        both = ids if ids is None or agents is None else np.stack([ids, agents])
        episodes = both if both is None or both.ndim == 1 else np.unique(both, axis=1, return_inverse=True)[1].reshape(-1)
        # a counter shows that steps are missing; a number may grow by itself, as a distance or a sum does, and a date does not
        rank = {name: (not COUNTER.match(name.lower()), self.looks[name].kind != "time") for name in times}
        by_rank = sorted([*times, *rest], key=lambda name: rank.get(name, (True, self.looks[name].kind != "time")))
        growing = [name for name in by_rank if self.looks[name].grows(episodes)]
        chosen = growing[:1] if growing and (episodes is not None or not times) else list(times[:1])
        of_each = "" if ids is None else f" of each {_quoted(self.roles[Columns.EPS_ID][0])}"
        for name in chosen:
            self.take(Columns.T, name, "" if name in times else f"grows from row to row{of_each}")
        self.left_out |= {name: "looks like a time too" for name in times if name not in chosen}
        rest = [name for name in rest if name not in chosen]
        if ids is not None and len(ids) >= ENOUGH_ROWS and not self.roles.keys() & set(FLAGS):
            t = self.codes(Columns.T)
            rows = np.lexsort((np.arange(len(ids)) if t is None else t, ids))
            last = np.append(ids[rows][1:] != ids[rows][:-1], True)
            for name in [name for name in rest if self.looks[name].kind == "flag" and not last.all()]:
                true = self.looks[name].codes[rows] == 1
                if true.any() and not (true & ~last).any():
                    rest.remove(self.take(Columns.DONES, name, f"true in last rows{of_each.replace('each ', '')} alone"))
                    break
        return rest

    def _ids_among(self, names: Sequence[str], times: Sequence[str]) -> tuple[str, str] | None:
        """A column whose value changes exactly where another one, which grows in between, falls back."""
        counters = [name for name in times if self.looks[name].kind != "time"]  # dates go on from episode to episode
        for order in counters or names:
            t = self.looks[order].codes
            falls = t[1:] <= t[:-1]
            for name in names if len(t) >= ENOUGH_ROWS and falls.any() else ():
                look = self.looks[name]
                may_be = name != order and len(look.codes) == len(t) and (look.is_whole or look.kind == "text")
                if may_be and look.in_runs and ((look.codes[1:] != look.codes[:-1]) == falls).all():
                    return name, f"changes where {_quoted(order)} falls back"
        return None

    def _as_rest(self, name: str) -> None:
        """What a column is that neither its name nor its values tell: an observation, or left out with the reason."""
        look = self.looks[name]
        is_number = look.kind in ("number", "flag")
        if is_number and Columns.REWARDS not in self.roles and COSTS.match(name.lower()):
            self.take(Columns.REWARDS, f"-{name}", "a cost is a negative reward")
        elif self.row_is_episode and look.kind != "list":
            self.left_out[name] = "no list of a value a step"
        elif is_number or look.kind in ("", "list", "image") or _are_categories(look):
            self.take(Columns.OBS, name)
        else:
            many = "many" if look.texts is None else len(look.texts)
            words = {"empty": "no value in any row", "time": "looks like a time", "text": f"text, with {many} different values"}
            self.left_out[name] = words.get(look.kind, "holds neither numbers nor text")

    def _divide(self) -> None:
        """What ends an episode, where no column of ids or flags says it."""
        t = self.codes(Columns.T)
        if self.row_is_episode:
            self.head.append('rows = "episodes"  # cells hold lists, a value a step')
        elif self.roles.keys() & {Columns.EPS_ID, STARTS, *FLAGS}:
            return
        elif len(self.files.files) > 1:
            self.take(Columns.EPS_ID, FILE_ID, "each file is an episode")
        elif t is not None and self.looks[self.roles[Columns.T][0]].kind == "time":
            steps = np.diff(np.sort(t[~np.isnan(t)]))
            usual = float(np.median(steps)) if len(steps) else 0.0
            if usual > 0 and (steps > LONG_GAP * usual).any():
                seconds = max(1, round(LONG_GAP * usual / 2e6))
                self.head.append(f'gap = "{seconds}s"  # an episode begins after a longer step of t')
        elif t is not None and (t[1:] <= t[:-1]).any():
            self.head.append('episode_ends = "t"  # an episode begins where t does not grow')

    # ---- its text ----

    def _tried_text(self) -> str:
        """The text of a mapping that the first rows fit: columns that do not fit become comments."""
        for _ in range(TRIES):
            text = "\n".join(self._lines()) + "\n"
            if ["?"] in (self.roles[Columns.ACTIONS], self.roles[Columns.OBS]):
                return text
            error = self.tried(mapping_of(text, "proposal"), ROWS)
            if error is None:
                return text
            said = str(error)
            names = [name for name in self.looks if re.search(rf"column '?{re.escape(name)}'?[ ,:]", said)]
            seen = {*self.roles[Columns.OBS], *self.roles.get(Columns.NEXT_OBS, ())}
            wrong = next((name for name in names if name in seen), None)
            if wrong is None or self.roles[Columns.OBS] == [wrong]:
                return f"# Not complete: {said.splitlines()[0]}\n{text}"
            self.roles = {role: kept for role, old in self.roles.items() if (kept := [name for name in old if name != wrong])}
            self.left_out[wrong] = said.splitlines()[0].strip()
        return text

    def _lines(self) -> Iterator[str]:
        yield 'action_scale = "env"  # or "normalized": train-bc wants to know it'
        yield from (*self.head, "", "[columns]")
        for ours, names in self._parts():
            why = f"  # {self.why[ours]}" if ours in self.why else ""
            yield f"{toml_key(ours)} = {_quoted(names[0]) if len(names) == 1 else _array(names)}{why}"
        yield from (f"# left out: {_quoted(name)}: {why}" for name, why in self.left_out.items())
        used = {name: self.looks[name] for names in self.roles.values() for name in names if name in self.looks}
        texts = {name: used[name].texts for role in VECTORS[:2] for name in self.roles.get(role, ()) if name in used}
        if categories := [f"{toml_key(name)} = {_array(known)}" for name, known in texts.items() if known is not None]:
            yield from ("", "[categories]  # all texts", *categories)
        if images := [f"{toml_key(name)} = {_quoted(look.image)}" for name, look in used.items() if look.image]:
            yield from ("", "[images]  # decoding needs pip install 'offline-cli[images]'", *images)
        if gaps := [name for role in (*VECTORS, Columns.REWARDS) for name in self.roles.get(role, ()) if name in self.gaps]:
            yield from ("", "# An empty cell costs its episode, unless it is filled (docs/tables.md):", "# [fill]")
            yield from (f'# {toml_key(name)} = "previous"  # {self.gaps[name]:,} of the cells seen are empty' for name in gaps)
        form = []
        if self.form.delimiter is not None:
            form.append(f"delimiter = {_quoted(self.form.delimiter)}  # the file's first line is one name otherwise")
        if self.form.encoding != "utf-8":
            form.append(f"encoding = {_quoted(self.form.encoding)}  # perhaps: the names are not UTF-8")
        if self.comma:
            form.append(f'decimal = ","  # as in {_quoted(self.comma)}')
        yield from ("", "[csv]", *form) if form else ()

    def _part_names(self, role: str) -> set[str]:
        """What the parts of a role are called; an empty name: it is one array."""
        return {ours.partition(".")[2] for ours, _ in self._parts() if ours.partition(".")[0] == role}

    def _parts(self) -> Iterator[tuple[str, list[str]]]:
        """Our names, each with theirs: images and matrices, which are not stacked into vectors, are parts of a Dict."""
        deep = 2 if self.row_is_episode else 1
        for role in [name for name in FIRST if name in self.roles] + sorted(set(self.roles) - set(FIRST)):
            names = self.roles[role]
            apart = [name for name in names if (look := self.looks.get(name)) and (look.image or look.depth > deep)]
            if not apart or len(names) == 1 or role not in VECTORS:
                yield role, names
                continue
            short = [name.removesuffix(".bytes").rpartition(".")[2] for name in apart]
            short = [name.removeprefix("next_").removeprefix("new_") or name for name in short]
            called = short if len(set(short)) == len(apart) else [name.replace(".", "_") for name in apart]
            yield from ((f"{role}.{part}", [name]) for part, name in zip(called, apart, strict=True))
            if numbers := [name for name in names if name not in apart]:
                vector = next(name for name in ("state", "numbers", "".join(called)) if name not in called)
                yield f"{role}.{vector}", numbers


def _role_of(name: str) -> str:
    """The role that a column's name says; empty: none."""
    return next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), "")


def _are_categories(look: Look) -> bool:
    """Whether so many different texts in so many rows may be, and are no dates."""
    texts, rows = look.texts or (), len(look.codes)
    few = 0 < len(texts) <= MOST_TEXTS and (2 * len(texts) <= rows or rows <= 2 * ENOUGH_ROWS)
    return few and not any(map(DAY_FIRST.match, texts))


def _array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    """JSON's strings are TOML's too; a character that a terminal would not show is written as a TOML escape."""
    return "".join(
        letter if letter.isprintable() else f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
