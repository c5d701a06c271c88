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
from numpy.typing import NDArray

from offline_cli.checking.validate import Problem
from offline_cli.converting.operations.selecting import LONGEST
from offline_cli.reporting.survey import SLICES, Survey

RUN: Final = 20  # equal values in a row, from which a sensor counts as stuck
USUAL: Final = 0.5  # share of steps at which a channel changes that is measured
NEAR: Final = 0.02  # standard deviations between episodes that are nearly the same
NEIGHBOURS: Final = 12  # along a line, with which an episode is compared
NAMED: Final = 40  # episodes in a command
CONFLICT: Final = 0.1


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

    def as_dict(self) -> dict[str, Any]:
        """As `report --json` has it."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "numbers"}


def of_problem(problem: Problem, name: str, at: str) -> Sign:
    """A finding of `validate`; `at`: see `without`."""
    ids = list(problem.episodes)
    text = f"{problem.what}. To do: {problem.fix}."
    places = "; ".join(
        one.removeprefix(f"{problem.source}, ") for one in problem.places[:5] if not ids and one != problem.source
    )
    command = without(at, ids)
    if ids and not command and at:
        listed = f"offline-cli validate {at} --json > problems.json"
        command = f"{listed}; offline-cli filter {at} --drop-problems problems.json --out kept"
    command = "" if problem.severity == "note" else command
    return Sign(problem.severity, problem.code, f"{text} {places}".strip(), name, ids, command)


def without(at: str, ids: Sequence[str]) -> str:
    """The command that writes a source without these episodes, which ends with the name of the folder that it makes.

    `at`: the source and its options, as a shell takes them; empty where none does. Empty also where there are too many, or ids
    that no shell takes.
    """
    if not at or not ids or len(ids) > NAMED or not all(one.isprintable() for one in ids):
        return ""
    listed = ", ".join("'" + one.replace("'", "''") + "'" for one in ids)
    if len(condition := f"eps_id not in ({listed})") > LONGEST:
        return ""
    is_plain = not set('"$`\\!') & set(condition)  # then easier to read, and for cmd.exe too
    quoted = f'"{condition}"' if is_plain else shlex.quote(condition)
    return f"offline-cli filter {at} --where {quoted} --out kept"


def signs(survey: Survey, at: str) -> Iterator[Sign]:
    """Those of one dataset; `at`: see `without`."""
    if not len(survey.episodes):
        return
    for one in (*_stuck(survey), *_motion(survey), *_conflicts(survey)):
        one.command = without(at, one.episodes) if one.severity == "warning" else ""
        yield one


def _sign(severity: str, title: str, text: str, survey: Survey, numbers: NDArray[Any], command: str = "") -> Sign:
    known = numbers.tolist()
    return Sign(severity, title, text, survey.name, [survey.episodes.ids[one] for one in known], command, known)


def _stuck(survey: Survey) -> Iterator[Sign]:
    """Channels of observations that usually change and then hold one value for long, while others go on."""
    episodes = survey.episodes
    length, changes, longest = episodes["length"], episodes["changes"], episodes["longest"]
    observed, long = survey.columns("obs"), length >= RUN
    if not long.any():
        return
    usual = observed[np.quantile(changes[long][:, observed], 0.9, axis=0) > USUAL]
    bound = np.maximum(np.maximum(RUN, 0.2 * length[:, None]), 4 * np.median(longest[long], axis=0))
    held = (longest >= bound)[:, usual]
    held[(held.sum(axis=1) > len(usual) / 2) & (len(usual) > 1)] = False  # most stand: the robot rests, or the recording
    for column, channel in enumerate(usual.tolist()):
        found = np.flatnonzero(held[:, column])
        if not len(found):
            continue
        found = found[np.argsort(-longest[found, channel], kind="stable")]
        worst, name = found[0], survey.channels[channel].name
        many = f"{len(found):,} of {len(length):,} episodes" if len(found) > 1 else "1 episode"
        text = (
            f"{name} usually changes from step to step. In {many} it holds one value for long while others go on: in the worst"
            f" for {longest[worst, channel]:,} of {length[worst]:,} steps, from step {episodes['since'][worst, channel]:,}."
        )
        yield _sign("warning", f"Stuck sensor: {name}", text, survey, found)


def _motion(survey: Survey) -> Iterator[Sign]:
    kinds = (
        ("Jerky actions", 0.02, "actions change direction far more than in the others"),
        (
            "Actions stand still",
            0.3,
            "actions do not change for a far larger share of the steps than in the others",
        ),
    )
    long = survey.episodes["length"] >= 10
    for (title, least, words), values in zip(kinds, survey.motion(), strict=True):
        if long.sum() < 5:
            continue
        middle = np.median(values[long])
        spread = 1.4826 * np.median(np.abs(values[long] - middle))
        found = np.flatnonzero(long & (values > np.maximum(max(least, 2 * middle), middle + 6 * spread)))
        if len(found) and len(found) < 0.2 * long.sum():
            found = found[np.argsort(-values[found], kind="stable")]
            many = f"{len(found):,} episode{'s' * (len(found) > 1)}"
            text = f"In {many} {words}: {values[found[0]]:.3g} against a median of {middle:.3g}."
            yield _sign("warning", title, text, survey, found)


def _conflicts(survey: Survey) -> Iterator[Sign]:
    """Other actions at observations that are equal, number by number."""
    episode, _, values = survey.sample()
    observed, acted = survey.columns("obs"), survey.columns("actions")
    if not len(observed) or not len(acted) or any(survey.channels[i].at is None for i in (*observed, *acted)):
        return
    rows = np.ascontiguousarray(values[:, observed]) + 0.0
    _, group = np.unique(rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel(), return_inverse=True)
    several = np.bincount(group)[group] > 1
    if several.mean() < 0.05:
        return
    group, actions, episode = group[several], values[several][:, acted], episode[several]
    counts = np.bincount(group)
    if all(survey.channels[i].is_category for i in acted):
        _, choice = np.unique(actions, axis=0, return_inverse=True)
        pair, at, times = np.unique(np.stack([group, choice.ravel()], 1), axis=0, return_inverse=True, return_counts=True)
        most = np.zeros(len(counts), np.int64)
        np.maximum.at(most, pair[:, 0], times)
        odd = times[at.ravel()] < most[group]
        share, words = float(odd.mean()), "of the steps another action is taken than the most frequent one there"
    else:
        means = np.stack([np.bincount(group, column) / np.maximum(counts, 1) for column in actions.T], 1)
        apart = np.abs(actions - means[group]) / np.maximum(actions.std(0), 1e-12)
        odd = apart.max(1) > 0.5
        share, words = float(odd.mean()), "of the steps the action is more than half a standard deviation from the mean there"
    if share > CONFLICT:
        worst = np.argsort(-np.bincount(episode[odd], minlength=len(survey.episodes)), kind="stable")[:10]
        text = (
            f"{several.mean():.0%} of the steps have an observation that others have too, and at {share:.0%} {words}. Exploring"
            " policies and several experts do that, and cloning them gives a mixture; else an observation is missing."
        )
        yield _sign("note", "Conflicting actions at equal observations", text, survey, worst)


# ---- episodes that are nearly the same ----


def repeated(surveys: Sequence[Survey], places: Sequence[str]) -> Iterator[Sign]:
    """Episodes that come twice: within one dataset, and in two of them (leakage between train and val)."""
    kept = [survey for survey in surveys if len(survey.episodes)]
    groups: dict[tuple[str, ...], list[Survey]] = {}
    for survey in kept:
        groups.setdefault(tuple(one.path + str(one.at) for one in survey.channels), []).append(survey)
    for group in groups.values():
        number = np.concatenate([np.full(len(one.episodes), i) for i, one in enumerate(group)] or [np.zeros(0, np.int64)])
        own = np.concatenate([np.arange(len(one.episodes)) for one in group])
        moments = np.concatenate([one.episodes["moments"] for one in group]).astype(np.float64)
        length = np.concatenate([one.episodes["length"] for one in group])
        prints = np.concatenate([one.episodes["print"] for one in group])
        pairs = _near(moments, length, number)
        equal = prints[pairs[:, 0]] == prints[pairs[:, 1]]
        for first in range(len(group)):
            for second in range(first, len(group)):
                is_here = (number[pairs[:, 0]] == first) & (number[pairs[:, 1]] == second)
                if is_here.any():
                    of_second = np.unique(own[pairs[is_here, 1]])
                    exact = float(equal[is_here].mean())
                    places_of = {one.name: place for one, place in zip(surveys, places, strict=True)}
                    yield _twice(group[first], group[second], of_second, exact, places_of)


def _twice(one: Survey, other: Survey, numbers: NDArray[Any], exact: float, places: dict[str, str]) -> Sign:
    count = len(numbers)
    same = "the same, value for value," if exact == 1 else f"alike at {SLICES} steps, and {exact:.0%} of them the same,"
    are_small = all(channel.is_category for channel in other.channels if channel.kind == "obs")
    small = " In a small discrete environment episodes come to be equal by themselves." if are_small else ""
    severity = "note" if are_small else "warning"
    command = (
        without(places[other.name], [other.episodes.ids[one] for one in numbers.tolist()])
        if exact == 1 and not are_small
        else ""
    )
    what = f"{count:,} of the {len(other.episodes):,} episodes of {other.name} {'is' if count == 1 else 'are'}"
    if one is other:
        text = f"{what} {same} as an earlier one.{small}"
        return _sign(severity, "Repeated episodes", text, other, numbers, command)
    text = f"{what} {same} as one of {one.name}: with one for training and the other held out, scores are too good.{small}"
    return _sign(severity, f"Leakage between {one.name} and {other.name}", text, other, numbers, command)


@np.errstate(all="ignore")
def _near(moments: NDArray[np.float64], length: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """(P, 2) pairs of episodes of one length that are nearly the same, the earlier first; `number` (E,): their dataset's.

    The scale of a figure is its spread without outliers, in the dataset where that is least.

    Candidates are neighbours on two lines through the data, so that the time grows with the number of episodes, not its square.
    """
    quantiles = [np.quantile(moments[number == one], (0.16, 0.84), axis=0) for one in np.unique(number)]
    spreads = np.array([(high - low) / 2 for low, high in quantiles])
    deviation = np.where(spreads > 1e-9, spreads, np.inf).min(axis=0, initial=np.inf)
    deviation = np.where(np.isfinite(deviation), deviation, 0)
    scaled = np.where(deviation > 1e-9, (moments - moments.mean(0)) / np.where(deviation > 1e-9, deviation, 1), 0)
    lines = np.random.default_rng(2).standard_normal((scaled.shape[1], 2))
    found = []
    for line in (scaled @ lines).T:
        order = np.lexsort((line, length))
        for step in range(1, min(NEIGHBOURS, len(order) - 1) + 1):
            first, second = order[:-step], order[step:]
            alike = length[first] == length[second]
            first, second = first[alike], second[alike]
            apart = np.sqrt(np.square(scaled[first] - scaled[second]).mean(1))
            near = apart < NEAR
            found.append(np.column_stack([np.minimum(first, second)[near], np.maximum(first, second)[near]]))
    return np.unique(np.concatenate([np.zeros((0, 2), np.int64), *found]), axis=0)
