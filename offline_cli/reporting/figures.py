"""Plots of a report: figures as plotly's JSON documents, and small ones as paths of SVG, which need no script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offline_cli.reporting.drawing import Json, colour, figure, label, packed
from offline_cli.reporting.survey import Survey

POINTS: Final = 2_000  # of a dataset in a cloud
BINS: Final = 32
STRETCHES: Final = 24  # of time
SIZE: Final = (150, 36)  # of a small plot, pixels


def binned(values: NDArray[Any], bins: int, low: float, high: float) -> NDArray[np.int64]:
    """(bins,) counts of finite values between `low` and `high`, which no difference overflows."""
    scale = max(abs(low), abs(high)) or 1.0
    places = (values / scale - low / scale) / ((high / scale - low / scale) or 1.0)
    return np.bincount(np.clip((places * bins).astype(np.int64), 0, bins - 1), minlength=bins)


def histogram(groups: Sequence[tuple[str, str, NDArray[Any]]], x: str) -> Json:
    """Counts of values of each group (name, colour, values) over common ranges."""
    known = [(name, shade, values[np.isfinite(values)]) for name, shade, values in groups]
    whole = np.concatenate([values for _, _, values in known] or [np.zeros(0)])
    low, high = (float(whole.min()), float(whole.max())) if len(whole) else (0.0, 1.0)
    whole_numbers = bool((whole == np.round(whole)).all()) and high - low < 60
    bins = round(high - low) + 1 if whole_numbers else min(40, max(8, round(2 * len(whole) ** 0.5)))
    low, high = (low - 0.5, high + 0.5) if whole_numbers else (low, high)
    traces = []
    for name, shade, values in known:
        counts, middle = binned(values, bins, low, high), low + (np.arange(bins) + 0.5) / bins * (high - low)
        share = counts / max(1, len(values)) if len(known) > 1 else counts
        bar = {"type": "bar", "x": packed(middle), "y": packed(share), "width": (high - low) / bins or 1.0, "name": label(name)}
        traces.append({**bar, "marker": {"color": shade, "opacity": 0.6 if len(known) > 1 else 0.9}})
    return figure(traces, x, "share of episodes" if len(known) > 1 else "episodes", barmode="overlay")


def over_episodes(groups: Sequence[tuple[str, str, Survey, NDArray[Any]]]) -> Json:
    """Return of each episode in the order of the data; at most 2,000 points of each group of episodes (numbers)."""
    traces = []
    for name, shade, survey, numbers in groups:
        shown = numbers[np.unique(np.linspace(0, len(numbers) - 1, POINTS).astype(np.int64))] if len(numbers) else numbers
        texts = [label(survey.episodes.ids[number]) for number in shown.tolist()]
        dots = {"type": "scatter", "mode": "markers", "x": packed(shown), "y": packed(survey.episodes["return"][shown])}
        traces.append({**dots, "text": texts, "name": label(name), "marker": {"color": shade, "size": 5, "opacity": 0.7}})
    return figure(traces, "episode, in the order of the data", "return")


def coverage(surveys: Sequence[tuple[int, Survey]]) -> Json | None:
    """Sampled observations on their two principal directions, common to all; None: there are no two channels in common."""
    names = [{(one.path, one.at) for one in survey.channels if one.kind == "obs"} for _, survey in surveys]
    common = sorted(set.intersection(*names), key=str)
    parts = []
    for _, survey in surveys:
        at = {(one.path, one.at): i for i, one in enumerate(survey.channels)}
        episode, _, values = survey.sample()
        rows = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(np.int64))
        parts.append((episode[rows], np.nan_to_num(values[rows][:, [at[name] for name in common]], posinf=0, neginf=0)))
    whole = np.concatenate([values for _, values in parts]) if parts else np.zeros((0, 0))
    deviation = whole.std(0) if len(whole) else np.zeros(0)
    if (deviation > 1e-12).sum() < 2:
        return None
    use = deviation > 1e-12
    middle, scale = whole.mean(0)[use], deviation[use]
    _, strength, directions = np.linalg.svd((whole[:, use] - middle) / scale, full_matrices=False)
    shares = np.square(strength) / np.square(strength).sum()
    traces = []
    for (number, survey), (episode, values) in zip(surveys, parts, strict=True):
        points = ((values[:, use] - middle) / scale) @ directions[:2].T
        marker: Json = {"size": 4, "opacity": 0.5, "color": colour(number)}
        if len(surveys) == 1:
            gained = survey.episodes["return"][episode]
            bar = {"title": {"text": "return"}, "thickness": 10}
            marker = {"size": 4, "opacity": 0.6, "color": packed(gained), "colorscale": "Viridis", "colorbar": bar}
        dots = {"type": "scatter", "mode": "markers", "x": packed(points[:, 0]), "y": packed(points[:, 1]), "marker": marker}
        texts = [label(survey.episodes.ids[one]) for one in episode.tolist()]
        traces.append({**dots, "text": texts, "name": label(survey.name), "hoverinfo": "text+name"})
    return figure(traces, f"first direction ({shares[0]:.0%} of the variance)", f"second ({shares[1]:.0%})", 380)


def actions_by_episode(survey: Survey) -> Json | None:
    """Shares of discrete actions, or means of continuous ones, over episodes in up to 240 groups of neighbours."""
    episodes, acted = survey.episodes, survey.columns("actions")
    if survey.choices:
        table = episodes["shares"]
        known = survey.meanings.by_path.get("actions", ())
        texts = known[0].categories if len(known) == 1 and known[0].categories else None
        names = [f"{i} {texts[i]}" if texts and i < len(texts) else str(i) for i in range(survey.choices)]
        title, low = "share", 0.0
    elif len(acted):
        values = np.nan_to_num(episodes["mean"][:, acted], posinf=0, neginf=0)
        middle, spread = values.mean(0), values.std(0)
        table = np.clip((values - middle) / np.where(spread > 1e-12, spread, 1), -3, 3)
        names, title, low = [survey.channels[i].name for i in acted], "mean, standardised", -3.0
    else:
        return None
    groups = np.array_split(np.arange(len(table)), min(240, len(table)))
    cells = np.stack([table[rows].mean(0) for rows in groups], 1)[:64]
    shown = [label(name) for name in names[:64]]
    scale = "Viridis" if survey.choices else "RdBu"
    trace = {
        "type": "heatmap",
        "z": packed(cells),
        "y": shown,
        "colorscale": scale,
        "zmin": low,
        "zmax": 1.0 if low == 0 else 3.0,
    }
    trace |= {"x": packed(np.array([rows[0] for rows in groups])), "colorbar": {"thickness": 10}}
    return figure(
        [trace],
        f"episode (colour: {title})",
        "",
        max(160, 90 + 22 * len(shown)),
        yaxis={"type": "category", "automargin": True},
    )


# ---- small plots, as paths in a box of SIZE ----


def _path(x: NDArray[Any], y: NDArray[Any]) -> str:
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))


def _heights(values: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    middle = SIZE[1] / 2
    return np.full(values.shape, middle) if high <= low else SIZE[1] - 1 - (values - low) / (high - low) * (SIZE[1] - 2)


def bars_path(counts: NDArray[Any]) -> str:
    """Bars of a histogram."""
    heights = SIZE[1] - np.asarray(counts) / max(float(np.max(counts, initial=0)), 1e-12) * (SIZE[1] - 2)
    edges = np.linspace(0, SIZE[0], len(heights) + 1)
    x, y = np.repeat(edges, 2)[1:-1], np.repeat(heights, 2)
    return f"{_path(np.concatenate([[0], x, [SIZE[0]]]), np.concatenate([[SIZE[1]], y, [SIZE[1]]]))}Z"


def band_paths(t: NDArray[Any], values: NDArray[Any], low: float, high: float, last: float) -> tuple[str, str]:
    """Median over time, and the band between the quantiles 0.1 and 0.9, until timestep `last`."""
    edges = np.linspace(0, max(last, 1) + 1, STRETCHES + 1)
    order = np.argsort(t, kind="stable")
    parts = np.split(values[order], np.searchsorted(t[order], edges[1:-1]))
    known = [(i, part) for i, part in enumerate(one[np.isfinite(one)] for one in parts) if len(part)]
    if not known:
        return "", ""
    x = (np.array([i for i, _ in known]) + 0.5) / STRETCHES * SIZE[0]
    under, middle, over = np.stack([np.quantile(part, (0.1, 0.5, 0.9)) for _, part in known], 1)
    under, middle, over = (_heights(one, low, high) for one in (under, middle, over))
    band = _path(np.concatenate([x, x[::-1]]), np.concatenate([under, over[::-1]])) + "Z"
    return _path(x, middle), band
