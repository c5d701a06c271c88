"""Slots that a module plays through its pipelines; refuses actions and model outputs that cannot be recorded.

Recorded are the environment's own observations: pieces write into copies. The pieces see episodes with the ids that they will
have in the dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.connectors.blaming import piece_of
from offline_cli.connectors.slot_player import SlotActs
from offline_cli.errors import BadPiece, OfflineCliError
from offline_cli.recording.actor import PolicyFailure
from offline_cli.recording.infos import copied
from offline_cli.recording.piped_policy import PipedPolicy
from offline_cli.recording.policy import Acted
from offline_cli.recording.rows import rows_of
from offline_cli.recording.slots import RAISED, Index, Slots
from offline_cli.trees import Tree, flatten, map_leaves

__all__ = ["PipedActor"]

NUMBERS: Final = "biuf"


class PipedActor:
    """See Actor."""

    def __init__(self, policy: PipedPolicy, slots: int, *, alike: bool, ids: Callable[[Index], tuple[str, ...]]) -> None:
        """`alike`: an episode is the same in any number of slots. `ids`: from indices in the recording to ids."""
        self.padded = slots
        self._player = policy.slot_player(slots, alike=alike)
        self._device, self._draws, self._ids = policy.device, bool(policy.chance_size), ids
        self._live = np.zeros(slots, np.bool_)
        self._like: list[tuple[str, tuple[int, ...], Any]] | None = None  # of the model outputs: path, shape, dtype
        self._last: Acted | None = None

    # ---- episodes ----

    def begin(self, slots: Index, episodes: Index, at: Slots) -> None:
        """See Actor."""
        for slot, id_ in zip(slots.tolist(), self._ids(episodes), strict=True):
            self._player.begin(slot, rows_of(at.obs, slot), _info(at.infos, slot), id_=id_)
        self._live[slots] = True

    def end(self, slots: Index, at: Slots, finals: Tree, infos: NDArray[Any] | None) -> None:
        """See Actor."""
        self._live[slots] = False
        for row, slot in enumerate(slots.tolist()):
            flags = {"terminated": bool(at.terminated[slot]), "truncated": bool(at.truncated[slot])}
            with _blaming(slot):
                self._player.step(slot, rows_of(finals, row), float(at.rewards[slot]), _info(infos, row), **flags)

    def went_on(self, at: Slots, live: NDArray[np.bool_]) -> None:
        """See Actor."""
        for slot in np.flatnonzero(live).tolist():
            info = _info(at.infos, slot)
            self._player.step(slot, rows_of(at.obs, slot), float(at.rewards[slot]), info, terminated=False, truncated=False)

    # ---- actions ----

    def act(self, observations: Tree, chance: NDArray[np.float64]) -> Acted:
        """See Actor. Observations are those that the slots were told of."""
        if not self._live.any():  # an environment's own vector class resets all its slots at once
            assert self._last is not None, "an episode has been played"
            return self._last
        numbers = torch.as_tensor(chance, dtype=torch.float32, device=self._device) if self._draws else None
        try:
            acts = self._player.act(chance=numbers)
        except RAISED as err:
            raise _failure(self._first_bad(numbers), err) from err
        first = int(np.argmax(self._live))
        with _blaming(first):
            self._check_extra(acts)
        self._last = Acted(acts.actions, self._filled(acts.actions_for_env, first), acts.extra)
        return self._last

    def _filled(self, for_env: Tree, first: int) -> Tree:
        """With a valid action in the rows of idle slots: that of another slot."""
        if not self._live.all():
            map_leaves(lambda leaf: leaf.__setitem__(~self._live, leaf[first]), for_env)
        return for_env

    def _check_extra(self, acts: SlotActs) -> None:
        """Raise BadPiece for model outputs that are no numbers, or are not those of the steps before."""
        found = [(path, leaf.shape[1:], leaf.dtype) for path, leaf in flatten(dict(acts.extra))]
        if found == self._like:
            return
        strange = [path for path, _, dtype in found if dtype.kind not in NUMBERS]
        fix = "have the pieces keep the model outputs alike, and numbers; what is not to be recorded, take out of the batch"
        if strange:
            raise BadPiece(f"model outputs that are no numbers: {', '.join(strange)}", where="module-to-env", fix=fix)
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


def _info(infos: NDArray[Any] | None, row: int) -> Mapping[str, Any] | None:
    """A copy, which pieces may write to."""
    found = None if infos is None else infos[row]
    return copied(found) if found else None


def _told(found: list[tuple[str, tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{path} {dtype}{list(shape)}" for path, shape, dtype in found)


@contextmanager
def _blaming(slot: int) -> Iterator[None]:
    try:
        yield
    except RAISED as err:
        raise _failure(slot, err) from err


def _failure(slot: int, cause: BaseException) -> PolicyFailure:
    """With the name of the piece that raised, if one did."""
    piece = piece_of(cause)
    if piece is not None:
        return PolicyFailure(slot, cause, f"piece {piece}")
    return PolicyFailure(slot, cause, "the pipelines" if isinstance(cause, OfflineCliError) else "the policy")
