"""Selection and weighting of training episodes: `--weight`, `--top-fraction` and `--val-fraction`.

* `Weights`: the share of each source, by its name as given.
* `best_episodes`: the episodes with the highest returns, selected before the held-out split.
* `HeldOut`: whole held-out episodes, selected by a hash of seed and id, independent of their order.
* `content_hashes`, `held_out_of_run`: how a run recognises its episodes wherever they are stored.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from offline_cli.converting.operations.selecting import top
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.episodes.known_episodes import hash_rows
from offline_cli.errors import BadConfig, NoData, UsageError
from offline_cli.storage.locations import Location, expand
from offline_cli.trees import leaves

__all__ = [
    "REMEMBERED",
    "HeldOut",
    "Weights",
    "best_episodes",
    "content_hashes",
    "held_out_of_run",
    "learned_before",
    "place_named",
]

OPTION: Final = "--weight"
REMEMBERED: Final = 1024  # content hashes that a run keeps of its episodes, the smallest: each large part of the data has some
BY_CHANCE: Final = 0.05  # share of episodes that may be like those of a run and be others
HASHED: Final = 64  # numbers of each observation
TOLERANCE: Final = 1e-9  # floating-point sums: 0.7 + 0.2 + 0.1 is not 1

Given = Mapping[str, float] | Sequence[str]
"""Shares by source, or strings `SRC=0.3`."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Each source's share of an epoch's steps."""

    names: tuple[str, ...]  # unique names of the sources, as given
    given: Mapping[str, float]  # share by name; other sources divide the rest by their steps
    numbers: tuple[int, ...]  # source index of each location, in reading order

    @classmethod
    def of(cls, given: Given, sources: Sequence[Any], storage_options: Mapping[str, Any] | None) -> Self:
        """Raises UsageError, listing all mistakes, and like `expand`."""
        names = tuple(dict.fromkeys(map(place_named, sources)))
        known = {name.rstrip("/"): name for name in names}
        pairs = given.items() if isinstance(given, Mapping) else [text.rpartition("=")[::2] for text in given]
        shares, wrong = dict[str, float](), list[str]()
        for asked, value in pairs:
            source, share = known.get(place_named(asked).rstrip("/")), _number(value)
            wrong += [] if source else [f"{place_named(asked)!r} is not among the sources"]
            wrong += [] if 0 <= share <= 1 else [f"{place_named(asked)}={value}: must be a number from 0 to 1"]
            wrong += [f"{source!r} has two weights"] if source in shares else []
            shares |= {source: share} if source else {}
        total = sum(shares.values())
        if not wrong and (total > 1 + TOLERANCE or (len(shares) == len(names) and total < 1 - TOLERANCE)):
            wrong.append(f"the weights add up to {total:.6g}, but must add up to 1")
        if wrong:
            fix = f"use {OPTION} SRC=0.3, where SRC is one of the sources {', '.join(names)}"
            raise UsageError("; ".join(wrong), where=OPTION, fix=fix)
        places = [(one, expand(one, storage_options)) for one in sources]
        return cls(names, shares, tuple(names.index(place_named(one)) for one, found in places for _ in found))

    def by_location(self, locations: Sequence[str]) -> dict[str, int]:
        """Source index by location; the first one for a location that is read twice."""
        return dict(reversed([*zip(locations, self.numbers, strict=True)]))

    def shares(self, steps: Sequence[int]) -> list[float]:
        """The share of each source, given its steps; sum 1. Raises NoData if a source with a share has no steps."""
        left = max(0.0, 1 - sum(self.given.values()))
        each = dict(zip(self.names, steps, strict=True))
        others = sum(count for name, count in each.items() if name not in self.given)
        found = {name: self.given.get(name, left * count / max(1, others)) for name, count in each.items()}
        empty = [name for name, share in found.items() if share and not each[name]]
        if not others and left > TOLERANCE:
            empty += [name for name in self.names if name not in self.given]
        if empty:
            what = f"{', '.join(empty)} has a weight, but no steps to learn from"
            raise NoData(what, where=OPTION, fix="leave the source out, or set its weight to 0")
        return [share / sum(found.values()) for share in found.values()]

    def as_dict(self, steps: Sequence[int]) -> dict[str, Any]:
        """By source: weight, steps, and expected steps per epoch."""
        each, total = zip(self.names, self.shares(steps), steps, strict=True), sum(steps)
        return {name: {"weight": share, "steps": count, "per_epoch": round(share * total)} for name, share, count in each}


def place_named(source: Any) -> str:
    """A source or another location as a string."""
    return source.url if isinstance(source, Location) else os.fspath(source)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def best_episodes(
    batches: Iterable[EpisodeBatch], fraction: float, where: str
) -> tuple[set[tuple[str, str | None]], dict[str, Any], list[str]]:
    """The `fraction` of episodes with the highest returns, as (id, agent); figures on the selection; notes.

    Raises NoData if no return is a number.
    """
    names, parts = list[tuple[str, str | None]](), [np.zeros(0)]
    for batch in batches:
        names += zip(batch.ids, batch.agent_ids or (None,) * len(batch), strict=True)
        parts.append(batch.returns)
    returns = np.concatenate(parts)
    chosen = top(returns, fraction) if len(returns) else np.zeros(0, np.bool_)
    if not chosen.any():
        fix = "leave out --top-fraction, or record rewards"
        raise NoData("no episode has a numeric return", where=where, fix=fix)
    least, notes = float(returns[chosen].min()), []
    figures = {"episodes": int(chosen.sum()), "of": len(returns), "least_return": least if math.isfinite(least) else None}
    unknown, equal = int(np.isnan(returns).sum()), int((returns[~chosen] == least).sum())
    if unknown:
        notes.append(f"--top-fraction leaves out {unknown:,} episodes with NaN rewards")
    if equal:
        notes.append(f"--top-fraction leaves out {equal:,} more episodes with the lowest selected return {least:g}")
    return {name for name, is_best in zip(names, chosen, strict=True) if is_best}, figures, notes


def content_hashes(episodes: EpisodeBatch) -> NDArray[np.uint64]:
    """(2, E) of what each episode holds, and of that with its id and agent.

    What it holds is its length, observations acted on (the first whole, of others some numbers) and actions, as recorded and as
    float32: neither ids nor rewards nor the file format make another recording.
    """
    acted = np.delete(np.arange(episodes.num_steps + len(episodes)), episodes.obs_starts[1:] - 1)
    parts = [(leaf[episodes.obs_starts[:-1]], np.arange(len(episodes) + 1)) for leaf in leaves(episodes.obs)]
    of_steps = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))[:, :HASHED][acted] for leaf in leaves(episodes.obs)]
    parts += [(leaf, episodes.starts) for leaf in (*of_steps, *leaves(episodes.actions))]
    digests = [hashlib.blake2b(str(length).encode(), digest_size=8) for length in episodes.lengths.tolist()]
    for leaf, starts in parts:
        with np.errstate(over="ignore"):  # infinite: larger than a float32
            hash_rows(digests, leaf.astype(np.float32), starts)
    named = [digest.copy() for digest in digests]
    for digest, id_, agent in zip(named, episodes.ids, episodes.agent_ids or ("",) * len(episodes), strict=True):
        digest.update(f"{id_}\n{agent or ''}".encode("utf-8", "surrogatepass"))
    return np.array([[int.from_bytes(one.digest(), "big") for one in each] for each in (digests, named)], np.uint64)


class HeldOut:
    """Episodes held out for validation: at least one, and never all. Ids with equal 64-bit hashes are treated alike."""

    def __init__(self, batches: Iterable[EpisodeBatch], fraction: float, seed: int, where: str) -> None:
        """`batches`: all episodes. Raises BadConfig for fewer than two."""
        self._seed = seed
        hashes = np.concatenate([self._hashes(batch) for batch in batches])
        if len(hashes) < 2:
            fix = "leave out --val-fraction"
            raise BadConfig("--val-fraction needs at least two episodes", where=where, fix=fix)
        count = min(max(1, round(fraction * len(hashes))), len(hashes) - 1)
        self._last = int(np.partition(hashes, count - 1)[count - 1])

    def among(self, episodes: EpisodeBatch) -> NDArray[np.bool_]:
        """(E,) True for held-out episodes."""
        is_held: NDArray[np.bool_] = self._hashes(episodes) <= self._last
        return is_held

    def _hashes(self, episodes: EpisodeBatch) -> NDArray[np.uint64]:
        names, key = (id_.encode("utf-8", "surrogatepass") for id_ in episodes.ids), str(self._seed).encode()[:64]
        digests = (hashlib.blake2b(name, digest_size=8, key=key).digest() for name in names)
        return np.array([int.from_bytes(digest, "big") for digest in digests], np.uint64)


def held_out_of_run(
    episodes: EpisodeBatch, config: Mapping[str, Any], remembered: Sequence[Sequence[int]], count: int, where: str
) -> tuple[bool | None, NDArray[np.bool_] | None, list[str]]:
    """Whether `episodes` are held out of a run's training; which of them (E,), None: all; why that is in doubt.

    The run has that `config`, and learned from `count` episodes with the `remembered` hashes. Where `episodes` are all of them,
    those that it held out are known by their ids (of those that --top-fraction left out, as large a share). None: it learned
    from others.
    """
    if not remembered:
        return False, None, ["the run's checkpoint is missing, so nothing tells whether it learned from these recordings"]
    chosen, hashes, known = np.ones(len(episodes), np.bool_), content_hashes(episodes), np.array(remembered, np.uint64)
    if config.get("top_fraction") is not None and not np.isnan(episodes.returns).all():
        names, _, _ = best_episodes([episodes], config["top_fraction"], where)
        pairs = zip(episodes.ids, episodes.agent_ids or (None,) * len(episodes), strict=True)
        chosen = np.array([name in names for name in pairs])
    is_same = (np.sort(hashes[:, chosen])[:, : known.shape[1]] == known).all(1) if chosen.sum() == count else (False, False)
    if is_same[0] and config.get("val_fraction") is None:
        return False, None, []
    if all(is_same):
        held = HeldOut([episodes.select(chosen)], config["val_fraction"], config.get("seed", 0), where)
        return True, held.among(episodes), []
    if is_same[0]:
        return False, None, ["the run learned from these episodes under other ids, so those that it held out are unknown"]
    if share := _overlap(hashes, known):
        return False, None, [f"the run learned from {share:.0%} of these episodes, or from ones like them"]
    return None, None, []


def learned_before(episodes: EpisodeBatch, ancestors: Sequence[Sequence[Sequence[int]]]) -> list[str]:
    """Why `episodes` may be what the runs of --init-from learned from, given what each remembers; empty: they are not."""
    if not all(ancestors):
        return ["the checkpoint of a run of --init-from is missing, so nothing tells whether it learned from these recordings"]
    hashes = content_hashes(episodes) if ancestors else None
    share = max((_overlap(hashes, np.array(one, np.uint64)) for one in ancestors if hashes is not None), default=0.0)
    return [f"a run of --init-from learned from {share:.0%} of these episodes, or from ones like them"] if share else []


def _overlap(hashes: NDArray[np.uint64], known: NDArray[np.uint64]) -> float:
    """The share of episodes that are among the known ones; 0: as few as may be by chance.

    A run's short episodes of few different steps repeat each other, and by chance as large a share of others repeats them.
    """
    found = 0.0
    for own, theirs in zip(hashes, known, strict=True):
        if len(theirs) == REMEMBERED:  # of more episodes, those with the smallest hashes
            own = own[own <= theirs[-1]]
        times = np.unique(theirs, return_counts=True)[1]
        share = float(np.isin(own, theirs).mean()) if len(own) else 0.0
        found = max(found, share if share > BY_CHANCE + times[times > 1].sum() / len(theirs) else 0.0)
    return found
