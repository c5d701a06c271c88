"""A mapping proposed for a table that nothing explains: text to read, correct and copy, and never used unread.

It rests on names and on the first rows: ids whose rows stand together, a column that grows within each id, a flag that is true
in last rows alone, lists of a value a step. It is tried on these rows before it is shown: what does not fit becomes a comment.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.tables.columns import (
    DAY_FIRST,
    are_decimal_commas,
    common_columns,
    facts_of,
    first_url,
    listed,
)
from offline_cli.formats.tables.files import TableFiles
from offline_cli.formats.tables.layout import toml_key
from offline_cli.formats.tables.looks import Look, looked_at
from offline_cli.formats.tables.mapping import DEFAULT, FILE_ID, STARTS, CsvForm, TableMapping, mapping_of, preset_text

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
FILLABLE: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS)
LOGP: Final = re.compile(r"^(logp|logprobs?(_t)?|action_logp)$")
COSTS: Final = re.compile(r"^(costs?|penalt(y|ies)|loss(es)?|.*_(cost|penalty))$")
MAYBE_REWARDS: Final = re.compile(r"^(gains?|clicks?|clicked|profits?|pnl|revenue|payoff|payout|utility)$")
COUNTER: Final = re.compile(r"^(t|step|steps|time_?step|tick|frame(_index)?|.*_step)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
DELIMITERS: Final = (";", "\t", "|", ",")
ROWS: Final = 1 << 16  # that a proposal rests on
MOST_COLUMNS: Final = 64  # a longer list is of no use
MOST_TEXTS: Final = 64  # of a column that is proposed as an observation
TRIES: Final = 8
LONG_GAP: Final = 10  # times the usual step of a time
ENOUGH_ROWS: Final = 5  # for what values alone show
FEWEST_IDS: Final = 5  # different texts, each in rows that follow each other: fewer may be modes
ROLE_WORDS: Final = {
    Columns.EPS_ID: "an id",
    Columns.AGENT_ID: "an agent",
    Columns.T: "a time",
    Columns.REWARDS: "a reward",
    STARTS: "a start",
} | dict.fromkeys(FLAGS, "an end")

Tried = Callable[[TableMapping, int], Any]  # what is wrong with a mapping, by so many first rows; None: nothing


def default_mapping(files: TableFiles, tried: Tried) -> TableMapping:
    """The preset that is used where no mapping is given. Raises BadMapping with a mapping to start from, if it does not fit."""
    columns = common_columns(files.types)
    if not columns and len(files.types) > 1:
        shown = "; ".join(f"{url}: {listed(list(names))}" for url, names in list(files.types.items())[:2])
        fix = "convert them apart, each with its own mapping, and merge the datasets"
        raise BadMapping(f"the files have no column in common; {shown}", where=first_url(files.types), fix=fix)
    default = mapping_of(preset_text(DEFAULT), DEFAULT)
    needed = [name for part in default.parts if part.said_as not in default.said.optional for name in part.columns]
    if (
        all(name in columns or any(one.startswith(f"{name}.") for one in columns) for name in needed)
        and files.form == CsvForm()
    ):
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
        where=first_url(files.types),
        fix=f"--mapping FILE, where FILE says what the columns mean (docs/tables.md). To start from:\n\n{proposed}",
        details={"columns": columns[:1000], "starting_mapping": proposed},
    )


# ---- a draft ----


class _Draft:
    """Roles of columns by rules over their names and what was seen of them; each rule takes its columns out of the rest."""

    def __init__(self, files: TableFiles, names: Sequence[str], tried: Tried) -> None:
        self.files, self.names, self.tried, self.form = files, names, tried, files.form
        files.first = ROWS
        decimal = files.form.decimal
        facts = facts_of(files, names, decimal=decimal, times=names, nulls=names)
        self.comma = next((one.samples[0] for one in facts.values() if decimal == "." and are_decimal_commas(one.samples)), "")
        if self.comma:
            decimal = ","
            facts = facts_of(files, names, decimal=decimal, times=names, nulls=names)
        self.looks = {name: looked_at(files, name, facts[name], decimal) for name in names}
        files.first = None
        self.roles: dict[str, list[str]] = {}
        self.why: dict[str, str] = {}  # by role: what its values show
        self.times: list[str] = []  # columns that are called like a time or a counter
        self.extra: list[str] = []
        self.left_out: dict[str, str] = {}
        self.maybe: dict[str, str] = {}  # roles of columns among these that may have one
        self.categories: dict[str, Sequence[str]] = {}
        self.head: list[str] = []  # lines above [columns]
        self.row_is_episode = any(
            self.looks[name].kind == "list" and self.looks[name].depth == 1 and _role_of(name) in (Columns.REWARDS, *FLAGS)
            for name in names
        )

    def text(self) -> str:
        """TOML that names every column once, those with unknown names as observations, and that the first rows fit."""
        rest = self._by_values([name for name in self.names if not self._by_name(name)])
        for name in rest:
            self._as_rest(name)
        for name in self.roles.get(Columns.ACTIONS, ()):
            if (texts := self.looks[name].texts) is not None:
                self.categories[name] = texts
        self._divide()
        for needed in (Columns.OBS, Columns.ACTIONS):
            self.roles.setdefault(needed, ["?"])
        if self.roles[Columns.ACTIONS] == ["?"]:
            self.why[Columns.ACTIONS] = "the column that was chosen or commanded; take it out of obs"
        if Columns.NEXT_OBS in self.roles and self._part_names(Columns.NEXT_OBS) != self._part_names(Columns.OBS):
            lacking = "next observations lack parts of the observations"
            self.left_out |= dict.fromkeys(self.roles.pop(Columns.NEXT_OBS), lacking)
        return self._tried_text()

    def take(self, role: str, name: str, why: str = "") -> str:
        """Name a column for a role; `why`: what its values show."""
        self.roles.setdefault(role, []).append(name)
        if why:
            self.why[role] = why
        return name

    def leave(self, name: str, why: str, maybe: str = "") -> None:
        """Leave a column out; `maybe`: the role that it may have."""
        self.left_out[name] = why
        if maybe:
            self.maybe[name] = maybe

    def codes(self, role: str) -> NDArray[Any] | None:
        """(N,) the values of the column of a role."""
        found = self.roles.get(role, ["?"])[0]
        return self.looks[found].codes if found in self.looks and len(self.looks[found].codes) else None

    def episodes(self) -> NDArray[Any] | None:
        """(N,) a number for each episode of each agent; None where no column of ids is known."""
        ids, agents = self.codes(Columns.EPS_ID), self.codes(Columns.AGENT_ID)
        if ids is None or agents is None:
            return ids
        return np.asarray(np.unique(np.stack([ids, agents]), axis=1, return_inverse=True)[1].reshape(-1), np.float64)

    # ---- rules ----

    def _by_name(self, name: str) -> bool:
        """Whether the column's name says what it is, and its values do not contradict that."""
        look, role = self.looks[name], _role_of(name)
        if LOGP.match(name.lower()):
            self.extra.append(name)
            return True
        steps = ("list",) if self.row_is_episode and look.depth == 1 else ()
        fits = {
            Columns.EPS_ID: look.kind not in ("list", "other"),
            Columns.T: look.kind in ("", "number", "time", "flag", *steps),
            Columns.AGENT_ID: look.kind in ("", "text") or (look.is_whole and look.different <= MOST_TEXTS),
            Columns.REWARDS: look.kind in ("", "number", "flag", *steps) and look.texts is None,
            Columns.ACTIONS: look.kind not in ("time", "other", "empty", "image"),
            STARTS: look.kind == "flag",
            **dict.fromkeys(FLAGS, look.kind in ("", "flag", "empty", *steps)),
        }
        if not role or not fits.get(role, look.kind != "image" or role == Columns.NEXT_OBS):
            return False
        if role == Columns.T and not self.row_is_episode:
            self.times.append(name)
        elif role in VECTORS or role not in self.roles:
            self.take(role, name)
        else:
            self.leave(name, f"looks like {ROLE_WORDS.get(role, role)} too")
        return True

    def _by_values(self, names: list[str]) -> list[str]:
        """Those of `names` whose values do not show that they are ids, times or ends."""
        taken = set[str]()
        for name in names:
            look = self.looks[name]
            if ANY_ID.search(name.lower()) and look.kind != "image":
                taken.add(name)
                if Columns.EPS_ID not in self.roles and 0 < look.different < len(look.codes) and look.in_runs:
                    self.take(Columns.EPS_ID, name, "rows of one value follow each other")
                else:
                    self.leave(name, "looks like an id", Columns.EPS_ID)
        rest = [name for name in names if name not in taken]
        if Columns.EPS_ID not in self.roles and (found := self._ids_among(rest)):
            rest.remove(self.take(Columns.EPS_ID, *found))
        if (order := self._order_among(rest)) and self.take(Columns.T, *order) in rest:
            rest.remove(order[0])
        for name in self.times:
            if name not in self.roles.get(Columns.T, ()):
                shared = (
                    f", but rows of one {_quoted(self.roles[Columns.EPS_ID][0])} share its values"
                    if self._repeats(name)
                    else ""
                )
                self.leave(name, f"looks like a time{shared or ' too'}", Columns.T)
        if not self.roles.keys() & set(FLAGS) and (found := self._end_among(rest)):
            rest.remove(self.take(Columns.DONES, *found))
        return rest

    def _ids_among(self, names: Sequence[str]) -> tuple[str, str] | None:
        """A column whose value changes exactly where another one, which grows in between, falls back."""
        counters = [name for name in self.times if self.looks[name].kind != "time"]  # dates go on from episode to episode
        for order in counters or names:
            t = self.looks[order].codes
            if len(t) < ENOUGH_ROWS or not (falls := t[1:] <= t[:-1]).any():
                continue
            for name in names:
                look = self.looks[name]
                may_be = name != order and len(look.codes) == len(t) and (look.is_whole or look.kind == "text")
                if may_be and look.in_runs and ((look.codes[1:] != look.codes[:-1]) == falls).all():
                    return name, f"changes where {_quoted(order)} falls back"
        return None

    def _order_among(self, names: Sequence[str]) -> tuple[str, str] | None:
        """The column that orders the rows of an episode, and what its values show, where its name does not say it.

        Of the columns that grow from row to row of each episode: one that is called a counter, because only a counter shows
        that steps are missing; then a date or time, because a number may grow by itself (a distance, a sum); then a number
        that is called a time; then any number. Where none grows, or no ids are known, it is the first that is called a time.
        """
        episodes = self.episodes()
        growing = [name for name in sorted([*self.times, *names], key=self._rank) if self._grows(name, episodes)]
        called = [name for name in self.times if not self._repeats(name)]
        chosen = growing[:1] if growing and (episodes is not None or not called) else called[:1]
        if not chosen:
            return None
        shown = "grows from row to row" + ("" if episodes is None else f" of each {_quoted(self.roles[Columns.EPS_ID][0])}")
        return chosen[0], "" if chosen[0] in self.times else shown

    def _rank(self, name: str) -> int:
        """How likely a column that grows is the order of the rows: 0 is the likeliest."""
        look, is_called = self.looks[name], name in self.times
        if is_called and COUNTER.match(name.lower()):
            return 0
        return 1 if look.kind == "time" else 2 if is_called else 3 if look.is_whole else 4

    def _grows(self, name: str, episodes: NDArray[Any] | None) -> bool:
        """Whether a column grows from row to row of each episode; without ids, of all rows."""
        look = self.looks[name]
        if len(look.codes) < ENOUGH_ROWS or look.kind not in ("number", "time") or not (look.is_whole or episodes is not None):
            return False
        episodes = np.zeros(len(look.codes)) if episodes is None else episodes
        rows = np.argsort(episodes, kind="stable")
        same = episodes[rows][1:] == episodes[rows][:-1]
        return bool(same.sum() >= len(rows) / 2 and (look.codes[rows][1:] > look.codes[rows][:-1])[same].all())

    def _repeats(self, name: str) -> bool:
        """Whether a date or time stands in two rows of one episode, which therefore it does not order."""
        look, episodes = self.looks[name], self.episodes()
        if look.kind != "time" or episodes is None:
            return False
        cells = np.stack([episodes, look.codes])[:, ~np.isnan(look.codes)]
        return bool(np.unique(cells, axis=1).shape[1] < cells.shape[1])

    def _end_among(self, names: Sequence[str]) -> tuple[str, str] | None:
        """A truth value that is true in last rows of episodes alone."""
        ids, t = self.codes(Columns.EPS_ID), self.codes(Columns.T)
        if ids is None or len(ids) < ENOUGH_ROWS:
            return None
        rows = np.lexsort((np.arange(len(ids)) if t is None else t, ids))
        last = np.append(ids[rows][1:] != ids[rows][:-1], True)
        for name in names:
            true = self.looks[name].codes[rows] == 1 if self.looks[name].kind == "flag" else np.zeros(1)
            if true.any() and not last.all() and not (true & ~last).any():
                return name, f"true in last rows of {_quoted(self.roles[Columns.EPS_ID][0])} alone"
        return None

    def _as_rest(self, name: str) -> None:
        """What a column is that neither its name nor its values tell: an observation, or left out with the reason."""
        look, is_number = self.looks[name], self.looks[name].kind in ("number", "flag") and self.looks[name].texts is None
        beside = self.looks.get(f"{name.removesuffix('.path')}.bytes")
        has_ids, has_rewards = Columns.EPS_ID in self.roles, Columns.REWARDS in self.roles
        if is_number and not has_rewards and COSTS.match(name.lower()):
            self.take(Columns.REWARDS, f"-{name}", "a cost is a negative reward")
        elif is_number and not has_rewards and MAYBE_REWARDS.match(name.lower()):
            self.leave(name, "may be a reward", Columns.REWARDS)
        elif beside is not None and beside.image:
            self.leave(name, "where an image was")
        elif self.row_is_episode and look.kind != "list":
            self.leave(name, "no list of a value a step")
        elif is_number or look.kind in ("", "list", "image"):
            self.take(Columns.OBS, name)
        elif look.kind == "text" and not has_ids and look.different >= FEWEST_IDS and look.in_runs:
            self.leave(name, "may be an id: rows of one value follow each other", Columns.EPS_ID)
        elif look.texts and _are_categories(look.texts, len(look.codes)):
            self.categories[self.take(Columns.OBS, name)] = look.texts
        else:
            self.leave(name, _why_left_out(look))

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
                self.head.append(
                    f'gap = "{max(1, round(LONG_GAP * usual / 2e6))}s"  # an episode begins after a longer step of t'
                )
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
            self.categories.pop(wrong, None)
            self.leave(wrong, said.splitlines()[0].strip())
        return text

    def _lines(self) -> Iterator[str]:
        yield 'action_scale = "env"  # or "normalized": train-bc wants to know it'
        yield from (*self.head, "", "[columns]")
        for ours, names in self._parts():
            why = f"  # {self.why[ours]}" if ours in self.why else ""
            yield f"{toml_key(ours)} = {_quoted(names[0]) if len(names) == 1 else _array(names)}{why}"
        for name, why in self.left_out.items():
            role = self.maybe.get(name)
            is_offered = role is not None and role not in self.roles
            yield f"# {role} = {_quoted(name)}  # {why}" if is_offered else f"# left out: {_quoted(name)}: {why}"
        for name in self.extra[:1]:
            yield from ("", "[extra]", f"action_logp = {_quoted(name)}")
        if self.categories:
            yield from ("", "[categories]  # all texts")
            yield from (f"{toml_key(name)} = {_array(texts)}" for name, texts in self.categories.items())
        used = [name for names in self.roles.values() for name in names if name in self.looks]
        if images := [f"{toml_key(name)} = {_quoted(self.looks[name].image)}" for name in used if self.looks[name].image]:
            yield from ("", "[images]  # decoding needs pip install 'offline-cli[images]'", *images)
        yield from self._gaps()
        csv_lines = []
        if self.form.delimiter is not None:
            csv_lines.append(f"delimiter = {_quoted(self.form.delimiter)}  # the file's first line is one name otherwise")
        if self.form.encoding != "utf-8":
            csv_lines.append(f"encoding = {_quoted(self.form.encoding)}  # perhaps: the names are not UTF-8")
        if self.comma:
            csv_lines.append(f'decimal = ","  # as in {_quoted(self.comma)}')
        yield from ("", "[csv]", *csv_lines) if csv_lines else ()

    def _gaps(self) -> Iterator[str]:
        """What to do about cells without a value, for people to choose."""
        names = [name for role in FILLABLE for name in self.roles.get(role, ()) if name in self.looks and self.looks[name].gaps]
        if names:
            yield from (
                "",
                "# An empty cell costs its episode, unless it is filled, or split_at_gaps = true stands above [columns]:",
                "# [fill]",
            )
        for name in names:
            look = self.looks[name]
            others = ', or "mean"' * (look.kind == "number" and not look.is_whole)
            others += ", or a number" * (look.kind in ("number", "flag"))
            yield f'# {toml_key(name)} = "previous"  # the value before{others}; {look.gaps:,} of the cells seen are empty'

    def _part_names(self, role: str) -> set[str]:
        """What the parts of a role are called; an empty name: it is one array."""
        return {ours.partition(".")[2] for ours, _ in self._parts() if ours.partition(".")[0] == role}

    def _parts(self) -> Iterator[tuple[str, list[str]]]:
        """Our names, each with theirs: images and matrices, which are not stacked into vectors, are parts of a Dict."""
        first = [Columns.EPS_ID, Columns.AGENT_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS]
        deep = 2 if self.row_is_episode else 1
        for role in [name for name in first if name in self.roles] + sorted(set(self.roles) - set(first)):
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


def _are_categories(texts: Sequence[str], rows: int) -> bool:
    """Whether so many different texts in so many rows may be, and are no dates."""
    few = len(texts) <= MOST_TEXTS and (2 * len(texts) <= rows or rows <= 2 * ENOUGH_ROWS)
    return few and not any(map(DAY_FIRST.match, texts))


def _why_left_out(look: Look) -> str:
    if look.kind in ("empty", "time") or look.unfit:
        return look.unfit or {"empty": "no value in any row", "time": "looks like a time"}[look.kind]
    if look.kind not in ("text", "flag"):
        return "holds neither numbers nor text"
    if look.texts and (ambiguous := next(filter(DAY_FIRST.match, look.texts), "")):
        return f"dates such as {ambiguous[:40]!r} may begin with a day or a month: write 2024-03-01"
    return f"text, with {'many' if look.texts is None else len(look.texts)} different values"


def _array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    """JSON's strings are TOML's too; a character that a terminal would not show is written as a TOML escape."""
    return "".join(
        letter if letter.isprintable() else f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
