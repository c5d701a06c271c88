"""What a report shows of one dataset, collected in one pass over its batches: exact figures of columns, figures of each
episode, a uniform sample of steps, and the course of up to 200 episodes.

A channel is one number of a step: an element of an observation or action, or the reward. A leaf of more than 512 elements,
or of two dimensions and more (an image), is one channel, its mean. NumPy's reductions over slices do the work.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from offline_cli.checking.column_statistics import ColumnsBuilder, columns_of
from offline_cli.checking.validate.values import bounds_of
from offline_cli.columns import Columns
from offline_cli.datasets.dataset import Dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import fingerprints
from offline_cli.meanings import Meanings
from offline_cli.spaces import Space, leaf_spaces

ROOTS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
WIDEST: Final = 512  # elements of a leaf that are channels by themselves
SAMPLE: Final = 50_000  # steps, of up to 80 channels; fewer of more
SLICES: Final = 8  # moments of an episode that stand for it when episodes are compared
PROJECTED: Final = 32  # numbers of such a moment
PAIRS: Final = 500  # of minimum and maximum that a channel of one episode is shown by
CRITERIA: Final = ("shortest", "longest", "best", "worst", "random")
FRAMES: Final = 8  # thumbnails of an episode
PIXELS: Final = 72  # of their longer side
STILL: Final = 1e-3  # of an action's range: less is no motion
LEAST: Final = -40  # power of 2 of the smallest motion that is told from none
MAGNITUDES: Final = 64  # powers of 2 from there
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Channel:
    """One number of a step."""

    name: str  # a name from the data, or obs[2]
    path: str  # of its leaf
    at: int | None  # element of the leaf; None: the mean of all
    unit: str
    low: float  # bounds that its space declares, else infinite
    high: float
    is_category: bool

    @property
    def kind(self) -> str:
        """ "obs", "actions" or "rewards"."""
        return self.path.partition(".")[0]


@dataclass(slots=True)
class Course:
    """One episode as it is drawn."""

    values: NDArray[np.float32]  # (points, d): steps, or pairs of minimum and maximum of equal stretches
    every: float  # steps from one point to the next
    frames: list[str] = field(default_factory=list)  # data URIs


@dataclass(slots=True)
class Episodes:
    """Figures of E episodes of at least one step; rows of the same order."""

    ids: list[str] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)  # agent or module, where episodes have one; else empty
    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def name(self, number: int) -> str:
        """The id of an episode, with its agent where there are several."""
        agent = self.agents[number]
        return f"{self.ids[number]} ({agent})" if agent and len(set(self.agents)) > 1 else self.ids[number]

    def __getitem__(self, name: str) -> NDArray[Any]:
        """(E, ...) one of the figures of `Survey._add_figures`."""
        found = self.parts.get(name, [])
        if len(found) > 1:
            self.parts[name] = found = [np.concatenate(found)]
        return found[0] if found else np.zeros(0)


class Survey:
    """Collects one dataset, batch by batch."""

    def __init__(self, name: str, observations: Space | None, actions: Space | None, scale: str, meanings: Meanings) -> None:
        self.name, self.meanings, self.scale = name, meanings, scale
        self.spaces = {Columns.OBS: observations, Columns.ACTIONS: actions}
        self.channels: list[Channel] = []
        self.figures, self.episodes = ColumnsBuilder(), Episodes()
        self.courses: dict[int, Course] = {}  # by number of the episode
        self.choices = 0  # of the first discrete action; 0: there is none
        self.steps = 0
        self.flagged: list[int] = []  # numbers of episodes that are drawn before others
        self._range: tuple[Floats, Floats] | None = None  # (A,) least and largest of the continuous actions
        self._of_steps, self._of_episodes = map(np.random.default_rng, (0, 1))  # by which batches come makes no difference
        self._sample: list[tuple[NDArray[Any], ...]] = []

    def add(self, batch: EpisodeBatch, most: int) -> None:
        """Take one batch; `most`: episodes that are drawn. Raises BadEpisode where a column changes its shape."""
        batch = batch if batch.lengths.all() else batch.select(batch.lengths > 0)
        if not len(batch):
            return
        self.figures.add(batch)
        leaves = _leaves(batch)
        values = _matrix(leaves)
        self.channels = self.channels or list(self._channels(leaves))
        first, self.steps = len(self.episodes), self.steps + len(values)
        self._add_figures(batch, values, leaves)
        self._add_sample(batch, values, first)
        self._draw(batch, values, leaves, first, most)

    # ---- channels ----

    def _channels(self, leaves: dict[str, NDArray[Any]]) -> Iterator[Channel]:
        parts = {
            path: one
            for name, space in self.spaces.items()
            if space is not None
            for path, one in leaf_spaces(space, name).items()
        }
        for path, leaf in leaves.items():
            space, shape = parts.get(path), leaf.shape[1:]
            known = self.meanings.by_path.get(path, ())
            low, high = -np.inf, np.inf
            if isinstance(space, spaces.Box) and space.shape == shape:
                low, high = bounds_of(space, self.scale if path.startswith(Columns.ACTIONS) else "env")
            lows, highs = (np.broadcast_to(np.asarray(one, np.float64), shape).ravel() for one in (low, high))
            is_category = space is not None and not isinstance(space, spaces.Box)
            if not _is_wide(leaf):
                for at in range(math.prod(shape)):
                    unit = known[at].unit if at < len(known) else None
                    name = self.meanings.named(path, [at] if len(shape) == 1 else [], shape)
                    yield Channel(name, path, at, unit or "", float(lows[at]), float(highs[at]), is_category)
            else:
                yield Channel(f"{path} (mean)", path, None, "", -np.inf, np.inf, is_category=False)

    def columns(self, *kinds: str) -> NDArray[np.int64]:
        """Numbers of the channels of these kinds."""
        return np.array([i for i, one in enumerate(self.channels) if one.kind in kinds], np.int64)

    # ---- episodes ----

    @np.errstate(all="ignore")
    def _add_figures(self, batch: EpisodeBatch, values: Floats, leaves: dict[str, NDArray[Any]]) -> None:
        starts, lengths = batch.starts[:-1], batch.lengths
        names = batch.module_ids or batch.agent_ids or ()
        self.episodes.ids += batch.ids
        self.episodes.agents += ["" if name is None else name for name in names] or [""] * len(batch)
        changed = np.ones(values.shape, np.bool_)
        changed[1:] = values[1:] != values[:-1]
        changed[starts] = True
        longest, since, changes = np.zeros((3, len(batch), values.shape[1]), np.int64)
        for channel in range(values.shape[1]):
            begins = np.flatnonzero(changed[:, channel])
            runs, of_episode = np.diff(begins, append=len(values)), np.searchsorted(begins, starts)
            longest[:, channel] = top = np.maximum.reduceat(runs, of_episode)
            changes[:, channel] = np.diff(of_episode, append=len(begins)) - 1
            is_top = np.flatnonzero(runs == np.repeat(top, np.diff(of_episode, append=len(begins))))
            since[:, channel] = begins[is_top[np.searchsorted(is_top, of_episode)]] - starts
        moments = starts[:, None] + ((lengths[:, None] - 1) * np.linspace(0, 1, SLICES)).astype(np.int64)
        found = {
            "length": lengths,
            "return": batch.returns,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
            "mean": np.add.reduceat(values, starts) / lengths[:, None],
            "changes": changes / np.maximum(lengths - 1, 1)[:, None],
            "longest": longest,
            "since": since,
            "moments": _projected(values[moments.ravel()]).reshape(len(batch), -1).astype(np.float32),
            "print": fingerprints(batch),
            "chance": self._of_episodes.random(len(batch)),
        }
        self._add_motion(found, values, starts, lengths)
        self._add_shares(found, batch, leaves)
        for name, one in found.items():
            self.episodes.parts.setdefault(name, []).append(one)

    def _add_motion(self, found: dict[str, Any], values: Floats, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Figures of continuous actions in their own units, for `motion`: (E, A) mean absolute second difference, and
        (E, A, MAGNITUDES) share of the steps that change by less than each power of 2.
        """
        actions = values[:, self._moving()]
        if not actions.size:
            return
        lows, highs = np.fmin.reduce(actions), np.fmax.reduce(actions)
        self._range = (lows, highs) if self._range is None else (np.fmin(self._range[0], lows), np.fmax(self._range[1], highs))
        moved = np.diff(actions, axis=0, prepend=actions[:1])
        bent = np.abs(np.diff(moved, axis=0, prepend=moved[:1]))
        bent[starts] = bent[np.minimum(starts + 1, len(bent) - 1)] = 0
        found["bent"] = np.add.reduceat(bent, starts) / np.maximum(lengths - 2, 1)[:, None]
        moved[starts] = np.inf  # the first step of an episode is no rest
        exponent = np.frexp(np.where(np.isfinite(moved), np.abs(moved), np.finfo(float).max))[1]
        magnitude = np.where(moved == 0, 0, np.clip(exponent - LEAST, 0, MAGNITUDES - 1))
        episode = np.repeat(np.arange(len(starts)), lengths)[:, None]
        cell = (episode * actions.shape[1] + np.arange(actions.shape[1])) * MAGNITUDES + magnitude
        counts = np.bincount(cell.ravel(), minlength=actions.shape[1] * MAGNITUDES * len(starts))
        shares = counts.reshape(len(starts), -1, MAGNITUDES).cumsum(2) / lengths[:, None, None]
        found["rests"] = shares.astype(np.float16)

    def _moving(self) -> list[int]:
        return [i for i, one in enumerate(self.channels) if one.kind == Columns.ACTIONS and not one.is_category]

    @np.errstate(all="ignore")
    def motion(self) -> tuple[Floats, Floats]:
        """(E,) jerk: mean absolute second difference of continuous actions over their range; and share of the steps at which
        none changes by more than STILL of its range. A range is the declared one, else that of all the data.
        """
        chosen = self._moving()
        if not chosen or self._range is None:
            return np.zeros(len(self.episodes)), np.zeros(len(self.episodes))
        low, high = (np.array([getattr(self.channels[i], end) for i in chosen]) for end in ("low", "high"))
        span = np.where(np.isfinite(high - low), high - low, self._range[1] - self._range[0])
        span = np.where(span > 0, span, 1)
        below = np.clip(np.floor(np.log2(STILL * span)).astype(np.int64) - LEAST, 0, MAGNITUDES - 1)
        rests = self.episodes["rests"][:, np.arange(len(chosen)), below]
        return (self.episodes["bent"] / span).mean(1), rests.min(1).astype(np.float64)

    def _add_shares(self, found: dict[str, Any], batch: EpisodeBatch, leaves: dict[str, NDArray[Any]]) -> None:
        """(E, A) share of each choice of a discrete action."""
        actions = [leaf for path, leaf in leaves.items() if path.startswith(Columns.ACTIONS)]
        space = self.spaces[Columns.ACTIONS]
        if len(actions) == 1 and actions[0].ndim == 1 and isinstance(space, spaces.Discrete) and int(space.n) <= 64:
            self.choices = int(space.n)
            chosen = np.clip(actions[0].astype(np.int64) - int(space.start), 0, self.choices - 1)
            cell = np.repeat(np.arange(len(batch)), batch.lengths) * self.choices + chosen
            counts = np.bincount(cell, minlength=len(batch) * self.choices).reshape(len(batch), -1)
            found["shares"] = counts / batch.lengths[:, None]

    # ---- a sample of steps ----

    def _add_sample(self, batch: EpisodeBatch, values: Floats, first: int) -> None:
        chance = self._of_steps.random(len(values))
        most = min(self._size, len(chance))
        rows = np.sort(np.argpartition(chance, most - 1)[:most])
        episode = np.repeat(np.arange(first, first + len(batch)), batch.lengths)
        self._sample.append((chance[rows], episode[rows], batch.timesteps()[rows], values[rows]))
        if sum(len(one[0]) for one in self._sample) > 2 * self._size:
            self._sample = [self._smallest()]

    @property
    def _size(self) -> int:
        return min(SAMPLE, max(4_000, SAMPLE * 80 // max(1, len(self.channels))))

    def _smallest(self) -> tuple[NDArray[Any], ...]:
        """Those of the smallest chance, which is a uniform sample of all steps so far."""
        whole = tuple(np.concatenate(parts) for parts in zip(*self._sample, strict=True))
        if len(whole[0]) <= self._size:
            return whole
        rows = np.sort(np.argpartition(whole[0], self._size)[: self._size])
        return tuple(part[rows] for part in whole)

    def sample(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Of S steps the number of the episode (S,), timestep (S,) and channels (S, d)."""
        if not self._sample:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0))
        self._sample = [self._smallest()]
        _, episode, t, values = self._sample[0]
        return episode, t, values

    # ---- episodes that are drawn ----

    def chosen(self, most: int) -> dict[int, str]:
        """The episodes that are drawn, and why: by number, those of each criterion in turn."""
        length, gained = self.episodes["length"], np.nan_to_num(self.episodes["return"])
        orders = (length, -length, -gained, gained, self.episodes["chance"])
        found: dict[int, str] = dict.fromkeys(self.flagged[:most], "flagged")
        ranked = [np.argsort(order, kind="stable")[:most].tolist() for order in orders]
        for place in range(min(most, len(length))):
            for name, order in zip(CRITERIA, ranked, strict=True):
                if len(found) < most:
                    found.setdefault(order[place], name)
        return found

    def draw_flagged(self, numbers: Sequence[int], dataset: Dataset | None, most: int) -> None:
        """Draw these episodes too; those that are not there already are read from `dataset`, up to `most`."""
        numbers = list(dict.fromkeys(numbers))
        more = [number for number in numbers if number not in self.courses][:most]
        if more and dataset is not None and len(dataset) == len(self.episodes):
            batch = dataset[more]
            leaves = _leaves(batch)
            values = _matrix(leaves)
            self.courses |= {number: course_of(batch, values, leaves, at) for at, number in enumerate(more)}
        self.flagged = [number for number in numbers if number in self.courses]

    def _draw(self, batch: EpisodeBatch, values: Floats, leaves: dict[str, NDArray[Any]], first: int, most: int) -> None:
        chosen = self.chosen(most)
        self.courses = {number: course for number, course in self.courses.items() if number in chosen}
        for number in sorted(chosen):
            if number >= first:
                self.courses[number] = course_of(batch, values, leaves, number - first)


def course_of(batch: EpisodeBatch, values: Floats, leaves: dict[str, NDArray[Any]], number: int) -> Course:
    """Episode `number` of a batch with its channels (N, d)."""
    rows = slice(int(batch.starts[number]), int(batch.starts[number + 1]))
    own, steps = values[rows], rows.stop - rows.start
    own = np.where(np.isfinite(own), own, np.nan)
    every = 1.0
    if steps > 2 * PAIRS:
        edges = np.linspace(0, steps, PAIRS, endpoint=False).astype(np.int64)
        ends = np.stack([np.fmin.reduceat(own, edges), np.fmax.reduceat(own, edges)], 1)
        own, every = ends.reshape(-1, own.shape[1]), steps / PAIRS / 2
    moments = np.unique(np.linspace(rows.start, rows.stop - 1, FRAMES).astype(np.int64))
    images = next((leaf for path, leaf in leaves.items() if path.startswith(Columns.OBS) and is_image(leaf)), None)
    frames = [] if images is None else [_thumbnail(images[moment]) for moment in moments.tolist()]
    return Course(own.astype(np.float32), every, frames)


def is_image(leaf: NDArray[Any]) -> bool:
    """Whether values (N, H, W), (N, H, W, C) or (N, C, H, W) are pictures."""
    shape = leaf.shape[1:]
    colours = len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3, 4))
    return leaf.dtype == np.uint8 and (colours or len(shape) == 2) and sorted(shape)[-2] >= 8


def _thumbnail(image: NDArray[np.uint8]) -> str:
    from PIL import Image  # comes with matplotlib

    if image.ndim == 3 and image.shape[-1] not in (1, 3, 4):
        image = np.moveaxis(image, 0, -1)
    if image.ndim == 3 and image.shape[-1] != 3:
        image = image[..., :3] if image.shape[-1] == 4 and not _is_stack(image) else image[..., -1]
    picture = Image.fromarray(np.ascontiguousarray(image))
    picture.thumbnail((PIXELS, PIXELS))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _is_stack(image: NDArray[np.uint8]) -> bool:
    """Whether four planes are grey frames, not colours with a constant alpha."""
    return bool(image[..., 3].min() != image[..., 3].max())


def _leaves(batch: EpisodeBatch) -> dict[str, NDArray[Any]]:
    return {path: leaf for path, leaf in columns_of(batch) if path.partition(".")[0] in ROOTS}


def _is_wide(leaf: NDArray[Any]) -> bool:
    return leaf.ndim > 2 or math.prod(leaf.shape[1:]) > WIDEST


def _matrix(leaves: dict[str, NDArray[Any]]) -> Floats:
    """(N, d) channels of all leaves."""
    parts = [leaf.reshape(len(leaf), -1) for leaf in leaves.values()]
    wide = [_is_wide(leaf) for leaf in leaves.values()]
    return np.concatenate(
        [
            part.mean(1, keepdims=True, dtype=np.float64) if is_wide else part.astype(np.float64)
            for part, is_wide in zip(parts, wide, strict=True)
        ],
        axis=1,
    )


def _projected(values: Floats) -> Floats:
    """(M, d) with at most PROJECTED numbers each: sums of channels with fixed random signs."""
    known = np.nan_to_num(values, posinf=0, neginf=0)
    if known.shape[1] <= PROJECTED:
        return known
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (known.shape[1], PROJECTED))
    return np.asarray(known @ signs)
