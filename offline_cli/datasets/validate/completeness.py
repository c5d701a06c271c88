"""What is told of a dataset that is not complete, by how that came about; refuses to name a remedy that would be refused."""

from __future__ import annotations

from typing import Any

from offline_cli.datasets.repair.plan import LEFT_OUT
from offline_cli.storage.manifest import Manifest
from offline_cli.storage.target_folder import REPAIRED_FIX, UNFINISHED_WRITING

__all__ = ["told_of"]


def told_of(manifest: Manifest) -> dict[str, Any]:
    """For `Findings.add`, of a manifest that says `complete: false`."""
    if UNFINISHED_WRITING in manifest.provenance:
        return {}  # --resume goes on from there
    left_out = manifest.assumptions.get(LEFT_OUT, 0)
    if left_out:
        return {"example": f"repair left out {left_out:,} {'shard' if left_out == 1 else 'shards'}", "fix": REPAIRED_FIX}
    if "repaired" in manifest.provenance:
        counted = f"compare {manifest.counts.episodes:,} episodes with what was asked for"
        return {
            "severity": "note",
            "example": "repair built the manifest anew from every shard, and nothing says whether there were to be more",
            "fix": f"{counted}; where some are missing, {REPAIRED_FIX}",
        }
    return {  # readers refuse it: `Dataset.refuse_unexplained`
        "severity": "error",
        "example": "nothing in the manifest says what is missing, or how that came about",
        "fix": "write the dataset again from its source, or read its shards without the manifest, as data/",
    }
