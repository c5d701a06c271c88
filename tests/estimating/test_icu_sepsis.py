"""Estimates against exact values of ICU-Sepsis (Choudhary et al. 2024), intensive care as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import Array, Table, intensive_care, run_of

from offline_cli import write_dataset
from offline_cli.estimating.evaluate_offline import evaluate_offline

PATIENTS = 10_000
NAMES = ("wis", "dm", "dr")


@pytest.fixture(scope="module")
def care() -> Table:
    return intensive_care()[0]


@pytest.fixture(scope="module")
def clinicians() -> Array:
    return intensive_care()[1]


def estimated(care: Table, played: Array, target: Array, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """Of each seed the estimates, with their `error`."""
    found = []
    for seed in range(seeds):
        patients = care.recorded(played, PATIENTS, seed)
        run = run_of(target, patients, folder) if seed == 0 else folder / "run"
        write_dataset(patients, folder / f"patients-{seed}")
        told = evaluate_offline(run, folder / f"patients-{seed}", explore=True, estimators=NAMES).estimates
        found.append({name: {**one, "error": abs(one["value"] - care.value(target))} for name, one in told.items()})
        assert told["wis"]["effective_samples"] >= 50 or not (told["wis"]["reliable"] or told["dr"]["reliable"])
    return found


def medians(found: list[dict[str, Any]], key: str) -> dict[str, float]:
    return {name: float(np.median([one[name][key] for one in found])) for name in NAMES if found[0][name][key] is not None}


@pytest.mark.integration
def test_exact_values_are_the_published_ones(care: Table, clinicians: Array) -> None:
    policies = np.full_like(clinicians, 1 / 25), clinicians, care.optimal()
    assert [care.value(one) for one in policies] == pytest.approx([0.7801, 0.7818, 0.8751], abs=1e-4)


@pytest.mark.integration
def test_one_set_of_patients_tells_a_policy_5_percent_of_the_way_to_the_optimal_one(
    care: Table, clinicians: Array, tmp_path: Path
) -> None:
    (found,) = estimated(care, clinicians, 0.95 * clinicians + 0.05 * care.optimal(), 1, tmp_path)
    assert max(one["error"] for one in found.values()) <= 0.015
    assert found["wis"]["effective_samples"] >= 1000
    assert found["wis"]["reliable"]
    assert found["dr"]["reliable"]


@pytest.mark.nightly
@pytest.mark.parametrize(("share", "of_wis", "least", "most"), [(0.05, 0.015, 1000, 10_000), (0.2, 0.06, 100, 1000)])
def test_median_errors_are_small_where_the_policy_is_near_the_clinicians(
    care: Table, clinicians: Array, tmp_path: Path, share: float, of_wis: float, least: int, most: int
) -> None:
    found = estimated(care, clinicians, (1 - share) * clinicians + share * care.optimal(), 20, tmp_path)
    errors = medians(found, "error")
    assert errors["wis"] <= of_wis
    assert max(errors["dm"], errors["dr"]) <= 0.02
    assert least <= medians(found, "effective_samples")["wis"] < most


@pytest.mark.nightly
def test_the_optimal_policy_is_refused_or_has_a_wide_interval_beside_clinicians_who_are_half_at_random(
    care: Table, clinicians: Array, tmp_path: Path
) -> None:
    found = estimated(care, (clinicians + 1 / 25) / 2, care.optimal(), 20, tmp_path)
    for one in (each[name] for each in found for name in NAMES):
        assert not one["reliable"] or one["high"] - one["low"] > 0.1
