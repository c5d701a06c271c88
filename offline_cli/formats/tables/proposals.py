"""What is proposed to people for columns that a mapping leaves open: text to read, correct and copy, and never used unread.

* `starting_mapping`: a draft of a mapping, by the names of columns and, where rows are at hand, by their values. A column that
  looks like an id, a time, a reward or an end is no observation: it is offered in that place, or left out with a comment.
  PNG and JPEG are observations, with their line of `[images]`.
* `hint_for_text`: what to write for a column of text: its categories, all of them, or decimal commas, or dates in a form
  that has one meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.formats.rllib.packed import looks_packed
from offline_cli.formats.tables.cells import DAY_FIRST_OR_MONTH, hint_for_cells
from offline_cli.formats.tables.column_looks import Look, Seen, looked
from offline_cli.formats.tables.draft_mapping import Draft, array, key, part_names, string, written
from offline_cli.formats.tables.mapping import AS_USUAL, CsvForm

__all__ = ["MAX_GUESSED", "TextColumn", "hint_for_bytes", "hint_for_text", "looks_like_ids", "starting_mapping"]

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
COUNTER: Final = re.compile(r"^(t|step|steps|timestep|time_?step|tick|frame(_index)?|.*_step)$")
ANY_ID: Final = re.compile(r"(^|[_.])(id|ids|uuid|guid|key|index|idx)$")
BYTES: Final = frozenset({"binary", "large_binary"})
MAX_GUESSED: Final = 64  # columns; a longer list is of no use
MOST_TEXTS: Final = 64  # of a column that is proposed as an observation
ENOUGH_ROWS: Final = 5  # for what values alone show
FEWEST_IDS: Final = 5  # different texts, each in rows that follow each other: fewer may be modes
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
    return f"if the texts are categories, number them in the mapping: [categories] {key(column)} = {array(texts)}"


def hint_for_bytes(column: str, held: Collection[str]) -> str:
    """What to write for a column whose types are `held`; empty: nothing makes numbers of them."""
    return f'; if these are PNG or JPEG: [images] {key(column)} = "rgb"' if BYTES.issuperset(held) else ""


# ---- a mapping to start from ----


def starting_mapping(columns: Collection[str], seen: Seen | None = None, form: CsvForm = AS_USUAL) -> str:
    """TOML that names every one of `columns` once, those with unknown names as observations; `seen`: rows of the table;
    `form`: of a CSV file, as far as it has to be said.
    """
    names = [name for name in columns if name][:MAX_GUESSED]
    draft = Draft({name: looked(seen, name) for name in names})
    rest = [name for name in names if not _by_name(draft, name)]
    rest = _by_values(draft, rest)
    categories: dict[str, Sequence[str]] = {}
    for name in rest:
        look, texts = draft.looks[name], None if seen is None else seen.texts.get(name)
        if Columns.REWARDS not in draft.roles and look.kind in ("number", "flag") and MAYBE_REWARDS.match(name.lower()):
            draft.left_out[name], draft.maybe[name] = "may be a reward", Columns.REWARDS
        elif draft.images([f"{name.removesuffix('.path')}.bytes"]):
            draft.left_out[name] = "where an image was"
        elif look.kind in ("", "number", "flag", "list", "image"):
            draft.take(Columns.OBS, name)
        elif (
            look.kind == "text" and Columns.EPS_ID not in draft.roles and look.different >= FEWEST_IDS and _in_runs(look.codes)
        ):
            draft.left_out[name], draft.maybe[name] = "may be an id: rows of one value follow each other", Columns.EPS_ID
        elif look.kind in ("text", "answer") and seen is not None and texts and _are_categories(texts, seen.rows):
            draft.take(Columns.OBS, name)
            categories[name] = texts
        else:
            draft.left_out[name] = _why_left_out(look, texts)
    for needed in (Columns.OBS, Columns.ACTIONS):
        draft.roles.setdefault(needed, ["?"])
    if draft.roles[Columns.ACTIONS] == ["?"]:
        draft.why[Columns.ACTIONS] = "the column that was chosen or commanded; take it out of obs"
    for name in draft.roles[Columns.ACTIONS]:
        if (
            name != "?"
            and draft.looks[name].kind in ("text", "answer")
            and seen is not None
            and (texts := seen.texts.get(name))
        ):
            categories[name] = texts
    if Columns.NEXT_OBS in draft.roles and part_names(draft, Columns.NEXT_OBS) != part_names(draft, Columns.OBS):
        draft.left_out |= dict.fromkeys(draft.roles.pop(Columns.NEXT_OBS), "next observations lack parts of the observations")
    return written(draft, categories, "" if seen is None or seen.whole else f" of the first {seen.rows:,} rows", form)


def _by_name(draft: Draft, name: str) -> bool:
    """Whether the column's name says what it is, and its values do not contradict that."""
    look = draft.looks[name]
    if EXTRAS.match(name.lower()):
        draft.extra.append(name)
        return True
    role = next((ours for ours, pattern in LIKELY if re.search(pattern, name.lower())), "")
    if look.kind == "image" and role != Columns.NEXT_OBS:
        return False
    fits = {
        Columns.T: look.kind in ("", "number", "time", "flag"),
        Columns.AGENT_ID: look.kind in ("", "text")
        or ((look.is_whole or look.kind == "answer") and look.different <= MOST_TEXTS),
        Columns.REWARDS: look.kind in ("", "number", "flag"),
        **dict.fromkeys(FLAGS, look.kind in ("", "flag", "answer", "empty")),
    }
    if not role or not fits.get(role, True):
        return False
    if role == Columns.T:
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
    return few and not any(map(DAY_FIRST_OR_MONTH.match, texts))


def _why_left_out(look: Look, texts: Sequence[str] | None) -> str:
    if look.kind == "empty":
        return "no value in any row"
    if look.kind == "time":
        return "looks like a time"
    if look.unfit:
        return look.unfit
    if look.kind not in ("text", "answer"):
        return "holds neither numbers nor text"
    if texts and (ambiguous := next(filter(DAY_FIRST_OR_MONTH.match, texts), "")):
        return f"dates such as {ambiguous[:40]!r} may begin with a day or a month: write 2024-03-01"
    return f"text, with {'many' if texts is None else len(texts)} different values"
