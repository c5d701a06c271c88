"""A recording that an engine's workers play is the one that this process plays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operated import data_files
from pickled_engine import PickledEngine

from offline_cli import open_dataset
from offline_cli.engines.engine import EngineSpec
from offline_cli.errors import WorkerDied
from offline_cli.recording.record import record
from offline_cli.scopes import Reading

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "rllib_cartpole_expert"
RANDOM: dict[str, Any] = {"policy": "random", "vectorize": "sync", "num_envs": 3}


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> PickledEngine:
    """In place of processes, for tests that need none."""
    engine = PickledEngine()
    real = EngineSpec.engine
    monkeypatch.setattr(EngineSpec, "engine", lambda spec: real(spec) if spec.name == "local" else engine)
    return engine


@pytest.mark.parametrize("amount", [{"episodes": 30}, {"steps": 400}])
def test_the_same_episodes_are_recorded(amount: dict[str, int], tmp_path: Path, pickled: PickledEngine) -> None:
    record("CartPole-v1", tmp_path / "here", **RANDOM, **amount, max_rows_per_file=7)
    record("CartPole-v1", tmp_path / "there", **RANDOM, **amount, max_rows_per_file=7, engine="processes", num_env_runners=2)
    assert data_files(tmp_path / "here") == data_files(tmp_path / "there")
    assert pickled.items


def test_a_lost_worker_leaves_what_was_recorded_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import offline_cli.recording.record as recording

    real = recording.played_on

    def played(*args: Any) -> Reading[Any]:
        def some(_: Any) -> Iterator[Any]:
            with real(*args) as found:
                yield next(found)[:5]
            raise WorkerDied("a worker process has died", where="a worker", fix="use fewer workers")

        return Reading(some)

    monkeypatch.setattr(recording, "played_on", played)
    with pytest.raises(WorkerDied) as raised:
        record("CartPole-v1", tmp_path / "out", **RANDOM, episodes=30)
    kept = open_dataset(tmp_path / "out").manifest
    assert not kept.complete
    told = [raised.value.details[name] for name in ("out", "episodes", "steps")]
    assert told == [str(tmp_path / "out"), kept.counts.episodes, kept.counts.steps]
    assert raised.value.fix.count("--resume") == 1


@pytest.mark.integration
def test_real_processes_record_the_same(tmp_path: Path) -> None:
    record("CartPole-v1", tmp_path / "here", **RANDOM, episodes=30)
    record("CartPole-v1", tmp_path / "there", **RANDOM, episodes=30, num_env_runners=2)
    assert data_files(tmp_path / "here") == data_files(tmp_path / "there")
