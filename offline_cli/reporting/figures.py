"""Plots of a report: figures as plotly's JSON documents, and small ones as paths of SVG, which need no script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offline_cli.columns import Columns
from offline_cli.reporting.drawing import Json, figure, label, packed
from offline_cli.reporting.survey import Survey

POINTS: Final = 6_000  # of all datasets in a plot
LONGEST: Final = 80  # letters of an id beside a point
BINS: Final = 32  # of a small histogram
STRETCHES: Final = 24  # of time
SIZE: Final = (150, 36)  # of a small plot, pixels
MOST: Final = 240  # columns of a heatmap
CHOICES: Final = 64  # rows of one


class Part(NamedTuple):
    """Episodes that are compared with others: a dataset, or an agent in one."""

    name: str
    shade: str
    survey: Survey
    numbers: NDArray[np.int64]  # of the episodes

    def dots(self, x: NDArray[Any], y: NDArray[Any], episodes: NDArray[np.int64], **marker: Any) -> Json:
        """A trace of points that belong to these episodes."""
        texts = [label(self.survey.ids[number][:LONGEST]) for number in episodes.tolist()]
        look = {"color": self.shade, "size": 5, "opacity": 0.6, **marker}
        dots = {"type": "scatter", "mode": "markers", "x": packed(x), "y": packed(y), "text": texts}
        return {**dots, "name": label(self.name), "marker": look}


def some(count: int, most: int) -> NDArray[np.int64]:
    """Up to `most` numbers below `count`, evenly apart."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def histogram(parts: Sequence[Part], name: str, x: str) -> Json:
    """A figure of episodes, over common ranges."""
    norm = "probability" if len(parts) > 1 else ""
    traces: list[Json] = []
    for part in parts:
        values = part.survey[name][part.numbers]
        values = values[np.isfinite(values)]
        bars = {
            "type": "histogram",
            "x": packed(values[some(len(values), 5 * POINTS // len(parts))]),
            "histnorm": norm,
            "bingroup": 1,
            "nbinsx": BINS,
        }
        look = {"color": part.shade, "opacity": 0.6 if norm else 0.9}
        traces.append({**bars, "name": label(part.name), "marker": look})
    return figure(traces, x, "share of episodes" if norm else "episodes", barmode="overlay")


def over_episodes(parts: Sequence[Part]) -> Json:
    """Return of each episode in the order of the data."""
    shown = [(part, part.numbers[some(len(part.numbers), POINTS // (len(parts) + 1))]) for part in parts]
    traces = [part.dots(numbers, part.survey["return"][numbers], numbers) for part, numbers in shown]
    return figure(traces, "episode, in the order of the data", "return")


def coverage(parts: Sequence[Part]) -> Json | None:
    """Sampled observations on their two principal directions, common to all; None: there are no two channels in common."""
    places = [{(one.path, one.at): i for i, one in enumerate(part.survey.channels)} for part in parts]
    common = [one for one in places[0] if one[0].startswith(Columns.OBS) and all(one in other for other in places)]
    samples = []
    for part, at in zip(parts, places, strict=True):
        episode, _, values = part.survey.sample()
        rows = some(len(values), POINTS // (len(parts) + 1))
        samples.append((episode[rows], np.nan_to_num(values[rows][:, [at[one] for one in common]], posinf=0, neginf=0)))
    whole = np.concatenate([values for _, values in samples])
    deviation = whole.std(0)
    use = (deviation > 1e-12) & np.isfinite(deviation)
    if use.sum() < 2:
        return None
    middle = whole.mean(0)[use]
    _, strength, directions = np.linalg.svd((whole[:, use] - middle) / deviation[use], full_matrices=False)
    shares = np.square(strength) / np.square(strength).sum()
    traces = []
    for part, (episode, values) in zip(parts, samples, strict=True):
        x, y = directions[:2] @ ((values[:, use] - middle) / deviation[use]).T
        bar = {"colorscale": "Viridis", "colorbar": {"title": {"text": "return"}, "thickness": 10}}
        look = {"color": packed(part.survey["return"][episode]), **bar} if len(parts) == 1 else {}
        traces.append(part.dots(x, y, episode, size=4, **look))
    return figure(traces, f"first direction ({shares[0]:.0%} of the variance)", f"second ({shares[1]:.0%})", 380)


def actions_by_episode(survey: Survey) -> Json | None:
    """Shares of the choices of a discrete action, or means of continuous ones, of sampled steps over neighbouring episodes."""
    episode, _, values = survey.sample()
    acted = survey.numbers(Columns.ACTIONS)
    if not len(acted):
        return None
    groups = np.linspace(0, len(survey), min(MOST, len(survey)), endpoint=False).astype(np.int64)  # first episode of each
    group = np.searchsorted(groups, episode, "right") - 1
    counts = np.maximum(np.bincount(group, minlength=len(groups)), 1)
    if len(acted) == 1 and survey.channels[acted[0]].is_category:
        choices, row = np.unique(values[:, acted[0]].astype(np.int64), return_inverse=True)
        known = survey.meanings.by_path.get(Columns.ACTIONS, ())
        texts = dict(enumerate((known[0].categories or ()) if len(known) == 1 else ()))
        names = [f"{one} {texts.get(one, '')}".strip() for one in choices.tolist()]
        table = np.zeros((len(choices), len(groups)))
        np.add.at(table, (row.ravel(), group), 1)
        table, what, look = table / counts, "share", {"colorscale": "Viridis", "zmin": 0, "zmax": 1}
    else:
        names, finite = [survey.channels[i].name for i in acted], np.nan_to_num(values[:, acted], posinf=0, neginf=0)
        table = np.stack([np.bincount(group, one, len(groups)) for one in finite.T]) / counts
        deviation = table.std(1, keepdims=True)
        table = (table - table.mean(1, keepdims=True)) / np.where(deviation > 1e-12, deviation, 1)
        what, look = "mean, standardised", {"colorscale": "RdBu", "zmin": -3, "zmax": 3}
    shown = [label(name) for name in names[:CHOICES]]
    trace: Json = {
        "type": "heatmap",
        "x": packed(groups),
        "z": packed(table[:CHOICES]),
        "y": shown,
        "colorbar": {"thickness": 10},
    }
    trace |= look
    axis = {"type": "category", "automargin": True}
    return figure([trace], f"episode (colour: {what})", "", max(160, 90 + 22 * len(shown)), yaxis=axis)


# ---- small plots, as paths in a box of SIZE ----


def small_plots(t: NDArray[np.int64], values: NDArray[Any], low: float, high: float, last: float) -> dict[str, str]:
    """`bars`: histogram of values (S,) from `low` to `high`; `line` and `band`: their median, and quantiles 0.1 to 0.9, over
    timesteps (S,) until `last`.
    """
    known = np.isfinite(values)
    t, values = t[known], values[known]
    largest = max(abs(low), abs(high)) or 1.0  # so that no difference overflows
    span = high / largest - low / largest
    places = (values / largest - low / largest) / span if span else np.full(len(values), 0.5)
    counts = np.bincount(np.clip((places * BINS).astype(np.int64), 0, BINS - 1), minlength=BINS)
    edges = np.repeat(np.linspace(0, 1, BINS + 1), 2)
    bars = _path(edges, np.concatenate([[0], np.repeat(counts / max(1, counts.max()), 2), [0]]))
    stretch = (t / (max(last, 1) + 1) * STRETCHES).astype(np.int64)
    found = [(i + 0.5, np.quantile(places[stretch == i], (0.1, 0.5, 0.9))) for i in range(STRETCHES) if (stretch == i).any()]
    x = np.array([i for i, _ in found]) / STRETCHES
    under, middle, over = np.array([one for _, one in found]).reshape(-1, 3).T
    band = _path(np.concatenate([x, x[::-1]]), np.concatenate([under, over[::-1]]))
    return {"bars": bars, "line": _path(x, middle), "band": band}


def _path(x: NDArray[Any], y: NDArray[Any]) -> str:
    """A line through points of the unit square."""
    points = zip((x * SIZE[0]).tolist(), (SIZE[1] - 1 - y * (SIZE[1] - 2)).tolist(), strict=True)
    return "L".join(f"{a:.1f},{b:.1f}" for a, b in points).join(("M", "")) if len(x) else ""
