"""An episode whose fragments are still arriving: orders, compares and joins them; contradicting steps raise.

All functions work on whole arrays of one-episode batches. The observation at a joint appears twice, as the final one of a
fragment and the first one of the next; the joined episode keeps the second, because sources without next observations have
only that one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import PROBLEM, BadData, BadEpisode
from offline_cli.formats.source import StartKind
from offline_cli.tally import AFTER, GAP
from offline_cli.trees import Tree, flatten, leaves, map_leaves, same_leaf


@dataclass(slots=True)
class OpenEpisode:
    """The fragments of one id so far; complete once the last piece has an end flag and no fragment is waiting."""

    place: str  # of the first fragment
    location: str  # of its source
    pieces: list[EpisodeBatch] = field(default_factory=list)  # one-episode batches, gapless from timestep 0
    waiting: dict[int, tuple[EpisodeBatch, str]] = field(default_factory=dict)
    """Fragments after a gap, with their places, by first timestep."""
    length: int = 0  # steps in `pieces`
    after_end: bool = False  # it continues an episode of its id after an end flag
    refilled: int = 0  # equal steps that arrived more than once

    @property
    def is_done(self) -> bool:
        """Whether the last step in order ended the episode."""
        return bool(self.pieces) and bool(self.pieces[-1].terminated[0] or self.pieces[-1].truncated[0])

    @property
    def all_pieces(self) -> list[EpisodeBatch]:
        """The pieces in order, then the waiting ones."""
        return [*self.pieces, *(piece for piece, _ in self.waiting.values())]

    def structure_difference(self, piece: EpisodeBatch) -> str:
        """Why `piece` cannot belong to this episode, as text; empty if it can. Dtypes may be widened."""
        known = self.pieces[:1] or self.all_pieces[:1]
        return known[0].structure_difference(piece) if known and _shapes(known[0]) != _shapes(piece) else ""

    def start_of(self, piece: EpisodeBatch) -> int | None:
        """The first timestep of a piece; None if it declares none and neither continues nor repeats this episode.

        Without timesteps, a piece continues the episode if observations chain; it repeats it if its steps equal those from
        timestep 0 on (recorders rewrite an episode from its start); else it continues if its row directly follows the last one.
        """
        kind = start_kind(piece)
        if kind == StartKind.AT_T:
            return 0 if piece.t_started is None else int(piece.t_started[0])
        if not self.pieces:
            return 0
        if chains(self.pieces[-1], piece):
            return self.length
        if _agree(self._head(piece.num_steps), piece):
            return 0
        return self.length if kind == StartKind.CONTINUES or lacks_final(self.pieces[-1]) else None

    def _head(self, steps: int) -> EpisodeBatch:
        """The first pieces with at least `steps` steps, so that the cost does not grow with the episode."""
        totals = accumulate(piece.num_steps for piece in self.pieces)
        return _join(self.pieces[: next((n for n, total in enumerate(totals, 1) if total >= steps), None)])

    def add(self, piece: EpisodeBatch, start: int, place: str) -> bool:
        """Add `piece`, whose first timestep is `start`; return False if it contradicts an existing step."""
        if start > self.length:
            return self._wait(piece, start, place)
        if not self._put(piece, start):
            return False
        for start in sorted(self.waiting):
            if start > self.length:
                break
            if not self._put(self.waiting.pop(start)[0], start):
                return False
        return True

    def _wait(self, piece: EpisodeBatch, start: int, place: str) -> bool:
        if start in self.waiting:
            other, place = self.waiting[start]
            if not _agree(other, piece):
                return False
            self.refilled += min(other.num_steps, piece.num_steps)
            piece = piece if piece.num_steps > other.num_steps else other
        self.waiting[start] = piece, place
        return True

    def _put(self, piece: EpisodeBatch, start: int) -> bool:
        """Add a piece without a gap. Steps that exist already must be equal, and only the rest is added; return False if they
        differ.
        """
        if start < self.length or self.is_done:
            self.pieces = [self.joined()]
            known = _tail(self.pieces[0], start)
            if not _agree(known, piece) or (self.is_done and piece.num_steps > known.num_steps):
                return False
            self.refilled += min(known.num_steps, piece.num_steps)
            if piece.num_steps <= known.num_steps:
                return True
            piece = _tail(piece, known.num_steps)
        self.pieces.append(piece)
        self.length += piece.num_steps
        return True

    def joined(self) -> EpisodeBatch:
        """The gapless steps so far as one episode."""
        return _join(self.pieces)

    def gap(self) -> BadData:
        """The error for an episode with missing steps."""
        name, after = self.all_pieces[0].ids[0], min(self.waiting)
        missing = f"timestep {self.length} is" if after == self.length + 1 else f"timesteps {self.length} to {after - 1} are"
        return broken(name, f"{missing} missing", self.waiting[after][1], GAP)


# ---- pieces ----


def _join(pieces: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """Join gapless one-episode batches, which may differ only in dtypes, to one episode with widened dtypes."""
    if len(pieces) == 1:
        return pieces[0]
    parts = EpisodeBatch.concat(_of_one_dtype(pieces))
    kept = np.ones(parts.num_steps + len(parts), np.bool_)
    finals = parts.obs_starts[1:] - 1
    kept[finals[:-1]] = False
    infos = list(parts.infos or ())
    for final in finals[:-1] if infos else ():
        infos[final + 1] = infos[final] or infos[final + 1]  # a fragment lacks its own first info
    return replace(
        parts.select(slice(0, 1)),
        starts=parts.starts[[0, -1]],
        obs=map_leaves(lambda leaf: leaf[kept], parts.obs),
        actions=parts.actions,
        rewards=parts.rewards,
        extra=parts.extra,
        terminated=parts.terminated[-1:],
        truncated=parts.truncated[-1:],
        infos=None if parts.infos is None else [info for info, keep in zip(infos, kept, strict=True) if keep],
        custom_data=None if parts.custom_data is None else ({k: v for part in parts.custom_data for k, v in part.items()},),
        clock=None if parts.clock is None else np.array([[parts.clock[0, 0], parts.clock[-1, 1]]]),
        final_missing=None if parts.final_missing is None else parts.final_missing[-1:],
    )


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


def _shapes(piece: EpisodeBatch) -> dict[str, tuple[int, ...]]:
    """Shapes of one step, by leaf path."""
    named = (("obs", piece.obs), ("actions", piece.actions), *piece.extra.items())
    return {path: leaf.shape[1:] for name, tree in named for path, leaf in flatten(tree, name)}


def _tail(piece: EpisodeBatch, first: int) -> EpisodeBatch:
    """A one-episode batch without its first `first` steps."""
    return replace(
        piece,
        starts=np.array([0, piece.num_steps - first], np.int64),
        obs=map_leaves(lambda leaf: leaf[first:], piece.obs),
        actions=map_leaves(lambda leaf: leaf[first:], piece.actions),
        rewards=piece.rewards[first:],
        extra={name: map_leaves(lambda leaf: leaf[first:], tree) for name, tree in piece.extra.items()},
        infos=None if piece.infos is None else piece.infos[first:],
    )


def _agree(left: EpisodeBatch, right: EpisodeBatch) -> bool:
    """Whether two one-episode batches agree in their common steps, and neither ends where the other continues."""
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
    """Whether the final observation of `before` equals the first observation of `after`."""
    mine, theirs = dict(flatten(before.obs)), dict(flatten(after.obs))
    return mine.keys() == theirs.keys() and all(same_leaf(leaf[-1], theirs[path][0]) for path, leaf in mine.items())


def lacks_final(piece: EpisodeBatch) -> bool:
    """Whether this piece has no recorded final observation, but repeats the previous one."""
    return piece.final_missing is not None and bool(piece.final_missing[-1])


def start_kind(piece: EpisodeBatch) -> StartKind:
    """Where a one-episode batch starts."""
    return StartKind.AT_T if piece.start_kind is None else StartKind(int(piece.start_kind[0]))


def as_json(piece: EpisodeBatch) -> str:
    """A fragment as JSON text, for quarantine."""
    trees: dict[str, Any] = {"obs": piece.obs, "actions": piece.actions, "rewards": piece.rewards, **piece.extra}
    columns = {path: leaf.tolist() for name, tree in trees.items() for path, leaf in flatten(tree, name)}
    flags = {"terminated": bool(piece.terminated[0]), "truncated": bool(piece.truncated[0])}
    start = 0 if piece.t_started is None else int(piece.t_started[0])
    return json.dumps({"eps_id": piece.ids[0], "t": start, **flags, **columns})


# ---- errors ----


def changed(what: str) -> BadData:
    """The error for sources that changed between two readings."""
    fix = "run the command again; if it fails again, check the source with offline-cli validate"
    return BadData(what, where="the sources", fix=fix)


def after_end(name: str, place: str, what: str = "it has steps after its end") -> BadData:
    """The error for steps after the end of an episode."""
    return broken(name, what, place, AFTER)


def broken(name: str, what: str, place: str, problem: str) -> BadData:
    """The error for fragments that cannot be joined; `problem`: the problem code."""
    fix = "give all files of the recording at once, or skip this episode with --on-error skip"
    return BadEpisode(f"episode {name} cannot be stitched: {what}", where=place, fix=fix, details={PROBLEM: problem})
