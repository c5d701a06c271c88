"""One episode while its fragments arrive: puts them in order, joins them, compares them; contradicting steps raise.

All functions work on whole arrays of one-episode batches. Observations at a joint appear twice, as the final one of the first
fragment and as the first one of the next; the joined episode holds the second, because a source without next observations knows
only that one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.source import StartKind
from offline_cli.tally import AFTER, GAP
from offline_cli.trees import Tree, flatten, leaves, map_leaves, same_leaf

__all__ = [
    "OpenEpisode",
    "after_end",
    "agree",
    "as_json",
    "broken",
    "chains",
    "changed",
    "gap",
    "join",
    "lacks_final",
    "start_kind",
    "tail",
]


@dataclass(slots=True)
class OpenEpisode:
    """The fragments of one id seen so far; whole once its last piece has a flag and nothing waits."""

    pieces: list[EpisodeBatch] = field(default_factory=list)  # one-episode batches, gapless from timestep 0
    waiting: dict[int, EpisodeBatch] = field(default_factory=dict)  # by first timestep: those with a gap before them
    waiting_at: dict[int, str] = field(default_factory=dict)  # by the same: their places
    length: int = 0  # steps in `pieces`
    place: str = ""  # of the first fragment
    location: str = ""  # of the source that it came from
    after_end: bool = False  # it continues an episode of its id that an end flag had ended
    refilled: int = 0  # steps that arrived more than once, equal

    @property
    def is_done(self) -> bool:
        """Whether the last step in order ended the episode."""
        return bool(self.pieces) and bool(self.pieces[-1].terminated[0] or self.pieces[-1].truncated[0])

    def structure_difference(self, piece: EpisodeBatch) -> str:
        """Why `piece` cannot be a part of this episode, as text; empty when it can. Dtypes may widen."""
        known = self.pieces[:1] or list(self.waiting.values())[:1]
        difference = known[0].structure_difference(piece) if known else ""
        return difference if difference and _shapes(known[0]) != _shapes(piece) else ""

    def add(self, piece: EpisodeBatch, start: int, place: str) -> bool:
        """Take `piece`, whose first timestep is `start`; False where it contradicts a step that is already here."""
        if start > self.length:
            self.waiting_at.setdefault(start, place)
            return self._wait(piece, start)
        return self._put(piece, start) and self._take_waiting()

    def _wait(self, piece: EpisodeBatch, start: int) -> bool:
        other = self.waiting.get(start)
        if other is None or agree(other, piece):
            if other is not None:
                self.refilled += min(other.num_steps, piece.num_steps)
            self.waiting[start] = piece if other is None or piece.num_steps > other.num_steps else other
            return True
        return False

    def _take_waiting(self) -> bool:
        for start in sorted(self.waiting):
            if start > self.length:
                break
            if not self._put(self.waiting.pop(start), start):
                return False
        return True

    def _put(self, piece: EpisodeBatch, start: int) -> bool:
        """Take a piece that leaves no gap; False where it contradicts a step that is already here."""
        if start < self.length or self.is_done:
            return self._refill(piece, start)
        self.pieces.append(piece)
        self.length += piece.num_steps
        return True

    def _refill(self, piece: EpisodeBatch, start: int) -> bool:
        """A piece whose first steps are here already: they must be equal, and only the rest is taken."""
        whole = self.joined()
        self.pieces = [whole]
        known = tail(whole, start)
        if not agree(known, piece) or (self.is_done and piece.num_steps > known.num_steps):
            return False
        self.refilled += min(known.num_steps, piece.num_steps)
        if piece.num_steps <= known.num_steps:
            return True
        return self._put(tail(piece, known.num_steps), self.length)

    def joined(self) -> EpisodeBatch:
        """The steps in order so far as one episode."""
        return join(self.pieces)

    def _head(self, steps: int) -> EpisodeBatch:
        """As many of the first pieces as hold `steps` steps, so that the work does not grow with the episode."""
        lengths = (piece.num_steps for piece in self.pieces)
        count = next((count for count, total in enumerate(accumulate(lengths), start=1) if total >= steps), len(self.pieces))
        return join(self.pieces[:count])

    def start_of(self, piece: EpisodeBatch, *, follows: bool) -> int | None:
        """The first timestep of a piece that does not declare it; None where it neither continues nor

        repeats. `follows`: its row is right after the last one here. A piece continues where observations chain; it repeats
        where its steps equal those from timestep 0 on (recorders write an episode again from its start).
        """
        if not self.pieces:
            return 0
        last = self.pieces[-1]
        if chains(last, piece):
            return self.length
        if agree(self._head(piece.num_steps), piece):
            return 0
        return self.length if follows or lacks_final(last) else None


def join(pieces: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """One episode of gapless one-episode batches that differ in dtypes at most; it has the widest."""
    if len(pieces) == 1:
        return pieces[0]
    parts = EpisodeBatch.concat(_of_one_dtype(pieces))
    kept = np.ones(parts.num_steps + len(parts), np.bool_)
    finals = parts.obs_starts[1:] - 1
    kept[finals[:-1]] = False
    return replace(
        parts,
        ids=parts.ids[:1],
        starts=parts.starts[[0, -1]],
        obs=map_leaves(lambda leaf: leaf[kept], parts.obs),
        terminated=parts.terminated[-1:],
        truncated=parts.truncated[-1:],
        infos=_joined_infos(parts, kept, finals),
        t_started=None if parts.t_started is None else parts.t_started[:1],
        start_kind=None if parts.start_kind is None else parts.start_kind[:1],
        agent_ids=_first(parts.agent_ids),
        module_ids=_first(parts.module_ids),
        multi_agent_ids=_first(parts.multi_agent_ids),
        custom_data=None if parts.custom_data is None else ({k: v for part in parts.custom_data for k, v in part.items()},),
        clock=None if parts.clock is None else np.array([[parts.clock[0, 0], parts.clock[-1, 1]]]),
        final_missing=None if parts.final_missing is None else parts.final_missing[-1:],
    )


def _shapes(piece: EpisodeBatch) -> dict[str, tuple[int, ...]]:
    """Of one step, by the path of each leaf."""
    named = (("obs", piece.obs), ("actions", piece.actions), *piece.extra.items())
    return {path: leaf.shape[1:] for name, tree in named for path, leaf in flatten(tree, name)}


def _of_one_dtype(pieces: Sequence[EpisodeBatch]) -> Sequence[EpisodeBatch]:
    if not any(pieces[0].structure_difference(other) for other in pieces[1:]):
        return pieces

    def widened(tree: Tree, *all_trees: Tree) -> Tree:
        return map_leaves(lambda leaf, *others: leaf.astype(np.result_type(*others), copy=False), tree, *all_trees)

    return [
        replace(
            piece,
            obs=widened(piece.obs, *(other.obs for other in pieces)),
            actions=widened(piece.actions, *(other.actions for other in pieces)),
            extra={name: widened(tree, *(other.extra[name] for other in pieces)) for name, tree in piece.extra.items()},
        )
        for piece in pieces
    ]


def _first(names: tuple[str | None, ...] | None) -> tuple[str | None, ...] | None:
    return None if names is None else names[:1]


def _joined_infos(parts: EpisodeBatch, kept: NDArray[np.bool_], finals: NDArray[np.int64]) -> list[Any] | None:
    """At a joint the info of the step before, unless it is empty: a fragment does not know its own first info."""
    if parts.infos is None:
        return None
    infos = list(parts.infos)
    for final in finals[:-1]:
        infos[final + 1] = infos[final] or infos[final + 1]
    return [info for info, keep in zip(infos, kept, strict=True) if keep]


def tail(piece: EpisodeBatch, first: int) -> EpisodeBatch:
    """The steps from row `first` on of a one-episode batch; its flags and final observation stay."""
    return replace(
        piece,
        starts=np.array([0, piece.num_steps - first], np.int64),
        obs=map_leaves(lambda leaf: leaf[first:], piece.obs),
        actions=map_leaves(lambda leaf: leaf[first:], piece.actions),
        rewards=piece.rewards[first:],
        extra={name: map_leaves(lambda leaf: leaf[first:], tree) for name, tree in piece.extra.items()},
        infos=None if piece.infos is None else piece.infos[first:],
    )


def agree(left: EpisodeBatch, right: EpisodeBatch) -> bool:
    """Whether two one-episode batches have equal steps as far as both go, and neither ends where the other continues."""
    steps = min(left.num_steps, right.num_steps)
    if left.structure_difference(right) or not steps:
        return False
    same = all(
        same_leaf(mine[:steps], theirs[:steps])
        for name in ("obs", "actions", "rewards")
        for mine, theirs in zip(leaves(getattr(left, name)), leaves(getattr(right, name)), strict=True)
    )
    if left.num_steps == right.num_steps:
        return bool(same and left.terminated[0] == right.terminated[0] and left.truncated[0] == right.truncated[0])
    shorter = left if left.num_steps == steps else right
    return bool(same and not shorter.terminated[0] and not shorter.truncated[0])


def chains(before: EpisodeBatch, after: EpisodeBatch) -> bool:
    """Whether the final observation of one is the first observation of the other, value for value."""
    return _same_row(before.obs, -1, after.obs, 0)


def lacks_final(piece: EpisodeBatch) -> bool:
    """Whether the source has no final observation of this piece, so that the one acted on last is repeated in its place."""
    return piece.final_missing is not None and bool(piece.final_missing[-1])


def start_kind(piece: EpisodeBatch) -> StartKind:
    """Where a one-episode batch starts."""
    return StartKind.AT_T if piece.start_kind is None else StartKind(int(piece.start_kind[0]))


def _same_row(left: Tree, i: int, right: Tree, j: int) -> bool:
    mine, theirs = dict(flatten(left)), dict(flatten(right))
    return mine.keys() == theirs.keys() and all(same_leaf(leaf[i], theirs[path][j]) for path, leaf in mine.items())


# ---- what cannot be an episode ----


def changed(what: str) -> BadData:
    """The error where sources are read again, and are not what they were when they were looked through."""
    fix = "run the command again; if it ends in the same way, offline-cli validate names what is wrong with the source"
    return BadData(what, where="the sources", fix=fix)


def gap(name: str, episode: OpenEpisode) -> BadData:
    """The error for an episode that waits for steps between those that are here."""
    after = min(episode.waiting)
    missing = (
        f"timestep {episode.length} is" if after == episode.length + 1 else f"timesteps {episode.length} to {after - 1} are"
    )
    return broken(name, f"{missing} missing", episode.waiting_at[after], GAP)


def after_end(name: str, place: str, what: str = "it has steps after its end") -> BadData:
    """The error for an episode that had ended before."""
    return broken(name, what, place, AFTER)


def broken(name: str, what: str, place: str, problem: str) -> BadData:
    """The error for fragments that make no episode; `problem`: its code."""
    return BadEpisode(
        f"episode {name} cannot be put together: {what}",
        where=place,
        fix="give all files of the recording at once, or --on-error skip to leave this episode out",
        details={PROBLEM: problem},
    )


def as_json(piece: EpisodeBatch) -> str:
    """A fragment as text for people and programs, for quarantine."""
    trees = {"obs": piece.obs, "actions": piece.actions, "rewards": piece.rewards, **piece.extra}
    columns = {path: leaf.tolist() for name, tree in trees.items() for path, leaf in flatten(tree, name)}
    flags = {"terminated": bool(piece.terminated[0]), "truncated": bool(piece.truncated[0])}
    start = 0 if piece.t_started is None else int(piece.t_started[0])
    return json.dumps({"eps_id": piece.ids[0], "t": start, **flags, **columns})
