"""Which recorded episodes a run learns from, and how often it draws from each source: `--top-fraction` and `--weight`.

* `Weights`: the shares that sources were given, by their names as they were given.
* `Selection`: of one reading after the other, the episodes that are learned from, and the source of each. The best ones are
  chosen by one reading that keeps returns alone, before any is held out for validation, so that held-out ones are as good.
* `Mixture`: an epoch has as many steps as the data, of each source exactly its share. It follows from the seed and its number:
  nothing has to be saved to resume. The steps of a source are one endless sequence of passes, each a permutation of all of
  them; an epoch takes the next ones, so that what one epoch leaves out comes in the next. Blocks of an epoch hold each source's
  share to a step or so, in random order.
* `MixedOrder`, `MixedPools`: such epochs of steps in memory, and of steps on disk, where each source is a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Final, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.converting.operations.choosing import top
from offline_cli.converting.reading import EpisodeStream
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData, NoData, UsageError
from offline_cli.policies.seeds import draw
from offline_cli.storage.locations import Location, expand
from offline_cli.training.loader import shuffled
from offline_cli.trees import Tree, leaves

__all__ = ["MixedOrder", "MixedPools", "Mixture", "Selection", "Weights", "place_named", "row_sources", "seed_of"]

OPTION: Final = "--weight"
TOLERANCE: Final = 1e-9  # of sums: 0.7 + 0.2 + 0.1 is not 1
SOURCES, PASSES, BLOCKS = 16, 17, 18  # set these seeds apart from others drawn from the same run seed
BLOCK: Final = 1 << 16  # steps of an epoch that are put in order together
ANOTHER: Final = "train on a copy of it"

Given = Mapping[str, float] | Sequence[str]
"""Shares by source, or texts `SRC=0.3`."""


# ---- what was asked for ----


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of an epoch's steps."""

    names: tuple[str, ...]  # of the sources, as they were given, each once
    shares: Mapping[str, float]  # by name; those without one share what is left, by their steps

    @classmethod
    def of(cls, given: Given | None, sources: Sequence[Any]) -> Self | None:
        """None: nothing was given. Raises UsageError, naming all that is wrong."""
        if not given:
            return None
        names = tuple(dict.fromkeys(place_named(one) for one in sources))
        known = {name.rstrip("/"): name for name in names}
        pairs: Iterable[tuple[str, Any]] = map(_pair, given)
        if isinstance(given, Mapping):
            pairs = [(place_named(name), value) for name, value in given.items()]
        shares, wrong = dict[str, float](), list[str]()
        for name, value in pairs:
            share = _number(value)
            source = known.get(name.rstrip("/"))
            if source is None:
                near = get_close_matches(name, names, n=1, cutoff=0.4)
                wrong.append(f"{name!r} is not among the sources" + (f", did you mean {near[0]!r}?" if near else ""))
            if share is None or not 0 <= share <= 1:
                wrong.append(f"{name}={value}: a number from 0 to 1 is wanted")
            if source in shares:
                wrong.append(f"{source!r} has two weights")
            elif source is not None:
                shares[source] = share or 0.0
        total = sum(shares.values())
        if not wrong and total > 1 + TOLERANCE:
            wrong.append(f"the weights add up to {total:.6g}, more than 1")
        if not wrong and len(shares) == len(names) and total < 1 - TOLERANCE:
            wrong.append(f"all sources have weights, which add up to {total:.6g} and not to 1")
        if wrong:
            fix = f"{OPTION} SRC=0.3 with SRC as among the sources, which are {', '.join(names)}"
            raise UsageError("; ".join(wrong), where=OPTION, fix=fix)
        return cls(names, shares)

    def numbers(self, sources: Sequence[Any], storage_options: Mapping[str, Any] | None, *, beside: Any) -> list[int]:
        """For each place that `expand` finds of the sources, the number of its source in `names`."""
        places = [(one, expand(one, storage_options, beside=beside)) for one in sources]
        return [self.names.index(place_named(one)) for one, found in places for _ in found]

    def filled(self, steps: Sequence[int]) -> list[float]:
        """The share of each source, of so many steps. Raises NoData where one that has a share has no steps."""
        left = max(0.0, 1 - sum(self.shares.values()))
        others = sum(count for name, count in zip(self.names, steps, strict=True) if name not in self.shares)
        found = [
            self.shares[name] if name in self.shares else left * count / max(1, others)
            for name, count in zip(self.names, steps, strict=True)
        ]
        empty = [name for name, share, count in zip(self.names, found, steps, strict=True) if share and not count]
        if not others and left > TOLERANCE:
            empty += [name for name in self.names if name not in self.shares]
        if empty:
            what = f"no step to learn from is in {', '.join(empty)}, which the epoch should have a share of"
            raise NoData(what, where=OPTION, fix="leave the source out, or give it the weight 0")
        return found


def place_named(source: Any) -> str:
    """A source, or another place, as it was given."""
    return source.url if isinstance(source, Location) else os.fspath(source)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.rpartition("=")
    return (name, value) if name else (text, "")


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# ---- which episodes ----


@dataclass(slots=True)
class Selection:
    """Which episodes of the data are learned from, and which source each of those at hand is of."""

    fraction: float | None = None  # of the episodes, those with the highest return; None: all
    weights: Weights | None = None
    numbers: Sequence[int] = ()  # with weights: of each place that is read, the source's number among these
    told: dict[str, Any] = field(default_factory=dict)  # what was chosen, once it is
    notes: list[str] = field(default_factory=list)
    _chosen: NDArray[np.bool_] | None = None  # (E,) of all that are read
    _origins: list[NDArray[np.int64]] = field(default_factory=list)  # of the episodes passed on, and not asked for yet

    def choose(self, batches: Iterable[EpisodeBatch], where: str) -> None:
        """Have all episodes pass, and choose. Raises NoData where no return is a number."""
        assert self.fraction is not None, "a share of the episodes"
        returns = np.concatenate([np.zeros(0), *(batch.returns for batch in batches)])
        chosen = top(returns, self.fraction) if len(returns) else np.zeros(0, np.bool_)
        if not chosen.any():
            fix = "leave out --top-fraction, or record rewards"
            raise NoData("no episode has a return that is a number", where=where, fix=fix)
        least = float(returns[chosen].min())
        self.told = {"episodes": int(chosen.sum()), "of": len(returns), "least_return": least if math.isfinite(least) else None}
        unknown, equal = int(np.isnan(returns).sum()), int((returns[~chosen] == least).sum())
        if unknown:
            self.notes.append(f"{unknown:,} episodes have rewards that are NaN: --top-fraction takes none of them")
        if equal:
            more = f"{equal:,} more have the least return among them, {least:g}"
            self.notes.append(f"--top-fraction takes {self.told['episodes']:,} episodes, the first ones: {more}")
        self._chosen = chosen

    def of(self, batches: Iterable[EpisodeBatch], stream: EpisodeStream, where: str) -> Iterator[EpisodeBatch]:
        """Those of one reading that are learned from. Raises BadData where there are other ones than when they were chosen."""
        self._origins, first = [], 0
        known = dict(reversed([*zip(stream.locations, self.numbers, strict=self.weights is not None)]))
        for batch in batches:
            if self._chosen is not None:
                chosen = self._chosen[first : first + len(batch)]
                first += len(batch)
                if len(chosen) < len(batch):
                    break
                batch = batch if chosen.all() else batch.select(np.flatnonzero(chosen))
            if not len(batch):
                continue
            if self.weights is not None:
                self._origins.append(np.full(len(batch), known[stream.drawn_from()], np.int64))
            yield batch
        if self._chosen is not None and first != len(self._chosen):
            what = f"the source changed while it was read: {first:,} episodes or more, and {len(self._chosen):,} before"
            raise BadData(what, where=where, fix=ANOTHER)

    def origins(self, episodes: int) -> NDArray[np.int64]:
        """(episodes,) the sources of the next ones that were passed on."""
        joined = np.concatenate(self._origins)
        self._origins = [joined[episodes:]]
        return joined[:episodes]


def row_sources(columns: Mapping[str, Tree], episodes: EpisodeBatch, origins: NDArray[np.int64]) -> Tensor:
    """(N,) the source of each row of `columns`, which were made of `episodes` from `origins` (E,). Raises BadConfig."""
    rows = len(leaves(next(iter(columns.values())))[0])
    found = np.repeat(origins, episodes.lengths)
    mask = episodes.extra.get(Columns.LOSS_MASK)
    if mask is not None and rows != len(found):
        found = found[np.asarray(mask).astype(np.bool_)]
    if rows != len(found):
        what = (
            f"the learner pipeline makes {rows:,} rows of {episodes.num_steps:,} steps: of which source each is, is not known"
        )
        raise BadConfig(what, where=OPTION, fix="leave out the pieces that add or leave out steps, or the weights")
    return torch.from_numpy(found)


# ---- the order of an epoch ----


@dataclass(frozen=True, slots=True)
class Mixture:
    """The steps that an epoch draws from each source."""

    names: tuple[str, ...]
    shares: tuple[float, ...]
    steps: tuple[int, ...]  # that each source has; their sum is the size of an epoch
    drawn: tuple[int, ...]  # of each source in an epoch; the same sum

    @classmethod
    def of(cls, weights: Weights, steps: Sequence[int]) -> Self:
        """Whole steps that are nearest to the shares (largest remainders). Raises NoData as `Weights.filled` does."""
        shares, total = weights.filled(steps), sum(steps)
        exact = [share * total / sum(shares) for share in shares]
        drawn = [math.floor(round(one, 6)) for one in exact]
        by_rest = sorted(range(len(drawn)), key=lambda at: drawn[at] - exact[at])
        for at in by_rest[: total - sum(drawn)]:
            drawn[at] += 1
        return cls(weights.names, tuple(shares), tuple(steps), tuple(drawn))

    def as_dict(self) -> dict[str, Any]:
        """By source: its weight, its steps, and how many of an epoch's steps are drawn from it."""
        each = zip(self.names, self.shares, self.steps, self.drawn, strict=True)
        return {name: {"weight": share, "steps": steps, "per_epoch": drawn} for name, share, steps, drawn in each}

    @property
    def total(self) -> int:
        """Steps of an epoch."""
        return sum(self.steps)

    @property
    def blocks(self) -> int:
        """Blocks of an epoch. One has more steps than rounding can take from the largest source's share of it."""
        return max(1, self.total // max(BLOCK, len(self.steps) ** 2))

    def bounds(self, block: int) -> tuple[int, int]:
        """The first step of the block, and the first after it."""
        return block * self.total // self.blocks, (block + 1) * self.total // self.blocks

    def block_of(self, step: int) -> int:
        """The block of that step of an epoch."""
        return ((step + 1) * self.blocks - 1) // self.total

    def before(self, step: int) -> NDArray[np.int64]:
        """(S,) how many steps of each source come before a block that begins with `step`."""
        found = np.array([step * drawn // self.total for drawn in self.drawn], np.int64)
        largest = int(np.argmax(self.drawn))
        found[largest] += step - found.sum()
        return found

    def sources(self, seed: int, epoch: int, block: int) -> Tensor:
        """(n,) int64: the source of each step of a block."""
        first, after = self.bounds(block)
        counts = torch.from_numpy(self.before(after) - self.before(first))
        order = shuffled(seed, BLOCKS, epoch * self.blocks + block, after - first)
        return torch.repeat_interleave(torch.arange(len(counts)), counts)[order]


def seed_of(seed: int, source: int) -> int:
    """The seed of the orders of one source."""
    return draw(seed, SOURCES, source)


class MixedOrder:
    """The orders of epochs for steps in memory; as `EpochOrder`."""

    def __init__(self, seed: int, mixture: Mixture, rows: Sequence[Tensor]) -> None:
        """`rows`: of each source, (n,) int64."""
        self._seed, self._mixture, self._rows = seed, mixture, rows

    def of_steps(self, epoch: int, steps: int) -> Tensor:
        """(steps,) int64: the rows of an epoch, of which some may come several times."""
        mixture = self._mixture
        assert steps == mixture.total, (steps, mixture.total)
        sources = torch.cat([mixture.sources(self._seed, epoch, block) for block in range(mixture.blocks)])
        order = torch.empty(steps, dtype=torch.int64)
        for number, (rows, drawn) in enumerate(zip(self._rows, mixture.drawn, strict=True)):
            if drawn:
                order[sources == number] = rows[self._of_source(number, epoch * drawn, drawn)]
        return order

    def _of_source(self, source: int, first: int, count: int) -> Tensor:
        """(count,) int64: that part of the endless sequence of passes over the source's steps."""
        steps = self._mixture.steps[source]
        size = steps * max(1, BLOCK // steps)  # several passes over a small source are drawn at once
        numbers = range(first // size, -(-(first + count) // size))
        parts = [self._passes(source, number, steps, size // steps) for number in numbers]
        return torch.cat(parts)[first % size :][:count]

    def _passes(self, source: int, number: int, steps: int, passes: int) -> Tensor:
        seed = seed_of(self._seed, source)
        if passes == 1:
            return shuffled(seed, PASSES, number, steps)
        chance = torch.Generator().manual_seed(draw(seed, PASSES, number))
        order = torch.rand((passes, steps), dtype=torch.float64, generator=chance).argsort(dim=1, stable=True)
        return order.flatten()


class Pools(Protocol):
    """The steps of one source in their order."""

    def gather(self, epoch: int, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the steps from number `first` of that epoch on. Raises StorageError."""


class MixedPools:
    """Such epochs of steps on disk. Each source is gone through again and again, a pass being an epoch of its own."""

    def __init__(self, mixture: Mixture, seed: int, pools: Sequence[Pools | None]) -> None:
        """`pools`: of each source; None: it has no steps."""
        self._mixture, self._pools = mixture, pools
        self._block = lru_cache(1)(partial(self._of_block, seed))

    def _of_block(self, seed: int, epoch: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) the source of each step of a block, and which step it is of all passes over that source."""
        mixture = self._mixture
        sources = mixture.sources(seed, epoch, block).numpy()
        firsts = epoch * np.array(mixture.drawn, np.int64) + mixture.before(mixture.bounds(block)[0])
        counts = np.bincount(sources, minlength=len(firsts))
        steps = np.empty(len(sources), np.int64)
        by_source = np.argsort(sources, kind="stable")
        steps[by_source] = np.arange(len(sources)) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        return sources, steps

    def gather(self, epoch: int, first: int, target: Tensor) -> None:
        """Fill `target` (n, words) with the steps from number `first` of that epoch on. Raises StorageError."""
        mixture = self._mixture
        while len(target):
            block = mixture.block_of(first)
            begin = first - mixture.bounds(block)[0]
            sources, steps = (part[begin : begin + len(target)] for part in self._block(epoch, block))
            by_source = np.argsort(sources, kind="stable")
            counts = np.bincount(sources, minlength=len(self._pools))
            records, done = torch.empty((len(sources), target.shape[1]), dtype=target.dtype), 0
            for number in np.flatnonzero(counts).tolist():
                count = int(counts[number])
                self._take(number, int(steps[by_source[done]]), records[done : done + count])
                done += count
            target[:done].index_copy_(0, torch.from_numpy(by_source), records)
            target, first = target[done:], first + done

    def _take(self, source: int, at: int, target: Tensor) -> None:
        """Fill `target` with the steps from number `at` on of all passes over one source."""
        pools, steps = self._pools[source], self._mixture.steps[source]
        assert pools is not None, "a source with steps"
        while len(target):
            number, first = divmod(at, steps)
            count = min(len(target), steps - first)
            pools.gather(number, first, target[:count])
            target, at = target[count:], at + count
