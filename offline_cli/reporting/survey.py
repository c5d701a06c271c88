"""What a report shows of one dataset, collected in one pass over its batches: statistics of columns, figures of each
episode, a uniform sample of steps, and the course of up to 200 episodes.

A channel is one number of a step: an element of an observation or action, or the reward. A leaf of more than 512 elements,
or of two dimensions and more (an image), is one channel, its mean.
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
from offline_cli.meanings import NO_MEANINGS, Meanings
from offline_cli.spaces import Space, leaf_spaces

ROOTS: Final = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
WIDEST: Final = 512  # elements of a leaf that are channels by themselves
SAMPLE: Final = 50_000  # steps, of up to 80 channels; fewer of more
SLICES: Final = 8  # steps of an episode that stand for it when episodes are compared
PROJECTED: Final = 32  # numbers of such a step
PAIRS: Final = 500  # of minimum and maximum that a channel of one episode is shown by; fewer of more than 40 channels
CRITERIA: Final = ("shortest", "longest", "best", "worst", "random")
FRAMES: Final = 8  # thumbnails of an episode
PIXELS: Final = 72  # of their longer side
STILL: Final = 1e-3  # of an action's declared range: less is no motion
Floats = NDArray[np.float64]
Leaves = dict[str, NDArray[Any]]  # (N, *shape) by path


@dataclass(frozen=True, slots=True)
class Channel:
    """One number of a step."""

    name: str  # a name from the data, or obs[2]
    path: str  # of its leaf
    at: int | None  # element of the leaf; None: the mean of all
    unit: str = ""
    low: float = -math.inf  # bounds that its space declares
    high: float = math.inf
    is_category: bool = False

    @property
    def kind(self) -> str:
        """ "obs", "actions" or "rewards"."""
        return self.path.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Course:
    """One episode as it is drawn."""

    values: NDArray[np.float32]  # (points, d): steps, or pairs of minimum and maximum of equal stretches
    every: float  # steps from one point to the next
    frames: list[str]  # data URIs


@dataclass(slots=True)
class Survey:
    """Collects one dataset, batch by batch; its E episodes have at least one step each."""

    name: str
    shade: str  # its colour
    at: str  # how a shell names it, with its options; empty where none can
    facts: dict[str, str] = field(default_factory=dict)  # for the head of the page
    spaces: dict[str, Space | None] = field(default_factory=dict)
    scale: str = "unknown"
    meanings: Meanings = NO_MEANINGS
    channels: list[Channel] = field(default_factory=list)
    columns: ColumnsBuilder = field(default_factory=ColumnsBuilder)
    steps: int = 0
    ids: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)  # of each episode; empty where it has none
    agents: list[str] = field(default_factory=list)  # modules in their place, once all is read, where there are several
    courses: dict[int, Course] = field(default_factory=dict)  # by number of the episode
    flagged: list[int] = field(default_factory=list)  # numbers of episodes that are drawn before others
    _figures: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _sample: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    _of_steps: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _of_episodes: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, figure: str) -> NDArray[Any]:
        """(E, ...) one of the figures of `_add_episodes`."""
        found = self._figures.get(figure, [np.zeros(0)])
        if len(found) > 1:
            self._figures[figure] = found = [np.concatenate(found)]
        return found[0]

    def episode(self, number: int) -> str:
        """The id of an episode, with its agent where there are several."""
        agent = self.agents[number]
        return f"{self.ids[number]} ({agent})" if agent and len(set(self.agents)) > 1 else self.ids[number]

    def add(self, batch: EpisodeBatch, most: int) -> None:
        """Take one batch; `most`: episodes that are drawn. Raises BadEpisode where a column changes its shape."""
        batch = batch if batch.lengths.all() else batch.select(batch.lengths > 0)
        if not len(batch):
            return
        self.columns.add(batch)
        leaves = _leaves(batch)
        values, first = _matrix(leaves), len(self)
        self.channels = self.channels or list(self._channels(leaves))
        self.steps += len(values)
        self._add_episodes(batch, values, [leaf for leaf in leaves.values() if _is_wide(leaf)])
        self._add_sample(batch, values, first)
        chosen = self.chosen(most)
        self.courses = {number: course for number, course in self.courses.items() if number in chosen}
        self.courses |= {number: course_of(batch, number - first) for number in chosen if number >= first}

    def _channels(self, leaves: Leaves) -> Iterator[Channel]:
        known = [leaf_spaces(space, name) for name, space in self.spaces.items() if space is not None]
        for path, leaf in leaves.items():
            if _is_wide(leaf):
                yield Channel(f"{path} (mean)", path, None)
                continue
            space, shape = next((one[path] for one in known if path in one), None), leaf.shape[1:]
            is_box = isinstance(space, spaces.Box) and space.shape == shape
            scale = self.scale if path.startswith(Columns.ACTIONS) else "env"
            bounds = bounds_of(space, scale) if is_box and space is not None else (-np.inf, np.inf)
            lows, highs = (np.broadcast_to(np.asarray(one, np.float64), shape).ravel().tolist() for one in bounds)
            elements = self.meanings.by_path.get(path, ())
            for at, (low, high) in enumerate(zip(lows, highs, strict=True)):
                unit = elements[at].unit if at < len(elements) else None
                name = self.meanings.named(path, [at] if len(shape) == 1 else [], shape)
                yield Channel(name, path, at, unit or "", low, high, space is not None and not isinstance(space, spaces.Box))

    def numbers(self, kind: str, *, is_continuous: bool = False) -> NDArray[np.int64]:
        """Numbers of the channels of a kind."""
        found = [i for i, one in enumerate(self.channels) if one.kind == kind and not (is_continuous and one.is_category)]
        return np.array(found, np.int64)

    def statistics(self) -> list[dict[str, Any]]:
        """min, mean, max, std, nan and infinite of each channel, of all steps; None or a text for what is no number."""
        columns = self.columns.as_json()
        names = ("min", "mean", "max", "std", "nan", "infinite")
        return [{name: _element(columns[one.path][name], one.at) for name in names} for one in self.channels]

    # ---- episodes ----

    @np.errstate(all="ignore")
    def _add_episodes(self, batch: EpisodeBatch, values: Floats, images: Sequence[NDArray[Any]]) -> None:
        starts, lengths = batch.starts[:-1], batch.lengths
        self.ids += batch.ids
        for known, names in ((self.modules, batch.module_ids), (self.agents, batch.agent_ids)):
            known += ["" if name is None else name for name in names or [None] * len(batch)]
        observed = values[:, self.numbers(Columns.OBS)]
        changed = np.ones(observed.shape, np.bool_)
        changed[1:] = observed[1:] != observed[:-1]
        changed[starts] = True
        longest = np.zeros((len(batch), observed.shape[1]), np.int64)  # the run of equal values, and its first step
        own_step = np.arange(len(values)) - np.repeat(starts, lengths)
        for channel, column in enumerate(changed.T):
            begins = np.flatnonzero(column)
            runs = np.diff(begins, append=len(values)) << 32 | own_step[begins]
            longest[:, channel] = np.maximum.reduceat(runs, np.searchsorted(begins, starts))
        moments = (starts[:, None] + ((lengths[:, None] - 1) * np.linspace(0, 1, SLICES)).astype(np.int64)).ravel()
        seen = np.concatenate([_projected(one[moments]) for one in (values, *images)], 1)
        found = {
            "length": lengths,
            "return": batch.returns,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
            "changes": (np.add.reduceat(changed, starts, dtype=np.int64) - 1) / np.maximum(lengths - 1, 1)[:, None],
            "longest": longest >> 32,
            "since": longest & 0xFFFFFFFF,
            "moments": seen.reshape(len(batch), -1).astype(np.float32),
            "print": fingerprints(batch),
            "chance": self._of_episodes.random(len(batch)),
        }
        acted = self.numbers(Columns.ACTIONS)
        moved = np.diff(values[:, acted], axis=0, prepend=values[:1, acted])
        is_continuous = [not self.channels[i].is_category for i in acted]
        bent = np.abs(np.diff(moved[:, is_continuous], axis=0, prepend=moved[:1, is_continuous]))
        bent[starts] = bent[np.minimum(starts + 1, len(bent) - 1)] = 0
        found["bent"] = np.add.reduceat(bent, starts) / np.maximum(lengths - 2, 1)[:, None]
        span = np.array([self.channels[i].high - self.channels[i].low for i in acted])
        rests = np.all(np.abs(moved) <= np.where(np.isfinite(span), STILL * span, 0), axis=1)
        rests[starts] = False
        found["rests"] = np.add.reduceat(rests, starts, dtype=np.int64) / lengths
        for name, one in found.items():
            self._figures.setdefault(name, []).append(one)

    @np.errstate(all="ignore")
    def motion(self) -> tuple[Floats, Floats]:
        """(E,) jerk, the mean absolute second difference of continuous actions over their range; and the share of steps at
        which none of them changes. A range is the declared one, else that of the data. Empty without such actions.
        """
        acted = self.numbers(Columns.ACTIONS, is_continuous=True)
        if not len(acted):
            return np.zeros(0), np.zeros(0)
        known, spans = self.statistics(), []
        for i in acted.tolist():
            low, high = self.channels[i].low, self.channels[i].high
            low, high = (low, high) if math.isfinite(high - low) else (known[i]["min"], known[i]["max"])
            spans.append(float(high) - float(low) if high not in (low, None) else 1.0)
        return np.nan_to_num((self["bent"] / np.array(spans)).mean(1), posinf=0), self["rests"]

    # ---- a sample of steps: those of the least chance ----

    def _add_sample(self, batch: EpisodeBatch, values: Floats, first: int) -> None:
        episode = np.repeat(np.arange(first, first + len(batch)), batch.lengths)
        self._sample.append((self._of_steps.random(len(values)), episode, batch.timesteps(), values))
        if sum(len(one[0]) for one in self._sample) > 2 * self._size:
            self.sample()

    @property
    def _size(self) -> int:
        return min(SAMPLE, max(4_000, SAMPLE * 80 // len(self.channels)))

    def sample(self) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Of S steps, drawn uniformly, the number of the episode (S,), timestep (S,) and channels (S, d)."""
        whole = tuple(np.concatenate(parts) for parts in zip(*self._sample, strict=True))
        rows = np.sort(np.argsort(whole[0], kind="stable")[: self._size])
        self._sample = [tuple(part[rows] for part in whole)]
        _, episode, t, values = self._sample[0]
        return episode, t, values

    # ---- episodes that are drawn ----

    def chosen(self, most: int) -> dict[int, str]:
        """The episodes that are drawn, and why: by number, those of each criterion in turn."""
        length, gained = self["length"], np.nan_to_num(self["return"])
        orders = (length, -length, -gained, gained, self["chance"])
        found: dict[int, str] = dict.fromkeys(self.flagged[:most], "flagged")
        ranked = [np.argsort(order, kind="stable")[:most].tolist() for order in orders]
        for places in zip(*ranked, strict=True):
            for name, number in zip(CRITERIA, places, strict=True):
                if len(found) < most:
                    found.setdefault(number, name)
        return found

    def draw_flagged(self, numbers: Sequence[int], dataset: Dataset | None, most: int) -> None:
        """Draw these episodes too; those that are not there already are read from `dataset`, up to `most`."""
        numbers = list(dict.fromkeys(numbers))
        more = [number for number in numbers if number not in self.courses][:most]
        if more and dataset is not None and len(dataset) == len(self):
            batch = dataset[more]
            self.courses |= {number: course_of(batch, at) for at, number in enumerate(more)}
        self.flagged = [number for number in numbers if number in self.courses]


def course_of(batch: EpisodeBatch, number: int) -> Course:
    """Episode `number` of a batch."""
    leaves = _leaves(batch.select(slice(number, number + 1)))
    own, every = _matrix(leaves), 1.0
    own[~np.isfinite(own)] = np.nan
    moments = np.unique(np.linspace(0, len(own) - 1, FRAMES).astype(np.int64)).tolist()
    if len(own) > 2 * (pairs := max(20, PAIRS * 40 // max(40, own.shape[1]))):
        edges, every = np.linspace(0, len(own), pairs, endpoint=False).astype(np.int64), len(own) / pairs / 2
        own = np.stack([np.fmin.reduceat(own, edges), np.fmax.reduceat(own, edges)], 1).reshape(-1, own.shape[1])
    images = next((leaf for path, leaf in leaves.items() if path.startswith(Columns.OBS) and is_image(leaf)), None)
    frames = [] if images is None else [_thumbnail(images[moment]) for moment in moments]
    return Course(own.astype(np.float32), every, frames)


def is_image(leaf: NDArray[Any]) -> bool:
    """Whether values (N, H, W), (N, H, W, C) or (N, C, H, W) are pictures."""
    shape = leaf.shape[1:]
    colours = len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3, 4))
    return leaf.dtype == np.uint8 and (colours or len(shape) == 2) and sorted(shape)[-2] >= 8


def _thumbnail(image: NDArray[np.uint8]) -> str:
    from PIL import Image  # comes with matplotlib

    if image.ndim == 3:
        image = image if image.shape[-1] in (1, 3, 4) else np.moveaxis(image, 0, -1)
        image = image if image.shape[-1] == 3 else image[..., 0]  # of four planes: frames, or colours
    picture, file = Image.fromarray(np.ascontiguousarray(image)), io.BytesIO()
    picture.thumbnail((PIXELS, PIXELS))
    picture.save(file, "JPEG", quality=70)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _leaves(batch: EpisodeBatch) -> Leaves:
    return {path: leaf for path, leaf in columns_of(batch) if path.partition(".")[0] in ROOTS}


def _is_wide(leaf: NDArray[Any]) -> bool:
    return leaf.ndim > 2 or math.prod(leaf.shape[1:]) > WIDEST


def _matrix(leaves: Leaves) -> Floats:
    """(N, d) channels of all leaves."""
    rows = [(leaf.reshape(len(leaf), -1), _is_wide(leaf)) for leaf in leaves.values()]
    return np.concatenate([one.mean(1, keepdims=True) if is_wide else one for one, is_wide in rows], 1, dtype=np.float64)


def _projected(values: NDArray[Any]) -> Floats:
    """(M, ...) as at most PROJECTED numbers each: sums of the elements with fixed random signs."""
    rows, random = values.reshape(len(values), -1), np.random.default_rng(1)
    if rows.shape[1] <= PROJECTED:
        return np.nan_to_num(rows.astype(np.float64), posinf=0, neginf=0)
    parts = (np.nan_to_num(rows[:, i : i + WIDEST], posinf=0, neginf=0) for i in range(0, rows.shape[1], WIDEST))
    return np.asarray(sum(part @ random.choice([-1.0, 1.0], (part.shape[1], PROJECTED)) for part in parts))


def _element(values: Any, at: int | None) -> Any:
    """Element `at` of nested figures; None: that of all, or their mean."""
    flat = np.array(values, object).ravel()
    if at is not None and len(flat) > at:
        return flat[at]
    known = [value for value in flat if isinstance(value, int | float)]
    return sum(known) / len(known) if known else None
