"""What a manifest says of a recording beyond its data, and whether a dataset is that recording already; refuses nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from offline_cli.playing.plan import Plan, environment_seed
from offline_cli.storage.blanking import blanked
from offline_cli.storage.layout import MANIFEST, WRITING
from offline_cli.storage.lease_record import identity_hash
from offline_cli.storage.locations import Location
from offline_cli.storage.manifest import Manifest

__all__ = ["finished_manifest", "provenance"]

RECORDING = "recording"


def provenance(plan: Plan, fingerprint: str, command: Sequence[str]) -> dict[str, Any]:
    """For `DatasetWriter`: policy, seeds, and all that the episodes follow from."""
    known: dict[str, Any] = {"policy": blanked(plan.policy), "seeds": [plan.seed], RECORDING: _described(plan, fingerprint)}
    if command:
        known["commands"] = [shlex.join(command)]
    return known


def _described(plan: Plan, fingerprint: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        **_asked(plan, fingerprint),
        "policy_fingerprint": fingerprint,
        "explore": plan.explore,
        "seed": plan.seed,
        "wrappers": list(plan.wrappers),
        "vectorize": plan.vectorize,
        "num_envs": plan.num_envs,
        "runners": plan.runners,
        "device": plan.device,
        **plan.pieces.described(),
    }
    if plan.own_class:
        return {**described, "vector_seeds": [plan.vector_seed(runner) for runner in range(plan.runners)]}
    # The next episode has the next seed.
    return {**described, "first_environment_seed": environment_seed(plan.seed, plan.first)}


def finished_manifest(target: Location, plan: Plan, fingerprint: str, format: str) -> Manifest | None:
    """The manifest of a dataset that holds all that the plan asks for, recorded the same way; None for any other."""
    place = target.join(MANIFEST)
    if target.join(WRITING).exists() or not place.exists():
        return None
    found = Manifest.from_bytes(place.read_bytes(), where=place.url)
    told = found.provenance.get(RECORDING)
    same = isinstance(told, dict) and _asked(plan, fingerprint).items() <= {**told, "identity": _hashed(told)}.items()
    return found if found.complete and found.format == format and same else None


def _hashed(told: dict[str, Any]) -> Any:
    """The identity in a manifest; earlier versions wrote the text that it is the hash of."""
    known = told.get("identity")
    return identity_hash(known) if isinstance(known, str) and known.startswith("[") else known


def _asked(plan: Plan, fingerprint: str) -> dict[str, Any]:
    """What the episodes and their number follow from, as the manifest has it."""
    return {
        "identity": identity_hash(plan.identity(fingerprint)),
        "first_episode": plan.first,
        "asked": {"episodes": plan.episodes, "steps": plan.steps},
    }
