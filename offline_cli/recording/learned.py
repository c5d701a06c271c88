"""What connector pieces learned while a recording was made: in its manifest, and back; refuses to go on without it.

A filter that was given no state by a run learns as it plays. Runners begin with one state, and theirs are merged at the end, so
that each observation that was played counts once. The manifest has the result under `provenance`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from offline_cli.connectors.play_pipelines import PlayPipelines
from offline_cli.errors import BadConfig, OfflineCliError
from offline_cli.playing.plan import Plan
from offline_cli.policies.piped_policy import PipedPolicy
from offline_cli.policies.policy import Policy
from offline_cli.recording.plain_states import from_plain, to_plain
from offline_cli.storage.layout import DATA, MANIFEST, WRITING
from offline_cli.storage.lease_record import WritingNote
from offline_cli.storage.locations import Location, open_location
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.target_folder import UNFINISHED_WRITING

__all__ = ["LEARNED", "Learned", "connector_state", "going_on", "learned_before", "merged"]

LEARNED: Final = "connector_state"  # in a manifest's provenance
MAX_BYTES: Final = 64 << 20  # of the manifest
SIDES: Final = ("env_to_module", "module_to_env")


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
    except Exception as err:  # noqa: BLE001  merge_states may be anybody's
        return Learned(lost=f"merging states raised {err!r}")


def connector_state(dataset: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What pieces learned while `dataset` was recorded: `{"env_to_module": {piece: state}, "module_to_env": {...}}`.

    For `set_state` of such pipelines; a side where nothing was learned is missing, as is all where the pieces were a run's and
    frozen. Raises StorageNotFound, and BadData for a broken manifest.
    """
    place = open_location(os.fspath(dataset), storage_options).join(MANIFEST)
    return _state_in(Manifest.from_bytes(place.read_bytes(), where=place.url), place.url) or {}


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
    policy.go_on_from(state)
    return replace(plan, pieces=replace(plan.pieces, learned=state))


def learned_before(target: Location, note: WritingNote | None) -> dict[str, Any] | None:
    """What to go on from with `note`, which `check_target` gave; None: nothing was learned yet.

    Raises BadConfig where the state is lost: the process that had it was killed, or could not store it.
    """
    if note is None:
        return None
    place = target.join(MANIFEST)
    manifest = Manifest.from_bytes(place.read_bytes(), where=place.url) if place.exists() else None
    ours = manifest is not None and manifest.provenance.get(UNFINISHED_WRITING, {}).get("generation") == note.generation
    if manifest is not None and ours and not target.join(WRITING).exists():
        if LEARNED not in manifest.provenance or manifest.provenance[LEARNED] is not None:
            return _state_in(manifest, place.url)
    elif not _has_shards(target, note):
        return None
    what = "the episodes here are whole, but what the connector pieces had learned while they were played is lost"
    fix = "--overwrite to begin again, or the rest to another --out with --first-episode"
    raise BadConfig(what, where=target.url, fix=fix)


def _has_shards(target: Location, note: WritingNote) -> bool:
    data = target.join(DATA)
    return data.exists() and any(note.generation in file.name for file in data.files())
