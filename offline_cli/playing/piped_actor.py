"""Slots that a module plays through its pipelines.

The environment's own observations are recorded: pieces write into copies. The pieces see episodes with the ids that they will
have in the dataset. Actions and model outputs that cannot be recorded are an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.connectors.piece_options import piece_of
from offline_cli.connectors.pipeline_player import Acts
from offline_cli.connectors.slot_player import SlotError
from offline_cli.errors import BadPiece, OfflineCliError
from offline_cli.playing.actors import PolicyFailure
from offline_cli.playing.slots import RAISED, Index, Slots, copied
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Acted, rows_of
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["PipedActor"]

NUMBERS: Final = "biuf"


class PipedActor:
    """See Actor."""

    def __init__(
        self, policy: PipedPolicy, slots: int, *, block: int | None, records: bool, ids: Callable[[Index], tuple[str, ...]]
    ) -> None:
        """`block`: see `PipedPolicy.slot_player`. `records`: whether model outputs are recorded, and have to be numbers.
        `ids`: from indices in the plan to ids."""
        self.padded, self._records = slots, records
        self._player = policy.slot_player(slots, block=block)
        self._device, self._draws, self._ids = policy.device, bool(policy.chance_size), ids
        self._live = np.zeros(slots, np.bool_)
        self._all = False  # whether all are
        self._like: list[tuple[str, tuple[int, ...], Any]] | None = None  # of the model outputs: path, shape, dtype
        self._last: Acted | None = None

    # ---- episodes ----

    def begin(self, slots: Index, episodes: Index, at: Slots) -> None:
        """See Actor."""
        self._player.begin(slots, rows_of(at.obs, slots), _infos(at.infos, slots), ids=self._ids(episodes))
        self._live[slots] = True
        self._all = bool(self._live.all())

    def end(self, slots: Index, at: Slots, finals: Tree, infos: NDArray[Any] | None) -> None:
        """See Actor."""
        self._live[slots] = False
        self._all = False
        flags = {"terminated": at.terminated[slots], "truncated": at.truncated[slots]}
        try:
            self._player.step(slots, finals, at.rewards[slots], _infos(infos, slice(None)), **flags)
        except SlotError as err:
            raise _failure(err.slot, err.cause) from err.cause

    def went_on(self, at: Slots, live: NDArray[np.bool_]) -> None:
        """See Actor."""
        slots = np.flatnonzero(live)
        if len(slots):
            self._player.step(slots, rows_of(at.obs, slots), at.rewards[slots], _infos(at.infos, slots))

    # ---- actions ----

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Actor. Observations are those that the slots got."""
        if not self._all and not self._live.any():  # an environment's own vector class resets all its slots at once
            assert self._last is not None, "an episode has been played"
            return self._last
        numbers = torch.as_tensor(chance, dtype=torch.float32, device=self._device) if self._draws else None
        try:
            acts = self._player.act(chance=numbers)
        except RAISED as err:
            raise _failure(self._first_bad(numbers), err) from err
        first = 0 if self._all else int(np.argmax(self._live))
        try:
            self._check_extra(acts)
        except RAISED as err:
            raise _failure(first, err) from err
        self._last = Acted(acts.actions, self._filled(acts.actions_for_env, first), acts.extra)
        return self._last

    def _filled(self, for_env: Tree, first: int) -> Tree:
        """The actions, with a valid one in the rows of idle slots: that of another slot."""
        if not self._all:
            map_leaves(lambda leaf: leaf.__setitem__(~self._live, leaf[first]), for_env)
        return for_env

    def _check_extra(self, acts: Acts) -> None:
        """Raise BadPiece for model outputs that are not numbers, or are not those of the steps before."""
        found = [(path, leaf.shape[1:], leaf.dtype) for path, leaf in flatten(dict(acts.extra))] if self._records else []
        if found == self._like:
            return
        strange = [path for path, _, dtype in found if dtype.kind not in NUMBERS]
        fix = "have the pieces keep the model outputs alike, and numbers; what is not to be recorded, take out of the batch"
        if strange:
            raise BadPiece(f"model outputs that are not numbers: {', '.join(strange)}", where="module-to-env", fix=fix)
        if self._like is not None:
            what = f"model outputs {_told(found)}, which were {_told(self._like)} in the steps before"
            raise BadPiece(what, where="module-to-env", fix=fix)
        self._like = found

    def _first_bad(self, numbers: torch.Tensor | None) -> int:
        """The first slot for which the pieces, or the module, raise alone; the first that plays where they do for none."""
        live = np.flatnonzero(self._live).tolist()
        for slot in live if len(live) > 1 else []:
            try:
                self._player.rehearse(slot, chance=numbers)
            except RAISED:  # the same failure again, which is what is looked for
                return int(slot)
        return int(live[0])


def _infos(infos: NDArray[Any] | None, rows: Any) -> NDArray[Any] | None:
    """Copies, which pieces may write to."""
    if infos is None:
        return None
    found: NDArray[Any] = np.array(infos[rows])
    for row, info in enumerate(found.tolist()):
        found[row] = copied(info) if info else None
    return found


def _told(found: list[tuple[str, tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{path} {dtype}{list(shape)}" for path, shape, dtype in found)


def _failure(slot: int, cause: BaseException) -> PolicyFailure:
    """With the name of the piece that raised, if one did."""
    piece = piece_of(cause)
    if piece is not None:
        return PolicyFailure(slot, cause, f"piece {piece}")
    return PolicyFailure(slot, cause, "the pipelines" if isinstance(cause, OfflineCliError) else "the policy")
