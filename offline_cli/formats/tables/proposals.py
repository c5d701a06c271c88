"""What is proposed to people for columns that a mapping leaves open: text to read, correct and copy, and never used unread.

* `starting_mapping`: a draft of a mapping, by the names of columns and, where rows are at hand, by their values. A column that
  looks like an id, a time, a reward or an end is no observation: it is offered in that place, or left out with a comment.
* `hint_for_text`: what to write for a column of text: its categories, all of them, or decimal commas, or dates in a form
  that has one meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.packed import looks_packed
from offline_cli.formats.tables.cells import DAY_FIRST_OR_MONTH, hint_for_cells
from offline_cli.formats.tables.column_looks import Look, Seen, looked

__all__ = ["MAX_GUESSED", "TextColumn", "hint_for_text", "looks_like_ids", "starting_mapping"]

LIKELY: Final = (
    (Columns.EPS_ID, r"(^|_)(eps?|episode|traj(ectory)?|ride|run|session|rollout|demo)(_?(id|index|no|number|nr))?$"),
    (Columns.AGENT_ID, r"^(agent|player)(_?(id|name|index|no|number|nr))?$"),
    (Columns.T, r"^(t|step|steps|timestep|time_?step|time|timestamp|stamp|tick|frame(_index)?|date(_?time)?|.*_step|.*_time)$"),
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
EXTRAS: Final = re.compile(r"^(logp|logprobs?(_t)?|action_logp)$")
MAYBE_REWARDS: Final = re.compile(r"^(gains?|clicks?|clicked|profits?|pnl|revenue|payoff|payout|utility)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
MAX_GUESSED: Final = 64  # columns; a longer list is of no use
MOST_TEXTS: Final = 64  # of a column that is proposed as an observation
ENOUGH_ROWS: Final = 5  # for what values alone show
ROLE_WORDS: Final = {
    Columns.EPS_ID: "an id",
    Columns.AGENT_ID: "an agent",
    Columns.T: "a time",
    Columns.REWARDS: "a reward",
} | dict.fromkeys(FLAGS, "an end")


def looks_like_ids(column: str) -> bool:
    """Whether a column of that name holds ids of episodes."""
    return bool(re.search(dict(LIKELY)[Columns.EPS_ID], column.lower()))


# ---- columns of text ----


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of text that a mapping names for numbers."""

    column: str
    ours: str
    samples: Sequence[str]

    def problem(self, texts: Sequence[str] | None, most: int) -> str:
        """What is wrong, and what to write; `texts`: all that are different, sorted, None where these are more than `most`."""
        if any(map(looks_packed, self.samples)):
            return (
                f"{self.ours}: column '{self.column}' holds RLlib's packed values, which are read from Parquet and SampleBatch "
                "files only: record with output_compress_columns=[], or as Parquet"
            )
        shown = ", ".join(repr(text[:40]) for text in self.samples[:3])
        return f"{self.ours}: column '{self.column}' holds text ({shown}), not numbers; " + hint_for_text(
            self.column, self.samples, texts, most
        )


def hint_for_text(column: str, samples: Sequence[str], texts: Sequence[str] | None, most: int) -> str:
    """What to write for a column of text; `texts` as in `TextColumn.problem`."""
    if known := hint_for_cells(column, samples):
        return known
    if texts is None:
        return f"it has more than {most} different ones, which are too many for categories: write numbers, or leave it out"
    return f"if the texts are categories, number them in the mapping: [categories] {_key(column)} = {_array(texts)}"


# ---- a mapping to start from ----


@dataclass(slots=True)
class _Draft:
    """Roles of columns so far."""

    looks: Mapping[str, Look]
    roles: dict[str, list[str]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)  # by role: what its values show
    extra: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)  # roles of columns among these that may have one

    def take(self, role: str, name: str, why: str = "") -> None:
        """Name a column for a role; `why`: what its values show."""
        self.roles.setdefault(role, []).append(name)
        if why:
            self.why[role] = why

    def one(self, role: str) -> NDArray[Any] | None:
        """(N,) the values of the column of a role."""
        found = self.roles.get(role)
        codes = self.looks[found[0]].codes if found else np.zeros(0)
        return codes if len(codes) else None


def starting_mapping(columns: Collection[str], seen: Seen | None = None, delimiter: str | None = None) -> str:
    """TOML that names every one of `columns` once, those with unknown names as observations; `seen`: rows of the table;
    `delimiter`: of a CSV file, where it has to be said.
    """
    names = [name for name in columns if name][:MAX_GUESSED]
    draft = _Draft({name: looked(seen, name) for name in names})
    rest = [name for name in names if not _by_name(draft, name)]
    rest = _by_values(draft, rest)
    categories: dict[str, Sequence[str]] = {}
    for name in rest:
        look, texts = draft.looks[name], None if seen is None else seen.texts.get(name)
        if Columns.REWARDS not in draft.roles and look.kind in ("number", "flag") and MAYBE_REWARDS.match(name.lower()):
            draft.left_out[name], draft.maybe[name] = "may be a reward", Columns.REWARDS
        elif look.kind in ("", "number", "flag", "list"):
            draft.take(Columns.OBS, name)
        elif look.kind in ("text", "answer") and seen is not None and texts and _are_categories(texts, seen.rows):
            draft.take(Columns.OBS, name)
            categories[name] = texts
        else:
            draft.left_out[name] = _why_left_out(look, texts)
    for needed in (Columns.OBS, Columns.ACTIONS):
        draft.roles.setdefault(needed, ["?"])
    for name in draft.roles[Columns.ACTIONS]:
        if (
            name != "?"
            and draft.looks[name].kind in ("text", "answer")
            and seen is not None
            and (texts := seen.texts.get(name))
        ):
            categories[name] = texts
    return _written(draft, categories, "" if seen is None or seen.whole else f" of the first {seen.rows:,} rows", delimiter)


def _by_name(draft: _Draft, name: str) -> bool:
    """Whether the column's name says what it is, and its values do not contradict that."""
    look = draft.looks[name]
    if EXTRAS.match(name.lower()):
        draft.extra.append(name)
        return True
    role = next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), "")
    fits = {
        Columns.T: look.kind in ("", "number", "time", "flag"),
        Columns.AGENT_ID: look.kind in ("", "text")
        or ((look.is_whole or look.kind == "answer") and look.different <= MOST_TEXTS),
        Columns.REWARDS: look.kind in ("", "number", "flag"),
        **dict.fromkeys(FLAGS, look.kind in ("", "flag", "answer", "empty")),
    }
    if not role or not fits.get(role, True):
        return False
    if role in VECTORS or role not in draft.roles:
        draft.take(role, name)
    else:
        draft.left_out[name] = f"looks like {ROLE_WORDS.get(role, role)} too"
    return True


def _by_values(draft: _Draft, names: list[str]) -> list[str]:
    """Those of `names` whose values do not show that they are ids, times or ends."""
    left = []
    for name in names:
        look = draft.looks[name]
        if ANY_ID.search(name.lower()):
            rows = len(look.codes)
            if Columns.EPS_ID not in draft.roles and rows and look.different < rows and _in_runs(look.codes):
                draft.take(Columns.EPS_ID, name, "rows of one value follow each other")
            else:
                draft.left_out[name], draft.maybe[name] = "looks like an id", Columns.EPS_ID
        else:
            left.append(name)
    for role, finder in ((Columns.EPS_ID, _episodes), (Columns.T, _order), (Columns.DONES, _end)):
        found = None if _has(draft, role) else finder(draft, left)
        if found is not None:
            draft.take(role, *found)
            left.remove(found[0])
    return left


def _has(draft: _Draft, role: str) -> bool:
    return any(name in draft.roles for name in (FLAGS if role == Columns.DONES else (role,)))


def _in_runs(codes: NDArray[Any]) -> bool:
    """Whether the rows of each value stand together, two of them on average."""
    runs = 1 + int((codes[1:] != codes[:-1]).sum())
    return 2 <= runs <= len(codes) / 2 and runs == len(np.unique(codes))


def _episodes(draft: _Draft, names: Sequence[str]) -> tuple[str, str] | None:
    """A column whose value changes exactly where another one, which grows in between, falls back."""
    for order in draft.roles.get(Columns.T, names):
        t = draft.looks[order].codes
        if len(t) < ENOUGH_ROWS or not (falls := t[1:] <= t[:-1]).any():
            continue
        for name in names:
            look = draft.looks[name]
            may_be = name != order and len(look.codes) == len(t) and (look.is_whole or look.kind == "text")
            if may_be and _in_runs(look.codes) and ((look.codes[1:] != look.codes[:-1]) == falls).all():
                return name, f"changes where {_string(order)} falls back"
    return None


def _order(draft: _Draft, names: Sequence[str]) -> tuple[str, str] | None:
    """A column that grows from row to row of each episode."""
    ids = draft.one(Columns.EPS_ID)
    for name in sorted(names, key=lambda name: not draft.looks[name].is_whole):
        look = draft.looks[name]
        if len(look.codes) < ENOUGH_ROWS or look.kind not in ("number", "time") or not (look.is_whole or ids is not None):
            continue
        rows = np.argsort(ids, kind="stable") if ids is not None else np.arange(len(look.codes))
        same = np.ones(len(rows) - 1, np.bool_) if ids is None else ids[rows][1:] == ids[rows][:-1]
        if same.sum() >= len(rows) / 2 and (look.codes[rows][1:] > look.codes[rows][:-1])[same].all():
            return name, "grows from row to row" + (
                "" if ids is None else f" of each {_string(draft.roles[Columns.EPS_ID][0])}"
            )
    return None


def _end(draft: _Draft, names: Sequence[str]) -> tuple[str, str] | None:
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
                return name, f"true in last rows of {_string(draft.roles[Columns.EPS_ID][0])} alone"
    return None


def _are_categories(texts: Sequence[str], rows: int) -> bool:
    """Whether so many different texts in so many rows may be, and are no dates."""
    few = len(texts) <= MOST_TEXTS and (2 * len(texts) <= rows or rows <= 2 * ENOUGH_ROWS)
    return few and not any(map(DAY_FIRST_OR_MONTH.match, texts))


def _why_left_out(look: Look, texts: Sequence[str] | None) -> str:
    if look.kind == "empty":
        return "no value in any row"
    if look.kind == "time":
        return "looks like a time"
    if look.kind not in ("text", "answer"):
        return "holds neither numbers nor text"
    if texts and (ambiguous := next(filter(DAY_FIRST_OR_MONTH.match, texts), "")):
        return f"dates such as {ambiguous[:40]!r} may begin with a day or a month: write 2024-03-01"
    return f"text, with {'many' if texts is None else len(texts)} different values"


# ---- TOML ----


def _written(draft: _Draft, categories: Mapping[str, Sequence[str]], bound: str, delimiter: str | None) -> str:
    scale = 'action_scale = "env"  # or "normalized": train-bc wants to know it'
    lines = [scale, "", "[columns]"]
    for ours in _in_order(draft.roles):
        why = f"  # {draft.why[ours]}" if ours in draft.why else ""
        lines.append(f"{ours} = {_toml(draft.roles[ours])}{why}")
    for name, why in draft.left_out.items():
        role = draft.maybe.get(name)
        is_offered = role is not None and role not in draft.roles
        lines.append(f"# {role} = {_string(name)}  # {why}" if is_offered else f"# left out: {_string(name)}: {why}")
    if draft.extra:
        lines += ["", "[extra]", *(f"action_logp = {_toml([name])}" for name in draft.extra[:1])]
    if categories:
        numbered = (f"{_key(name)} = {_array(texts)}" for name, texts in categories.items())
        lines += ["", f"[categories]  # all texts{bound}", *numbered]
    comma = next((look.comma for look in draft.looks.values() if look.comma), "")
    decimal = f'decimal = ","  # as in {_string(comma)}'
    if delimiter is not None:
        lines += ["", "[csv]", f"delimiter = {_string(delimiter)}  # the file's first line is one name otherwise"]
        lines += [decimal] if comma else []
    elif comma:
        lines.insert(1, f"csv.{decimal}")
    return "\n".join(lines) + "\n"


def _in_order(roles: Collection[str]) -> list[str]:
    first = [Columns.EPS_ID, Columns.AGENT_ID, Columns.T, Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.NEXT_OBS]
    return [name for name in first if name in roles] + sorted(set(roles) - set(first))


def _toml(names: Sequence[str]) -> str:
    return _string(names[0]) if len(names) == 1 else _array(names)


def _array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_string, texts))}]"


def _key(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else _string(name)


def _string(name: str) -> str:
    """JSON's strings are TOML's too; a character that a terminal would not show is written as a TOML escape."""
    quoted = json.dumps(name, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in quoted)


def _escape(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"
