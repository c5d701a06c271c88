"""Propose a mapping for a table without one: TOML for the user to check and copy, never applied automatically.

Column names suggest roles, and cells tell whether a column can have the role. The mapping is tried on the first rows before it
is shown: a column that does not fit becomes an observation, or otherwise a comment.
"""

# ruff: noqa: S608  only our own names become SQL; values are bound

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.tables.columns import (
    columns_of,
    common_columns,
    first_url,
    listed,
    texts_of,
    toml_key,
    value_sql,
)
from offline_cli.formats.tables.files import TableFiles, is_bytes
from offline_cli.formats.tables.mapping import DEFAULT, FILE_ID, STARTS, CsvForm, TableMapping, mapping_of, preset_text
from offline_cli.formats.tables.values import likely_image

LIKELY: Final = (
    (Columns.EPS_ID, r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$"),
    (Columns.AGENT_ID, r"^(agent|player)(_?(id|name|index|no|number|nr))?$"),
    (Columns.T, r"^(t|k|step|steps|time_?step|time|timestamp|ts|stamp|tick|frame(_index)?|date(_?time)?|.*_step|.*_time)$"),
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
DECIMAL_COMMA: Final = re.compile(r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$")
COSTS: Final = re.compile(r"^(costs?|penalt(y|ies)|loss(es)?|.*_(cost|penalty))$")
COUNTER: Final = re.compile(r"^(t|k|step|steps|time_?step|tick|frame(_index)?|.*_step)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
WORDS: Final = {
    Columns.EPS_ID: "an id",
    Columns.AGENT_ID: "an agent",
    Columns.T: "a time",
    Columns.REWARDS: "a reward",
    STARTS: "a start",
}
HOLDS: Final = {  # kinds of cells allowed for a role; a column without rows fits any role
    Columns.EPS_ID: ("number", "bool", "time", "text"),
    Columns.AGENT_ID: ("number", "text"),
    Columns.T: ("number", "time"),
    Columns.REWARDS: ("number", "bool"),
    Columns.ACTIONS: ("number", "bool", "list", "text"),
    Columns.OBS: ("number", "bool", "list", "image", "text"),
    Columns.NEXT_OBS: ("number", "bool", "list", "image", "text"),
    Columns.INFOS: ("text",),
    **dict.fromkeys((STARTS, *FLAGS), ("number", "bool", "text", "")),
}
ROWS: Final = 1 << 16  # rows examined
MOST_IMAGES: Final = 16  # cells examined for images
MOST_COLUMNS: Final = 64  # most columns in a proposal
LONGEST_NAME: Final = 500  # longer column names are data or damage
MOST_TEXTS: Final = 64  # most categories of an observation
TRIES: Final = 8
LONG_GAP: Final = 10  # a gap is longer than this multiple of the median time step

Tried = Callable[[TableMapping, int], Any]  # tries a mapping on a number of first rows; returns the error, or None


def default_mapping(files: TableFiles, tried: Tried) -> TableMapping:
    """The default preset, if it fits the columns. Otherwise raises BadMapping with a proposed mapping."""
    columns = common_columns(files.columns)
    if not columns and len(files.columns) > 1:
        shown = "; ".join(f"{url}: {listed(names)}" for url, names in list(files.columns.items())[:2])
        fix = "convert them separately, each with its own mapping, and merge the datasets"
        raise BadMapping(f"the files have no column in common; {shown}", where=first_url(files.columns), fix=fix)
    default = mapping_of(preset_text(DEFAULT), DEFAULT)
    needed = [name for part in default.parts if part.said_as not in default.said.optional for name in part.columns]
    there = [any(one == name or one.startswith(f"{name}.") for one in columns) for name in needed]
    if all(there) and files.form == CsvForm():
        return default
    delimiter = next((one for one in ";\t|," if len(columns) == 1 and columns[0].count(one) > 1), None)
    if delimiter is not None and files.kind == "csv":  # wrong delimiter: the header is one long name
        form = files.form.model_copy(update={"delimiter": delimiter})
        files = TableFiles(files.files, files.kind, form, files.memory_limit, files.temp_dir)
        files.open()
        columns = next(csv.reader([columns[0]], delimiter=delimiter))
    try:
        proposed = _Draft(files, [name for name in columns if 0 < len(name) <= LONGEST_NAME][:MOST_COLUMNS], tried).text()
    finally:
        files.close()
    raise BadMapping(
        f"the table's columns need a mapping: {listed(columns)}",
        where=first_url(files.columns),
        fix=f"give --mapping FILE. To start from:\n\n{proposed}",
        details={"columns": [name[:LONGEST_NAME] for name in columns[:1000]], "starting_mapping": proposed},
    )


class _Draft:
    """Assigns roles to columns by their names and cells."""

    def __init__(self, files: TableFiles, names: Sequence[str], tried: Tried) -> None:
        files.first = ROWS
        self.files, self.names, self.tried, self.decimal = files, names, tried, files.form.decimal
        self.roles: dict[str, list[str]] = {}
        self.why: dict[str, str] = {}  # by role: why it was chosen
        self.left_out: dict[str, str] = {}
        self.head: list[str] = []  # lines above [columns]
        self.columns = columns_of(files, names, decimal=self.decimal, nulls=names)
        commas = [one.samples[0] for one in self.columns.values() if _are_decimal_commas(one.samples)]
        self.comma = commas[0] if commas and self.decimal == "." else ""
        if self.comma:
            self.decimal = ","
            self.columns = columns_of(files, names, decimal=",", nulls=names)
        self.images = {name: kind for name in names if is_bytes(files.kind_of(name)) and (kind := self._image(name))}
        mixed = [name for name, one in self.columns.items() if one.cells == "text" or len(one.kinds) > 1]
        self.texts = {name: texts_of(files, name) for name in mixed}
        lists = [name for name, one in self.columns.items() if one.cells == "list" and one.depth == 1]
        self.row_is_episode = any(_role_of(name) in (Columns.REWARDS, *FLAGS) for name in lists)

    def text(self) -> str:
        """TOML that names every column once (unknown ones as observations), and works for the first rows."""
        times = [name for name in self.names if _role_of(name) == Columns.T and not self.row_is_episode]
        times.sort(key=lambda name: (not COUNTER.match(name.lower()), self._cells(name) != "time"))
        for name in [*times, *(name for name in self.names if name not in times)]:
            self._place(name, _role_of(name))
        self._divide()
        for needed in (Columns.OBS, Columns.ACTIONS):
            self.roles[needed] = self.roles.get(needed) or ["?"]
        if self.roles[Columns.ACTIONS] == ["?"]:
            self.why[Columns.ACTIONS] = "the column that was chosen or commanded; take it out of obs"
        obs, new_obs = (
            {ours.partition(".")[2] for ours, _ in self._parts() if ours.partition(".")[0] == role}
            for role in (Columns.OBS, Columns.NEXT_OBS)
        )
        if new_obs and new_obs != obs:
            lacks = "next observations lack parts of the observations"
            self.left_out |= dict.fromkeys(self.roles.pop(Columns.NEXT_OBS), lacks)
        return self._tried_text()

    # ---- what cells hold ----

    def _image(self, name: str) -> str:
        """The mode of images in a column of bytes; empty if the first cells are not images."""
        place = self.files.column(name)
        sql = f"SELECT {place} FROM {self.files.relation([name])} WHERE {place} IS NOT NULL LIMIT {MOST_IMAGES}"
        return likely_image([cell for batch in self.files.query(sql) for cell in batch.column(0).to_pylist()])

    def _cells(self, name: str) -> str:
        """Kind of cells: see `Column`; or `image`; `nothing` for other types; "" if all null; `unknown` without rows."""
        column = self.columns[name]
        if name in self.images:
            return "image"
        if column.held or not column.cells:
            return "nothing" if column.held else "" if column.rows else "unknown"
        is_step = self.row_is_episode and column.cells == "list" and column.depth == 1
        return "text" if name in self.texts else "number" if is_step else column.cells

    def _is_in_runs(self, name: str) -> bool:
        """Whether rows with the same value are always adjacent, at least two on average."""
        c = self.files.column(name)
        asked = f"SELECT {c} AS c, {c} IS DISTINCT FROM lag({c}) OVER () AS begins FROM {self.files.relation([name])}"
        sql = f"SELECT count(*), count(*) FILTER (WHERE begins), count(DISTINCT c) FROM ({asked})"
        rows, runs, values = self.files.one(sql)
        return bool(2 <= runs <= rows / 2 and runs == values)

    # ---- rules ----

    def _place(self, name: str, role: str) -> None:
        """Assign a column the role of its name if its cells fit; otherwise it is an observation, or dropped with a reason."""
        cells, texts = self._cells(name), self.texts.get(name)
        may_be_obs = not (self.row_is_episode and self.columns[name].cells != "list")
        if role and (cells == "unknown" or cells in HOLDS[role]):
            if role in VECTORS or role not in self.roles:
                self.roles.setdefault(role, []).append(name)
            else:
                self.left_out[name] = f"looks like {WORDS.get(role, 'an end')} too"
        elif cells == "time" and Columns.T not in self.roles:
            self.roles[Columns.T], self.why[Columns.T] = [name], "a date or time"
        elif ANY_ID.search(name.lower()) and cells != "image":
            self.left_out[name] = "looks like an id"
        elif cells in ("number", "bool") and Columns.REWARDS not in self.roles and COSTS.match(name.lower()):
            self.roles[Columns.REWARDS], self.why[Columns.REWARDS] = [f"-{name}"], "a cost is a negative reward"
        elif may_be_obs and (cells in ("number", "bool", "list", "image", "unknown") or self._are_categories(name)):
            self.roles.setdefault(Columns.OBS, []).append(name)
        else:
            many = "many" if texts is None else len(texts)
            words = {"": "no value in any row", "time": "looks like a time", "text": f"text, with {many} different values"}
            self.left_out[name] = (
                words.get(cells, "holds neither numbers nor text") if may_be_obs else "no list of a value a step"
            )

    def _are_categories(self, name: str) -> bool:
        """Whether a text column has few enough values to be categories."""
        texts, rows = self.texts.get(name) or (), self.columns[name].rows
        return 0 < len(texts) <= MOST_TEXTS and (2 * len(texts) <= rows or rows <= 10)

    def _divide(self) -> None:
        """Choose what divides rows into episodes: a column with runs of values, lists, files, or time gaps."""
        obs = self.roles.get(Columns.OBS, [])
        says, has_files = self.row_is_episode or self.roles.keys() & {STARTS, *FLAGS}, len(self.files.files) > 1
        whole = [name for name in obs if name in self.texts or self.columns[name].dtype.kind in "iu"]
        ids = [name for name in self.left_out if ANY_ID.search(name.lower())] + ([] if says or has_files else whole)
        if Columns.EPS_ID not in self.roles and (found := next(filter(self._is_in_runs, ids), None)):
            self.left_out.pop(found, "")
            self.roles[Columns.OBS] = [name for name in obs if name != found]
            self.roles[Columns.EPS_ID], self.why[Columns.EPS_ID] = [found], "rows of one value follow each other"
        if self.row_is_episode:
            self.head.append('rows = "episodes"  # cells hold lists, a value a step')
        elif says or Columns.EPS_ID in self.roles:
            return
        elif has_files:
            self.roles[Columns.EPS_ID], self.why[Columns.EPS_ID] = [FILE_ID], "each file is an episode"
        elif Columns.T in self.roles:
            t = self.columns[self.roles[Columns.T][0]]
            sql, values = value_sql(self.files, Columns.OBS, t, self.decimal)
            order = "ORDER BY v" if t.cells == "time" else ""
            asked = f"SELECT v - lag(v) OVER ({order}) AS step FROM (SELECT {sql} AS v FROM {self.files.relation([t.name])})"
            usual, longest, least = self.files.one(f"SELECT median(step), max(step), min(step) FROM ({asked})", values)
            if t.cells == "time" and usual and longest > LONG_GAP * usual:
                seconds = max(1, round(LONG_GAP * usual / 2e6))
                self.head.append(f'gap = "{seconds}s"  # an episode begins after a longer step of t')
            elif least is not None and least <= 0:
                self.head.append('episode_ends = "t"  # an episode begins where t does not grow')

    # ---- text ----

    def _tried_text(self) -> str:
        """Text of a mapping that works for the first rows: columns that fail become observations, or otherwise comments."""
        for _ in range(TRIES):
            text = "\n".join(self._lines()) + "\n"
            obs = self.roles[Columns.OBS]
            filled = mapping_of("\n".join(self._lines(fill=True)), "proposal")  # that cells are missing is told, and no misfit
            error = None if ["?"] in (self.roles[Columns.ACTIONS], obs) else self.tried(filled, ROWS)
            if error is None:
                return text
            said = str(error).splitlines()[0].strip()
            named = [(role, name) for role, names in self.roles.items() for name in names if role != Columns.ACTIONS]
            wrong = [one for one in named if re.search(rf"column '?{re.escape(one[1])}'?[ ,:]", str(error))]
            if not wrong or obs == [wrong[0][1]]:
                return f"# Not complete: {said}\n{text}"
            role, name = wrong[0]
            self.roles[role].remove(name)
            if not self.roles[role]:
                del self.roles[role]
            if role in VECTORS or self._cells(name) not in HOLDS[Columns.OBS]:
                self.left_out[name] = said
            else:
                obs.append(name)
        return text

    def _lines(self, fill: bool = False) -> Iterator[str]:
        used = [(role, name) for role, names in self.roles.items() for name in names if name in self.columns]
        texts = {name: known for role, name in used if role in VECTORS[:2] and (known := self.texts.get(name))}
        gaps = {name: self.columns[name].nulls for role, name in used if role in (*VECTORS, Columns.REWARDS)}
        yield 'action_scale = "env"  # or "normalized": train-bc wants to know it'
        yield from (*self.head, "", "[columns]")
        for ours, names in self._parts():
            why = f"  # {self.why[ours]}" if ours in self.why else ""
            yield f"{toml_key(ours)} = {_quoted(names[0]) if len(names) == 1 else _array(names)}{why}"
        yield from (f"# left out: {_quoted(name)}: {why}" for name, why in self.left_out.items())
        if texts:
            yield from (
                "",
                f"[categories]  # the texts of the first {ROWS:,} rows",
                *(f"{toml_key(name)} = {_array(known)}" for name, known in texts.items()),
            )
        if images := [f"{toml_key(name)} = {_quoted(self.images[name])}" for _, name in used if name in self.images]:
            yield from ("", "[images]  # decoding needs pip install 'offline-cli[images]'", *images)
        if fill:
            values = {"number": "0", "bool": "0", "text": '"previous"'}
            filled = {name: values.get(self._cells(name), "") for name, n in gaps.items() if n}
            yield from ("[fill]", *(f"{toml_key(name)} = {value}" for name, value in filled.items() if value))
        elif any(gaps.values()):
            yield from ("", "# An empty cell costs its episode, unless it is filled:", "# [fill]")
            yield from (
                f'# {toml_key(name)} = "previous"  # {n:,} of the cells seen are empty' for name, n in gaps.items() if n
            )
        form = []
        if self.files.form.delimiter is not None:
            form.append(f"delimiter = {_quoted(self.files.form.delimiter)}  # the file's first line is one name otherwise")
        if self.comma:
            form.append(f'decimal = ","  # as in {_quoted(self.comma)}')
        yield from ("", "[csv]", *form) if form else ()

    def _parts(self) -> Iterator[tuple[str, list[str]]]:
        """Our names, each with theirs. Images and matrices cannot be stacked into vectors: they are parts of a Dict."""
        deep = 2 if self.row_is_episode else 1
        for role in [name for name in FIRST if name in self.roles] + sorted(set(self.roles) - set(FIRST)):
            names = self.roles[role]
            apart = [name for name in names if name in self.images or getattr(self.columns.get(name), "depth", 1) > deep]
            if not apart or len(names) == 1 or role not in VECTORS:
                yield role, names
                continue
            short = [re.sub(r"^(next|new)_", "", name.removesuffix(".bytes").rpartition(".")[2]) for name in apart]
            called = short if len(set(short)) == len(apart) else [name.replace(".", "_") for name in apart]
            yield from ((f"{role}.{part}", [name]) for part, name in zip(called, apart, strict=True))
            if numbers := [name for name in names if name not in apart]:
                yield f"{role}.{next(name for name in ('state', 'numbers', ''.join(called)) if name not in called)}", numbers


def _role_of(name: str) -> str:
    """The role suggested by a column's name; "" if none."""
    return next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), "")


def _are_decimal_commas(texts: Sequence[str]) -> bool:
    """Whether at least 80 % of the texts are numbers such as `0,5`."""
    return bool(texts) and 5 * sum(map(bool, map(DECIMAL_COMMA.match, texts))) >= 4 * len(texts)


def _array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    """A TOML string: JSON syntax, with nonprintable characters escaped."""
    return "".join(
        letter if letter.isprintable() else f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
