"""Recordings by RLlib 2.40 to 2.60 are read with the episodes, steps and rewards that each version recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rllib_versions import FIRST, VERSIONS, counts, unpacked

from offline_cli import convert, validate
from offline_cli.converting.reading import read_episodes
from offline_cli.episodes.batch import EpisodeBatch

RECORDINGS = ("episodes", "columns", "packed_columns", "fragments", "pendulum_columns")


PAIRS = [(version, name) for i, version in enumerate(VERSIONS) for j, name in enumerate(RECORDINGS) if (i + j) % 2 == 0]


@pytest.fixture(scope="module")
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(request.param, tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize(("sample", "name"), PAIRS, indirect=["sample"])
def test_a_recording_has_the_counts_of_the_version_that_made_it(name: str, sample: Path, tmp_path: Path) -> None:
    told = counts(sample)["recorded"][name]
    result = convert([str(sample / name)], tmp_path / "D")
    assert (result.episodes, result.steps) == (told["episodes"], told["steps"])
    assert (result.rows_in, result.rows_quarantined, result.episodes_lost) == (told["its_reader"]["rows"], 0, 0)
    found = EpisodeBatch.concat(list(read_episodes([str(tmp_path / "D")])))
    assert found.rewards.sum() == pytest.approx(told["return"], abs=1e-6)
    spaces = ((3,), (1,)) if name.startswith("pendulum") else ((4,), ())
    assert (found.obs.shape[1:], found.actions.shape[1:]) == spaces
    assert np.isfinite(found.obs).all()
    assert "error" not in {problem.severity for problem in validate([str(tmp_path / "D")], deep=True).problems}


def test_what_2_40_wrote_twice_is_read_once(tmp_path: Path) -> None:
    sample = unpacked(FIRST, tmp_path)
    told = counts(sample)["recorded"]["episodes"]
    assert told["its_reader"]["steps"] == 2 * told["steps"]
    assert convert([str(sample / "episodes")], tmp_path / "D").duplicates_dropped == told["episodes"]
