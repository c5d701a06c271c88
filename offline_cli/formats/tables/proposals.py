"""A mapping proposed for a table that nothing explains: text to read, correct and copy, and never used unread.

It rests on names and on the first rows: ids whose rows stand together, a column that grows within each id, a flag that is true
in last rows alone, lists of a value a step. It is tried on these rows before it is shown: what does not fit becomes a comment.
"""

# ruff: noqa: S608  names of our own alone become SQL, values are bound

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.errors import BadMapping
from offline_cli.formats.arrow_leaves import is_text
from offline_cli.formats.tables.columns import (
    DAY_FIRST,
    DELIMITERS,
    Facts,
    Leaf,
    are_decimal_commas,
    common_columns,
    facts_of,
    first_url,
    listed,
    other_delimiter,
    plan_of,
    texts_of,
    value_sql,
)
from offline_cli.formats.tables.files import TableFiles
from offline_cli.formats.tables.images import GRAY, RGB, header_of, is_bytes, why_no_image
from offline_cli.formats.tables.mapping import (
    AS_USUAL,
    DEFAULT,
    FILE_ID,
    STARTS,
    CsvForm,
    TableMapping,
    mapping_of,
    preset_names,
    preset_text,
)

__all__ = ["default_mapping", "looks_like_ids"]

LIKELY: Final = (
    (Columns.EPS_ID, r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$"),
    (Columns.AGENT_ID, r"^(agent|player)(_?(id|name|index|no|number|nr))?$"),
    (
        Columns.T,
        r"^(t|step|steps|timestep|time_?step|time|timestamp|ts|stamp|tick|frame(_index)?|date(_?time)?|.*_step|.*_time)$",
    ),
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
EXTRAS: Final = re.compile(r"^(logp|logprobs?(_t)?|action_logp)$")
COSTS: Final = re.compile(r"^(costs?|penalt(y|ies)|loss(es)?|.*_(cost|penalty))$")
MAYBE_REWARDS: Final = re.compile(r"^(gains?|clicks?|clicked|profits?|pnl|revenue|payoff|payout|utility)$")
COUNTER: Final = re.compile(r"^(t|step|steps|timestep|time_?step|tick|frame(_index)?|.*_step)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
ANSWERS: Final = frozenset(("yes", "no", "y", "n"))
ROWS: Final = 1 << 16  # that a proposal rests on
MOST_ROWS: Final = 1_000_000  # whose texts it names
MOST_COLUMNS: Final = 64  # a longer list is of no use
MOST_TEXTS: Final = 64  # of a column that is proposed as an observation
MOST_IMAGES: Final = 16  # cells of bytes that are looked at
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


class Source(Protocol):
    """What a proposal needs of a table."""

    rows: TableFiles

    def tried(self, mapping: TableMapping, rows: int) -> Any:
        """What is wrong with a mapping, by the first rows; None: nothing."""


def looks_like_ids(column: str) -> bool:
    """Whether a column of that name holds ids of episodes."""
    return bool(re.search(dict(LIKELY)[Columns.EPS_ID], column.lower()))


def default_mapping(source: Source) -> TableMapping:
    """The preset that is used where no mapping is given. Raises BadMapping with a mapping to start from, if it does not fit."""
    files = source.rows
    columns = list(common_columns(files.types))
    if not columns and len(files.types) > 1:
        shown = "; ".join(f"{url}: {listed(names)}" for url, names in list(files.types.items())[:2])
        fix = "convert them apart, each with its own mapping, and merge the datasets"
        raise BadMapping(f"the files have no column in common; {shown}", where=first_url(files.types), fix=fix)
    default = mapping_of(preset_text(DEFAULT), DEFAULT)
    if not _lacking(default, columns) and files.form == AS_USUAL:
        return default
    near = [text for name in preset_names() if (text := _nearly(mapping_of(preset_text(name), name), columns))]
    form = files.form
    for delimiter in DELIMITERS if len(columns) == 1 and files.kind == "csv" else ():
        if columns[0].count(delimiter) > 1:
            form = replace(form, delimiter=delimiter)
            files = TableFiles(files.files, files.kind, form, files.memory_limit, files.temp_dir)
            files.open()
            columns = next(csv.reader([columns[0]], delimiter=delimiter))
            break
    try:
        proposed = starting_mapping(source, files, columns)
    finally:
        files.close()
    other = (
        ""
        if form.encoding == AS_USUAL.encoding
        else f"; the names are not UTF-8, perhaps [csv] encoding = {json.dumps(form.encoding)}"
    )
    raise BadMapping(
        f"a table whose columns nothing explains: {listed(columns)}{'; ' * bool(near)}{'; '.join(near)}",
        where=first_url(files.types),
        fix="--mapping FILE, where FILE says what the columns mean (docs/tables.md)"
        f"{other_delimiter(list(common_columns(source.rows.types)))}{other}. To start from:\n\n" + proposed,
        details={"columns": columns[:1000], "starting_mapping": proposed},
    )


def _lacking(mapping: TableMapping, columns: Collection[str]) -> list[str]:
    needed = [theirs for part in mapping.parts if part.said_as not in mapping.optional for theirs in part.columns]
    return [theirs for theirs in needed if theirs not in columns and not any(name.startswith(f"{theirs}.") for name in columns)]


def _nearly(preset: TableMapping, columns: Collection[str]) -> str:
    """Why `columns` do not fit `preset`, where at least half of its required ones exist."""
    lacking = _lacking(preset, columns)
    needed = [part for part in preset.parts if part.said_as not in preset.optional]
    if not lacking:
        return f"--mapping {preset.name} would fit"
    return f"for --mapping {preset.name} there is no column {', '.join(lacking)}" if 2 * len(lacking) <= len(needed) else ""


# ---- what the first rows show ----


@dataclass(slots=True)
class Look:
    """What the first rows show of one column."""

    kind: str  # number, flag, answer (yes or no), time, text, list, image, empty, other; "": no row
    codes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))  # (N,) comparable values, NaN for none
    is_whole: bool = False  # whole numbers, or times
    image: str = ""  # what its images are decoded to
    unfit: str = ""  # why its images cannot be read
    gaps: int = 0  # cells without a value
    depth: int = 0  # of lists
    texts: Sequence[str] | None = None  # all that are different; None: too many

    @property
    def different(self) -> int:
        """How many values."""
        return len(np.unique(self.codes))


def _looks(files: TableFiles, names: Sequence[str], decimal: str) -> tuple[dict[str, Look], str]:
    """By column; and one of its numbers, where these have a decimal comma."""
    files.first = ROWS
    facts = facts_of(files, names, decimal=decimal, times=names, nulls=names)
    comma = next((one.samples[0] for one in facts.values() if decimal == "." and are_decimal_commas(one.samples)), "")
    if comma:
        facts = facts_of(files, names, decimal=",", times=names, nulls=names)
    looks = {name: _look(files, name, facts[name], "," if comma else decimal) for name in names}
    files.first = None
    return looks, comma


def _look(files: TableFiles, name: str, facts: Facts, decimal: str) -> Look:
    kind = files.kind_of(name)
    if is_bytes(kind):
        return _of_bytes(files, name)
    if facts.is_empty or facts.rows == facts.nulls:
        return Look("empty" if facts.rows else "")
    if facts.odd:
        return Look("other")
    if facts.has_lists or facts.kind == "list":
        depth, inner = facts.depth, kind
        while not is_text(kind) and hasattr(inner, "value_type"):
            depth, inner = depth + 1, inner.value_type
        return Look("list", depth=depth - (not is_text(kind)), gaps=facts.nulls)
    if facts.kinds and (facts.kind == "text" or (len(facts.kinds) > 1 and not facts.dtypes)):
        column = files.column(name)
        cells = pa.concat_arrays(
            [batch.column(0) for batch in files.query(f"SELECT CAST({column} AS VARCHAR) FROM {files.relation([name])}")]
        )
        texts = texts_of(files, [name], MOST_ROWS)[name]
        codes = np.asarray(cells.dictionary_encode().indices.fill_null(-1).to_numpy(), np.float64)
        if texts and {text.strip().lower() for text in texts} <= ANSWERS:
            lower = [None if text is None else float(text.strip().lower() in ("yes", "y")) for text in cells.to_pylist()]
            return Look("answer", np.array(lower, np.float64), True, gaps=facts.nulls, texts=texts)
        return Look("text", codes, gaps=facts.nulls, texts=texts)
    plan = plan_of(name, facts, (), name, [])
    if plan is None:
        return Look("other")
    sql, values = value_sql(files, Leaf(name, Columns.OBS, (), (plan,), False, plan.dtype), plan, decimal)
    query = f"SELECT CAST({sql} AS DOUBLE) AS v FROM {files.relation([name])}"
    codes = np.concatenate([batch.column(0).to_numpy(zero_copy_only=False) for batch in files.query(query, values)]).astype(
        np.float64
    )
    known = codes[~np.isnan(codes)]
    if plan.dtype.kind == "b" or np.isin(known, (0, 1)).all():
        return Look("flag", codes, True, gaps=facts.nulls)
    is_time = plan.cells == "microseconds" or facts.has_times
    return Look("time" if is_time else "number", codes, is_time or bool((known == np.floor(known)).all()), gaps=facts.nulls)


def _of_bytes(files: TableFiles, name: str) -> Look:
    """Images, where the first bytes of all cells say so; gray where none has colours."""
    column = files.column(name)
    query = f"SELECT {column} FROM {files.relation([name])} WHERE {column} IS NOT NULL LIMIT {MOST_IMAGES}"
    cells = [cell for batch in files.query(query) for cell in batch.column(0).to_pylist()]
    headers = [found for cell in cells if (found := header_of(cell)) is not None]
    if not headers or len(headers) < len(cells):
        return Look("other" if cells else "empty")
    kind = GRAY if all(one.is_gray for one in headers) else RGB
    shape = headers[0].height, headers[0].width
    unfit = next((why for cell in cells if (why := why_no_image(cell, kind, shape))), "")
    return Look("other", unfit=unfit) if unfit else Look("image", image=kind)


# ---- a draft ----


@dataclass(slots=True)
class Draft:
    """Roles of columns so far."""

    looks: Mapping[str, Look]
    roles: dict[str, list[str]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # by role: what its values show
    times: list[str] = field(default_factory=list)  # columns that are called like a time or a counter
    extra: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)  # roles of columns among these that may have one
    row_is_episode: bool = False
    ends: str = ""  # `episode_ends`
    gap: str = ""  # a duration

    def take(self, role: str, name: str, why: str = "") -> None:
        """Name a column for a role; `why`: what its values show."""
        self.roles.setdefault(role, []).append(name)
        if why:
            self.why[role] = why

    def drop(self, name: str, why: str) -> None:
        """Take a column out of its role."""
        for role in list(self.roles):
            self.roles[role] = [one for one in self.roles[role] if one != name]
            if not self.roles[role]:
                del self.roles[role]
        self.left_out[name] = why

    def one(self, role: str) -> NDArray[Any] | None:
        """(N,) the values of the column of a role."""
        found = self.roles.get(role)
        codes = self.looks[found[0]].codes if found and found[0] in self.looks else np.zeros(0)
        return codes if len(codes) else None

    def episodes(self) -> NDArray[Any] | None:
        """(N,) a number for each episode of each agent; None where no column of ids is known."""
        ids, agents = self.one(Columns.EPS_ID), self.one(Columns.AGENT_ID)
        if ids is None or agents is None:
            return ids
        return np.asarray(np.unique(np.stack([ids, agents]), axis=1, return_inverse=True)[1].reshape(-1), np.float64)

    def images(self, names: Collection[str]) -> list[str]:
        """Those of `names` that are images."""
        return [name for name in names if name in self.looks and self.looks[name].image]


def starting_mapping(source: Source, files: TableFiles, columns: Collection[str]) -> str:
    """TOML that names every one of `columns` once, those with unknown names as observations."""
    names = [name for name in columns if name][:MOST_COLUMNS]
    looks, comma = _looks(files, names, files.form.decimal)
    draft = Draft(looks)
    draft.row_is_episode = any(
        looks[name].kind == "list" and looks[name].depth == 1 and re.search(pattern, name.lower())
        for name in names
        for role, pattern in LIKELY
        if role in (Columns.REWARDS, *FLAGS)
    )
    rest = _by_values(draft, [name for name in names if not _by_name(draft, name)])
    categories: dict[str, Sequence[str]] = {}
    for name in rest:
        look = looks[name]
        if Columns.REWARDS not in draft.roles and look.kind in ("number", "flag") and COSTS.match(name.lower()):
            draft.take(Columns.REWARDS, f"-{name}", "a cost is a negative reward")
        elif Columns.REWARDS not in draft.roles and look.kind in ("number", "flag") and MAYBE_REWARDS.match(name.lower()):
            draft.left_out[name], draft.maybe[name] = "may be a reward", Columns.REWARDS
        elif draft.images([f"{name.removesuffix('.path')}.bytes"]):
            draft.left_out[name] = "where an image was"
        elif draft.row_is_episode and look.kind != "list":
            draft.left_out[name] = "no list of a value a step"
        elif look.kind in ("", "number", "flag", "list", "image"):
            draft.take(Columns.OBS, name)
        elif (
            look.kind == "text" and Columns.EPS_ID not in draft.roles and look.different >= FEWEST_IDS and _in_runs(look.codes)
        ):
            draft.left_out[name], draft.maybe[name] = "may be an id: rows of one value follow each other", Columns.EPS_ID
        elif look.kind in ("text", "answer") and look.texts and _are_categories(look.texts, len(look.codes)):
            draft.take(Columns.OBS, name)
            categories[name] = look.texts
        else:
            draft.left_out[name] = _why_left_out(look)
    for name in draft.roles.get(Columns.ACTIONS, ()):
        if looks[name].kind in ("text", "answer") and looks[name].texts:
            categories[name] = looks[name].texts or ()
    _divide(draft, len(files.files))
    for needed in (Columns.OBS, Columns.ACTIONS):
        draft.roles.setdefault(needed, ["?"])
    if draft.roles[Columns.ACTIONS] == ["?"]:
        draft.why[Columns.ACTIONS] = "the column that was chosen or commanded; take it out of obs"
    if Columns.NEXT_OBS in draft.roles and part_names(draft, Columns.NEXT_OBS) != part_names(draft, Columns.OBS):
        draft.left_out |= dict.fromkeys(draft.roles.pop(Columns.NEXT_OBS), "next observations lack parts of the observations")
    return _tried(source, draft, categories, files.form, comma)


def _divide(draft: Draft, files: int) -> None:
    """What ends an episode, where no column of ids or flags says it."""
    if draft.row_is_episode or draft.roles.keys() & {Columns.EPS_ID, STARTS, *FLAGS}:
        return
    t = draft.one(Columns.T)
    if files > 1:
        draft.take(Columns.EPS_ID, FILE_ID, "each file is an episode")
    elif t is None:
        return
    elif draft.looks[draft.roles[Columns.T][0]].kind == "time":
        steps = np.diff(np.sort(t[~np.isnan(t)]))
        usual = float(np.median(steps)) if len(steps) else 0.0
        if usual > 0 and (steps > LONG_GAP * usual).any():
            draft.gap = f"{max(1, round(LONG_GAP * usual / 2e6))}s"
    elif (t[1:] <= t[:-1]).any():
        draft.ends = "t"


def _tried(source: Source, draft: Draft, categories: dict[str, Sequence[str]], form: CsvForm, comma: str) -> str:
    """The text of a mapping that the first rows fit: columns that do not fit become comments."""
    text = written(draft, categories, form, comma)
    for _ in range(TRIES):
        if draft.roles[Columns.ACTIONS] == ["?"] or draft.roles[Columns.OBS] == ["?"]:
            return text
        error = source.tried(mapping_of(text, "proposal"), ROWS)
        if error is None:
            return text
        said = str(error)
        names = [name for name in draft.looks if re.search(rf"column '?{re.escape(name)}'?[ ,:]", said)]
        wrong = next(
            (name for name in names if any(name in draft.roles.get(role, ()) for role in (Columns.OBS, Columns.NEXT_OBS))), None
        )
        if wrong is None or draft.roles[Columns.OBS] == [wrong]:
            what = said.splitlines()[0]
            return f"# Not complete: {what}\n{text}"
        draft.drop(wrong, said.splitlines()[0].strip())
        categories.pop(wrong, None)
        text = written(draft, categories, form, comma)
    return text


def _by_name(draft: Draft, name: str) -> bool:
    """Whether the column's name says what it is, and its values do not contradict that."""
    look = draft.looks[name]
    if EXTRAS.match(name.lower()):
        draft.extra.append(name)
        return True
    role = next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), "")
    if look.kind == "image" and role != Columns.NEXT_OBS:
        return False
    steps = ("list",) if draft.row_is_episode and look.depth == 1 else ()
    fits = {
        Columns.EPS_ID: look.kind not in ("list", "other"),
        Columns.T: look.kind in ("", "number", "time", "flag", *steps),
        Columns.AGENT_ID: look.kind in ("", "text")
        or ((look.is_whole or look.kind == "answer") and look.different <= MOST_TEXTS),
        Columns.REWARDS: look.kind in ("", "number", "flag", *steps),
        Columns.ACTIONS: look.kind not in ("time", "other", "empty"),
        STARTS: look.kind in ("flag", "answer"),
        **dict.fromkeys(FLAGS, look.kind in ("", "flag", "answer", "empty", *steps)),
    }
    if not role or not fits.get(role, True):
        return False
    if role == Columns.T and not draft.row_is_episode:
        draft.times.append(name)
    elif role in VECTORS or role not in draft.roles:
        draft.take(role, name)
    else:
        draft.left_out[name] = f"looks like {ROLE_WORDS.get(role, role)} too"
    return True


def _by_values(draft: Draft, names: list[str]) -> list[str]:
    """Those of `names` whose values do not show that they are ids, times or ends."""
    left = []
    for name in names:
        look = draft.looks[name]
        if ANY_ID.search(name.lower()) and look.kind != "image":
            rows = len(look.codes)
            if Columns.EPS_ID not in draft.roles and rows and look.different < rows and _in_runs(look.codes):
                draft.take(Columns.EPS_ID, name, "rows of one value follow each other")
            else:
                draft.left_out[name], draft.maybe[name] = "looks like an id", Columns.EPS_ID
        else:
            left.append(name)
    taken = ""
    if Columns.EPS_ID not in draft.roles and (found := _episodes(draft, left)):
        taken = _taken(draft, Columns.EPS_ID, found)
    left = [name for name in left if name != taken]
    if found := _order(draft, left):
        taken = _taken(draft, Columns.T, found)
    _leave_out_times(draft)
    left = [name for name in left if name != taken]
    if not draft.roles.keys() & set(FLAGS) and (found := _end(draft, left)):
        taken = _taken(draft, Columns.DONES, found)
    return [name for name in left if name != taken]


def _taken(draft: Draft, role: str, found: tuple[str, str]) -> str:
    draft.take(role, *found)
    return found[0]


def _in_runs(codes: NDArray[Any]) -> bool:
    """Whether the rows of each value stand together, two of them on average."""
    runs = 1 + int((codes[1:] != codes[:-1]).sum())
    return 2 <= runs <= len(codes) / 2 and runs == len(np.unique(codes))


def _episodes(draft: Draft, names: Sequence[str]) -> tuple[str, str] | None:
    """A column whose value changes exactly where another one, which grows in between, falls back."""
    counters = [name for name in draft.times if draft.looks[name].kind != "time"]  # dates go on from episode to episode
    for order in counters or names:
        t = draft.looks[order].codes
        if len(t) < ENOUGH_ROWS or not (falls := t[1:] <= t[:-1]).any():
            continue
        for name in names:
            look = draft.looks[name]
            may_be = name != order and len(look.codes) == len(t) and (look.is_whole or look.kind == "text")
            if may_be and _in_runs(look.codes) and ((look.codes[1:] != look.codes[:-1]) == falls).all():
                return name, f"changes where {string(order)} falls back"
    return None


def _order(draft: Draft, names: Sequence[str]) -> tuple[str, str] | None:
    """The column that orders the rows of an episode, and what its values show, where its name does not say it.

    Of the columns that grow from row to row of each episode: one that is called a counter, because only a counter shows that
    steps are missing; then a date or time, because a number may grow by itself (a distance, a sum); then a number that is
    called a time; then any number. Where none grows, or no ids are known, it is the first that is called a time.
    """
    episodes = draft.episodes()
    growing = [name for name in sorted([*draft.times, *names], key=lambda name: _rank(draft, name)) if _grows(draft, name)]
    called = [name for name in draft.times if not _repeats(draft, name)]
    chosen = growing[:1] if growing and (episodes is not None or not called) else called[:1]
    if not chosen:
        return None
    shown = "grows from row to row" + ("" if episodes is None else f" of each {string(draft.roles[Columns.EPS_ID][0])}")
    return chosen[0], "" if chosen[0] in draft.times else shown


def _rank(draft: Draft, name: str) -> int:
    """How likely a column that grows is the order of the rows: 0 is the likeliest."""
    look, is_called = draft.looks[name], name in draft.times
    if is_called and COUNTER.match(name.lower()):
        return 0
    return 1 if look.kind == "time" else 2 if is_called else 3 if look.is_whole else 4


def _grows(draft: Draft, name: str) -> bool:
    """Whether a column grows from row to row of each episode; without ids, of all rows."""
    look, episodes = draft.looks[name], draft.episodes()
    if len(look.codes) < ENOUGH_ROWS or look.kind not in ("number", "time") or not (look.is_whole or episodes is not None):
        return False
    rows = np.arange(len(look.codes)) if episodes is None else np.argsort(episodes, kind="stable")
    same = np.ones(len(rows) - 1, np.bool_) if episodes is None else episodes[rows][1:] == episodes[rows][:-1]
    return bool(same.sum() >= len(rows) / 2 and (look.codes[rows][1:] > look.codes[rows][:-1])[same].all())


def _repeats(draft: Draft, name: str) -> bool:
    """Whether a date or time stands in two rows of one episode, which therefore it does not order."""
    look, episodes = draft.looks[name], draft.episodes()
    if look.kind != "time" or episodes is None:
        return False
    cells = np.stack([episodes, look.codes])[:, ~np.isnan(look.codes)]
    return bool(np.unique(cells, axis=1).shape[1] < cells.shape[1])


def _leave_out_times(draft: Draft) -> None:
    """What is called a time and is not the order: no observation, but offered where nothing else is the order."""
    for name in draft.times:
        if name not in draft.roles.get(Columns.T, ()):
            repeats = f"rows of one {string(draft.roles[Columns.EPS_ID][0])} share its values" if _repeats(draft, name) else ""
            draft.left_out[name] = f"looks like a time, but {repeats}" if repeats else "looks like a time too"
            draft.maybe[name] = Columns.T


def _end(draft: Draft, names: Sequence[str]) -> tuple[str, str] | None:
    """A truth value that is true in last rows of episodes alone."""
    ids, t = draft.one(Columns.EPS_ID), draft.one(Columns.T)
    if ids is None or len(ids) < ENOUGH_ROWS:
        return None
    rows = np.argsort(ids, kind="stable") if t is None else np.lexsort((t, ids))
    last = np.ones(len(rows), np.bool_)
    last[:-1] = ids[rows][1:] != ids[rows][:-1]
    for name in names:
        if draft.looks[name].kind in ("flag", "answer"):
            true = draft.looks[name].codes[rows] == 1
            if true.any() and not last.all() and not (true & ~last).any():
                return name, f"true in last rows of {string(draft.roles[Columns.EPS_ID][0])} alone"
    return None


def _are_categories(texts: Sequence[str], rows: int) -> bool:
    """Whether so many different texts in so many rows may be, and are no dates."""
    few = len(texts) <= MOST_TEXTS and (2 * len(texts) <= rows or rows <= 2 * ENOUGH_ROWS)
    return few and not any(map(DAY_FIRST.match, texts))


def _why_left_out(look: Look) -> str:
    if look.kind == "empty":
        return "no value in any row"
    if look.kind == "time":
        return "looks like a time"
    if look.unfit:
        return look.unfit
    if look.kind not in ("text", "answer"):
        return "holds neither numbers nor text"
    if look.texts and (ambiguous := next(filter(DAY_FIRST.match, look.texts), "")):
        return f"dates such as {ambiguous[:40]!r} may begin with a day or a month: write 2024-03-01"
    return f"text, with {'many' if look.texts is None else len(look.texts)} different values"


# ---- its text ----


def written(draft: Draft, categories: Mapping[str, Sequence[str]], form: CsvForm, comma: str) -> str:
    """The TOML. `form`: of a CSV file, as far as it has to be said; `comma`: one of its numbers with a decimal comma."""
    lines = ['action_scale = "env"  # or "normalized": train-bc wants to know it']
    lines += ['rows = "episodes"  # cells hold lists, a value a step'] * draft.row_is_episode
    lines += ['episode_ends = "t"  # an episode begins where t does not grow'] * (draft.ends == "t")
    lines += [f'gap = "{draft.gap}"  # an episode begins after a longer step of t'] * bool(draft.gap)
    lines += ["", "[columns]"]
    for ours, names in _parts(draft):
        why = f"  # {draft.why[ours]}" if ours in draft.why else ""
        lines.append(f"{key(ours)} = {string(names[0]) if len(names) == 1 else array(names)}{why}")
    for name, why in draft.left_out.items():
        role = draft.maybe.get(name)
        is_offered = role is not None and role not in draft.roles
        lines.append(f"# {role} = {string(name)}  # {why}" if is_offered else f"# left out: {string(name)}: {why}")
    if draft.extra:
        lines += ["", "[extra]", *(f"action_logp = {string(name)}" for name in draft.extra[:1])]
    if categories:
        lines += ["", "[categories]  # all texts", *(f"{key(name)} = {array(texts)}" for name, texts in categories.items())]
    images = draft.images([name for names in draft.roles.values() for name in names])
    if images:
        kinds = (f"{key(name)} = {string(draft.looks[name].image)}" for name in images)
        lines += ["", "[images]  # decoding needs pip install 'offline-cli[images]'", *kinds]
    lines += _gaps(draft)
    decimal = f'decimal = ","  # as in {string(comma)}'
    said = []
    if form.delimiter is not None:
        said.append(f"delimiter = {string(form.delimiter)}  # the file's first line is one name otherwise")
    if form.encoding != AS_USUAL.encoding:
        said.append(f"encoding = {string(form.encoding)}  # perhaps: the names are not UTF-8")
    if said or comma:
        lines += ["", "[csv]", *said, *([decimal] if comma else ())]
    return "\n".join(lines) + "\n"


def _gaps(draft: Draft) -> Iterator[str]:
    """What to do about cells without a value, for people to choose."""
    names = [name for role in FILLABLE for name in draft.roles.get(role, ())]
    gaps = {name: draft.looks[name].gaps for name in names if name in draft.looks}
    if any(gaps.values()):
        yield from (
            "",
            "# An empty cell costs its episode, unless it is filled, or split_at_gaps = true stands above [columns]:",
            "# [fill]",
        )
    for name in filter(gaps.get, gaps):
        look = draft.looks[name]
        others = ', or "mean"' * (look.kind == "number" and not look.is_whole)
        others += ", or a number" * (look.kind in ("number", "flag"))
        yield f'# {key(name)} = "previous"  # the value before{others}; {gaps[name]:,} of the cells seen are empty'


def part_names(draft: Draft, role: str) -> set[str]:
    """What the parts of a role are called; an empty name: it is one array."""
    return {ours.partition(".")[2] for ours, _ in _parts(draft) if ours.partition(".")[0] == role}


def _parts(draft: Draft) -> Iterator[tuple[str, list[str]]]:
    """Our names, each with theirs: images and matrices, which are not stacked into vectors, are parts of a Dict."""
    first = [Columns.EPS_ID, Columns.AGENT_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS]
    for role in [name for name in first if name in draft.roles] + sorted(set(draft.roles) - set(first)):
        names = draft.roles[role]
        most = 2 if draft.row_is_episode else 1
        apart = [name for name in names if name in draft.looks and (draft.looks[name].image or draft.looks[name].depth > most)]
        if not apart or len(names) == 1 or role not in VECTORS:
            yield role, names
            continue
        last = {name: name.removesuffix(".bytes").rpartition(".")[2] for name in apart}
        last = {name: short.removeprefix("next_").removeprefix("new_") or short for name, short in last.items()}
        called = last if len(set(last.values())) == len(apart) else {name: name.replace(".", "_") for name in apart}
        yield from ((f"{role}.{called[name]}", [name]) for name in apart)
        numbers = [name for name in names if name not in called]
        vector = next(name for name in ("state", "numbers", "".join(called.values())) if name not in called.values())
        yield from ((f"{role}.{vector}", numbers) for _ in numbers[:1])


def array(texts: Sequence[str]) -> str:
    """An array of strings."""
    return f"[{', '.join(map(string, texts))}]"


def key(name: str) -> str:
    """A key, in quotes where it needs them."""
    return name if name.isidentifier() and name.isascii() else string(name)


def string(text: str) -> str:
    """JSON's strings are TOML's too; a character that a terminal would not show is written as a TOML escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(
        letter if letter.isprintable() else f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
        for letter in quoted
    )
