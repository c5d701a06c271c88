"""Signs that data is worse than it looks, which are no error: sensors that stop, episodes that come twice or in both train and
val, other actions at equal observations, actions that jerk or stand still.

Each is judged against the rest of the same data (medians), because no bound fits a robot and a card game.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from offline_cli.checking.validate import Problem
from offline_cli.columns import Columns
from offline_cli.converting.operations.selecting import LONGEST
from offline_cli.reporting.survey import SLICES, Survey

RUN: Final = 20  # equal values in a row, from which a sensor counts as stuck
USUAL: Final = 0.5  # share of steps at which a channel changes that is measured
NEAR: Final = 0.02  # standard deviations between episodes that are nearly the same
NEIGHBOURS: Final = 12  # along a line, with which an episode is compared
NAMED: Final = 40  # episodes in a command
PAIRS: Final = 12  # of equal episodes in a text
CONFLICT: Final = 0.1
MOTION: Final = (  # what of, the least that counts, and what it means
    ("Jerky actions", 0.02, "actions change direction far more than in the others"),
    ("Actions stand still", 0.3, "actions do not change for a far larger share of the steps than in the others"),
)


@dataclass(slots=True)
class Sign:
    """One thing that is wrong, or may be."""

    severity: str  # "error", "warning", "note"
    title: str
    text: str
    source: str  # name of the dataset
    episodes: list[str] = field(default_factory=list)  # ids, worst first
    command: str = ""
    numbers: list[int] = field(default_factory=list)  # of the episodes in its survey: an id alone may not tell agents apart

    @classmethod
    def of(cls, survey: Survey, severity: str, title: str, text: str, numbers: NDArray[Any], *, drop: bool) -> Sign:
        """About these episodes; `drop`: a command leaves them out."""
        ids = [survey.ids[one] for one in numbers.tolist()]
        return cls(severity, title, text, survey.name, ids, without(survey.at, ids) if drop else "", numbers.tolist())

    @classmethod
    def of_problem(cls, problem: Problem, survey: Survey) -> Sign:
        """A finding of `validate`."""
        ids = list(problem.episodes)
        places = [one.removeprefix(f"{problem.source}, ") for one in problem.places[:5] if not ids and one != problem.source]
        text = f"{problem.what}. To do: {problem.fix}. {'; '.join(places)}".strip()
        numbers = [number for number, name in enumerate(survey.ids) if name in problem.episodes]
        command = without(survey.at, ids)
        if ids and survey.at and not command:
            listed = f"offline-cli validate {survey.at} --json > problems.json"
            command = f"{listed}; offline-cli filter {survey.at} --drop-problems problems.json --out kept"
        is_kept = problem.severity == "note" or len(ids) >= len(survey)  # nothing would be left
        return cls(problem.severity, problem.code, text, survey.name, ids, "" if is_kept else command, numbers)

    def as_dict(self) -> dict[str, Any]:
        """As `report --json` has it."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "numbers"}


def without(at: str, ids: Sequence[str]) -> str:
    """The command that writes a source without these episodes, which ends with the name of the folder that it makes.

    `at`: see Survey. Empty without a source, or where there are too many, or ids that no shell takes.
    """
    listed = ", ".join("'" + one.replace("'", "''") + "'" for one in ids)
    condition = f"eps_id not in ({listed})"
    if not at or not 0 < len(ids) <= NAMED or not listed.isprintable() or len(condition) > LONGEST:
        return ""
    is_plain = not set('"$`\\!') & set(condition)  # then easier to read, and for cmd.exe too
    quoted = f'"{condition}"' if is_plain else shlex.quote(condition)
    return f"offline-cli filter {at} --where {quoted} --out kept"


def signs(survey: Survey) -> Iterator[Sign]:
    """Those of one dataset."""
    yield from _stuck(survey)
    yield from _motion(survey)
    yield from _conflicts(survey)


def _stuck(survey: Survey) -> Iterator[Sign]:
    """Channels of observations that usually change and then hold one value for long, while others go on."""
    length, changes, longest = survey["length"], survey["changes"], survey["longest"]
    if not (long := length >= RUN).any():
        return
    usual = np.quantile(changes[long], 0.9, axis=0) > USUAL
    working = np.quantile(longest[long], 0.2, axis=0, method="lower")  # as a fifth of the episodes has it
    bound = np.maximum(np.maximum(RUN, 0.2 * length[:, None]), 4 * working)
    held = (longest >= bound) & usual
    as_actions = held & (longest <= (survey["rests"] * length + 2)[:, None])
    rests = (as_actions.sum(1) > usual.sum() / 2) | (held.sum(1) == usual.sum())  # the robot, or the recording
    held[rests & (usual.sum() > 1)] = False
    for channel in np.flatnonzero(held.any(0)).tolist():
        found = np.flatnonzero(held[:, channel])
        found = found[np.argsort(-longest[found, channel], kind="stable")]
        worst, name = found[0], survey.channels[survey.numbers(Columns.OBS)[channel]].name
        many = f"{len(found):,} of {len(length):,} episodes" if len(found) > 1 else "1 episode"
        text = (
            f"{name} usually changes from step to step. In {many} it holds one value for long while others go on: in the worst"
            f" for {longest[worst, channel]:,} of {length[worst]:,} steps, from step {survey['since'][worst, channel]:,}."
        )
        yield Sign.of(survey, "warning", f"Stuck sensor: {name}", text, found, drop=True)


def _motion(survey: Survey) -> Iterator[Sign]:
    """Continuous actions that bend or rest far more than in other episodes, by the median absolute deviation."""
    long = survey["length"] >= 10
    for (title, least, words), values in zip(MOTION, survey.motion(), strict=True):
        if long.sum() < 5 or not len(values):
            continue
        middle = np.median(values[long])
        spread = 1.4826 * np.median(np.abs(values[long] - middle))
        found = np.flatnonzero(long & (values > max(least, 2 * middle, middle + 6 * spread)))
        if 0 < len(found) < 0.2 * long.sum():
            found = found[np.argsort(-values[found], kind="stable")]
            many = f"{len(found):,} episode{'s' * (len(found) > 1)}"
            text = f"In {many} {words}: {values[found[0]]:.3g} against a median of {middle:.3g}."
            yield Sign.of(survey, "warning", title, text, found, drop=True)


def _conflicts(survey: Survey) -> Iterator[Sign]:
    """Other actions at observations that are equal, number by number."""
    observed, acted = survey.numbers(Columns.OBS), survey.numbers(Columns.ACTIONS)
    if not len(observed) or not len(acted) or any(survey.channels[i].at is None for i in (*observed, *acted)):
        return
    episode, _, values = survey.sample()
    steps = pl.DataFrame({"episode": episode}).hstack(pl.DataFrame(values[:, observed] + 0.0, [f"o{i}" for i in observed]))
    steps = steps.hstack(pl.DataFrame(values[:, acted], names := [f"a{i}" for i in acted]))
    deviations = [max(float(one), 1e-12) for one in values[:, acted].std(0)]
    states = [f"o{i}" for i in observed]
    several = steps.filter(pl.len().over(states) > 1)
    share_of_several = len(several) / len(steps)
    if share_of_several < 0.05:
        return
    if all(survey.channels[i].is_category for i in acted):
        several = several.with_columns(times=pl.len().over(states + names))
        is_odd, words = (
            pl.col("times") < pl.col("times").max().over(states),
            "another action is taken than the most frequent one",
        )
    else:
        apart = [
            (pl.col(one) - pl.col(one).mean().over(states)).abs() / std for one, std in zip(names, deviations, strict=True)
        ]
        is_odd, words = pl.max_horizontal(apart) > 0.5, "the action is more than half a standard deviation from the mean"
    odd = several.filter(is_odd)
    if (share := len(odd) / len(several)) > CONFLICT:
        worst = odd["episode"].value_counts().sort(["count", "episode"], descending=[True, False])["episode"].head(10)
        text = (
            f"{share_of_several:.0%} of the steps have an observation that others have too, and at {share:.0%} of these {words}"
            " there. Exploring policies and several experts do that, and cloning them gives a mixture; else an observation is"
            " missing."
        )
        yield Sign.of(survey, "note", "Conflicting actions at equal observations", text, worst.to_numpy(), drop=False)


# ---- episodes that are nearly the same ----


def repeated(surveys: Sequence[Survey]) -> Iterator[Sign]:
    """Episodes that come twice: within one dataset, and in two of them (leakage between train and val)."""
    groups: dict[tuple[tuple[str, int | None], ...], list[Survey]] = {}
    for survey in surveys:
        groups.setdefault(tuple((one.path, one.at) for one in survey.channels), []).append(survey)
    for group in groups.values():
        number = np.repeat(np.arange(len(group)), [len(one) for one in group])
        own = np.concatenate([np.arange(len(one)) for one in group])
        moments, length, prints = (np.concatenate([one[name] for one in group]) for name in ("moments", "length", "print"))
        pairs = _near(moments.astype(np.float64), length, prints, number)
        exact, both = prints[pairs[:, 0]] == prints[pairs[:, 1]], number[pairs]
        for first, second in np.unique(both, axis=0).tolist():
            here = np.flatnonzero((both == (first, second)).all(1))
            here = here[np.argsort(~exact[here], kind="stable")]
            here = here[np.unique(pairs[here, 1], return_index=True)[1]]  # one partner each, if any an equal one
            for equal in (True, False):
                if len(alike := pairs[here[exact[here] == equal]]):
                    yield _twice(group[first], group[second], own[alike], equal)


def _twice(one: Survey, other: Survey, pairs: NDArray[Any], exact: bool) -> Sign:
    """`pairs` (P, 2): an episode of `one`, and of `other`; `exact`: they are equal in every value."""
    same = "the same, value for value, as" if exact else f"alike at {SLICES} steps to"
    is_small = all(channel.is_category for channel in other.channels if channel.kind == Columns.OBS)
    text = f"{len(pairs):,} of the {len(other):,} episodes of {other.name} {'is' if len(pairs) == 1 else 'are'} {same}"
    text += " an earlier one" if one is other else f" one of {one.name}"
    named = [
        f"{other.episode(later)} {'=' if exact else '~'} {one.episode(earlier)}" for earlier, later in pairs[:PAIRS].tolist()
    ]
    text += f": {', '.join(named)}{', ...' if len(pairs) > PAIRS else ''}."
    text += "" if one is other else " With one for training and the other held out, scores are too good."
    text += " In a small discrete environment episodes come to be equal by themselves." if is_small else ""
    title = "Repeated episodes" if one is other else f"Leakage between {one.name} and {other.name}"
    title += "" if exact else " (nearly equal)"
    return Sign.of(other, "note" if is_small else "warning", title, text, pairs[:, 1], drop=exact and not is_small)


@np.errstate(all="ignore")
def _near(
    moments: NDArray[np.float64], length: NDArray[np.int64], prints: NDArray[np.uint64], number: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(P, 2) pairs of episodes of one length that are the same, by their `prints` (E,), or nearly so, the earlier first.

    `number` (E,): of the dataset of each. The scale of a figure is its spread without outliers, in the dataset where that is
    least. Candidates are neighbours on two random lines through the data, so that the time grows with the number of episodes,
    not its square.
    """
    ends = [np.quantile(moments[number == one], (0.16, 0.84), axis=0) for one in np.unique(number)]
    spreads = np.array([(high - low) / 2 for low, high in ends])
    scale = np.where(spreads > 1e-9, spreads, np.inf).min(0)
    scale = np.where(np.isfinite(scale), scale, np.ptp(moments, axis=0))  # of a figure that is another in few episodes
    differs = scale > 1e-9
    scaled = ((moments - moments.mean(0)) / scale)[:, differs]
    found = [np.zeros((0, 2), np.int64)]
    for line in (scaled @ np.random.default_rng(2).standard_normal((scaled.shape[1], 2))).T:
        order = np.lexsort((line, length))
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            pairs = np.sort(np.column_stack([order[:-step], order[step:]]), 1)
            pairs = pairs[length[pairs[:, 0]] == length[pairs[:, 1]]]
            apart = np.sqrt(np.square(scaled[pairs[:, 0]] - scaled[pairs[:, 1]]).sum(1) / differs.sum())  # NaN: none differs
            found.append(pairs[(apart < NEAR) | (prints[pairs[:, 0]] == prints[pairs[:, 1]])])
    return np.unique(np.concatenate(found), axis=0)
