"""What connector pieces learned while a recording was made: to the manifest, as JSON values, and back, every number exactly.

A filter that was given no state by a run learns as it plays. Runners begin with one state, and theirs are merged at the end, so
that each observation that was played counts once. The manifest has the result under `provenance`; a recording whose state is
lost cannot be resumed.

JSON has no typed arrays, no numbers that are not finite and no tuples: an array is `{"dtype", "shape", "values"}`, an infinity
or NaN its name in such an array or in `{"float": "nan"}`, and tuples come back as lists. A dict that has those keys itself
could not be distinguished from them, and is refused, as is everything that is neither a value nor an array.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from offline_cli.connectors.pipeline_spec import PlayPipelines
from offline_cli.datasets.file_names import DATA, MANIFEST, WRITING
from offline_cli.datasets.lease_record import WritingNote
from offline_cli.datasets.manifest import LEARNED, Manifest
from offline_cli.datasets.target_folder import UNFINISHED_WRITING
from offline_cli.errors import BadConfig, BadData, BadPiece, OfflineCliError
from offline_cli.files.locations import Location, open_location
from offline_cli.playing.plan import Plan
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy

__all__ = ["LEARNED", "Learned", "connector_state", "from_plain", "going_on", "learned_before", "merged", "to_plain"]

ARRAY: Final = frozenset({"dtype", "shape", "values"})
FLOAT: Final = frozenset({"float"})
KINDS: Final = "biuf"
MAX_INT: Final = 1 << 63
MAX_DEPTH: Final = 50  # a manifest's own limit is not far
FIX: Final = "give numbers, text, lists, dicts with text as keys, and arrays of numbers in its get_state"

MAX_BYTES: Final = 64 << 20  # of the manifest
SIDES: Final = ("env_to_module", "module_to_env")


def to_plain(state: Any, *, where: str, depth: int = MAX_DEPTH) -> Any:
    """JSON values. Raises BadPiece, with `where` and the keys down to the value that has no such form."""
    if isinstance(state, torch.Tensor):
        state = state.detach().cpu().numpy()
    if isinstance(state, (np.ndarray, np.generic)) and state.dtype.kind in KINDS:
        return _array(np.asarray(state))
    if isinstance(state, (list, tuple)) and depth:
        return [to_plain(item, where=f"{where}, {index}", depth=depth - 1) for index, item in enumerate(state)]
    if isinstance(state, Mapping) and depth and all(map(_is_text, state)) and state.keys() not in (ARRAY, FLOAT):
        return {key: to_plain(value, where=f"{where}, {key}", depth=depth - 1) for key, value in state.items()}
    if isinstance(state, float):
        return state if math.isfinite(state) else {"float": repr(state)}
    if state is None or isinstance(state, bool) or _is_text(state) or (isinstance(state, int) and -MAX_INT <= state < MAX_INT):
        return state
    raise BadPiece(f"{type(state).__name__} has no form in JSON", where=where, fix=FIX)


def _is_text(value: Any) -> bool:
    """Whether it is text that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _array(array: NDArray[Any]) -> dict[str, Any]:
    values = array.ravel().tolist()
    if array.dtype.kind == "f":
        values = [value if math.isfinite(value) else repr(value) for value in values]
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": values}


def from_plain(plain: Any, *, where: str) -> Any:
    """What `to_plain` made them of, with arrays for tensors and for numpy's scalars. Raises BadData for what it never makes."""
    if isinstance(plain, list):
        return [from_plain(item, where=where) for item in plain]
    if not isinstance(plain, Mapping):
        return plain
    try:
        if plain.keys() == FLOAT:
            return float(plain["float"])
        if plain.keys() == ARRAY:
            dtype = np.dtype(str(plain["dtype"]))
            if dtype.kind not in KINDS:
                raise ValueError(f"an array of {dtype}")
            values = [float(value) if dtype.kind == "f" else value for value in plain["values"]]
            return np.array(values, dtype).reshape(plain["shape"])
    except (TypeError, ValueError, OverflowError) as err:
        fix = "record again, or leave the state aside"
        raise BadData(f"the state of a piece cannot be read: {err}", where=where, fix=fix) from err
    return {key: from_plain(value, where=where) for key, value in plain.items()}


@dataclass(frozen=True, slots=True)
class Learned:
    """What the pieces of all runners learned, by side of the module and name of piece, as JSON values."""

    state: Mapping[str, Any] | None = None  # None: nothing, or it is lost
    lost: str | None = None  # why it is

    def provenance(self) -> dict[str, Any]:
        """For the manifest: the state, null where it is lost."""
        return {} if self.state is None and self.lost is None else {LEARNED: self.state}


def merged(pipelines: PlayPipelines, states: Sequence[Mapping[str, Any] | str]) -> Learned:
    """One state of those of all runners; text says why a runner's did not arrive.

    A state that cannot be merged or stored is lost, which is said: the episodes are not to be lost with it.
    """
    lost = [state for state in states if isinstance(state, str)]
    if lost:
        return Learned(lost=lost[0])
    arrived = [state for state in states if not isinstance(state, str)]
    try:
        plain = to_plain(pipelines.merge_states(arrived), where="state")
        size = len(json.dumps(plain))
        if size > MAX_BYTES:
            return Learned(lost=f"{size} bytes of state are too many for a manifest")
        return Learned(plain or None)
    except OfflineCliError as err:
        return Learned(lost=f"{err.what_in_one_line} ({err.where})")
    except Exception as err:  # noqa: BLE001  merge_states may be user code
        return Learned(lost=f"merging states raised {err!r}")


def connector_state(dataset: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What pieces learned while `dataset` was recorded: `{"env_to_module": {piece: state}, "module_to_env": {...}}`.

    For `set_state` of such pipelines; a side where nothing was learned is missing, as is all where the pieces were a run's and
    frozen. Raises StorageNotFound, and BadData for a broken manifest.
    """
    folder = open_location(os.fspath(dataset), storage_options)
    return _state_in(Manifest.read(folder), folder.join(MANIFEST).url) or {}


def _state_in(manifest: Manifest, where: str) -> dict[str, Any] | None:
    told = manifest.provenance.get(LEARNED)
    if not isinstance(told, dict):
        return None
    return {side: from_plain(told[side], where=f"{where}, {LEARNED}") for side in SIDES if side in told}


def going_on(plan: Plan, policy: Policy | PipedPolicy, target: Location, note: WritingNote | None) -> Plan:
    """`plan`, and `policy`, with what pieces had learned in the part that `note` is of. Raises as `learned_before` does."""
    if not (isinstance(policy, PipedPolicy) and policy.may_learn):
        return plan
    state = learned_before(target, note)
    if state is None:
        return plan
    policy.pipelines.set_state(state)
    return replace(plan, pieces=replace(plan.pieces, learned=state))


def learned_before(target: Location, note: WritingNote | None) -> dict[str, Any] | None:
    """What to resume from with `note`, which `check_target` gave; None: nothing was learned yet.

    Raises BadConfig where the state is lost: the process that had it was killed, or could not store it.
    """
    if note is None:
        return None
    place = target.join(MANIFEST)
    manifest = Manifest.read(target) if place.exists() else None
    ours = manifest is not None and manifest.provenance.get(UNFINISHED_WRITING, {}).get("generation") == note.generation
    if manifest is not None and ours and not target.join(WRITING).exists():
        if LEARNED not in manifest.provenance or manifest.provenance[LEARNED] is not None:
            return _state_in(manifest, place.url)
    elif not (target.join(DATA).exists() and any(note.generation in file.name for file in target.join(DATA).files())):
        return None
    what = "the episodes here are whole, but what the connector pieces had learned while they were played is lost"
    fix = "--overwrite to begin again, or the rest to another --out with --first-episode"
    raise BadConfig(what, where=target.url, fix=fix)
