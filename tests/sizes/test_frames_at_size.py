"""20,000 frames of Pong, 84 x 84: how much memory a run on stacks of four takes beside its libraries, and how much disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from offline_cli.datasets.dataset import open_dataset
from offline_cli.datasets.write_dataset import write_dataset
from offline_cli.episodes.batch import EpisodeBatch

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(sys.platform != "linux", reason="memory is asked of /proc")]
pytest.importorskip("ale_py", reason="Atari comes with the extra [atari]")

SLOTS, LENGTH, STEPS = 8, 625, 20_000
NEXT = spaces.Box(0, 255, (84, 84, 1), np.uint8)


def pong(steps: int) -> Iterator[EpisodeBatch]:
    """Episodes of single frames, by Atari's own vector class."""
    import gymnasium as gym

    from offline_cli.environments import _spec

    _spec("ALE/Pong-v5")  # which registers the games
    form: dict[str, Any] = {"vectorization_mode": "vector_entry_point", "max_num_frames_per_episode": 4 * LENGTH}
    vector, chance = gym.make_vec("ALE/Pong-v5", SLOTS, **form), np.random.default_rng(0)
    for round_ in range(-(-steps // (SLOTS * LENGTH))):
        seen, actions = [vector.reset(seed=round_)[0][:, -1].copy()], []
        for _ in range(LENGTH):
            actions.append(chance.integers(0, 6, SLOTS))
            seen.append(vector.step(actions[-1])[0][:, -1].copy())
        for slot in range(SLOTS):
            yield EpisodeBatch(
                ids=(f"{round_}-{slot}",),
                starts=np.array([0, LENGTH]),
                obs=np.stack([frames[slot] for frames in seen])[..., None],
                actions=np.array([chosen[slot] for chosen in actions]),
                rewards=np.zeros(LENGTH),
                terminated=np.array([False]),
                truncated=np.array([True]),
                observation_space=NEXT,
                action_space=spaces.Discrete(6),
            )
    vector.close()


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pong") / "data"
    write_dataset(pong(STEPS), out, action_scale="env")
    return out


def test_a_dataset_of_frames_is_little_larger_than_a_column_of_them(frames: Path, tmp_path: Path) -> None:
    with open_dataset(frames) as dataset, dataset.batches() as batches:
        cells = [image.tobytes() for batch in batches for image in batch.acted_obs()]
    assert len(cells) == STEPS
    pq.write_table(pa.table({"frame": pa.array(cells, pa.binary())}), tmp_path / "f.parquet", compression="zstd")
    taken = sum(file.stat().st_size for file in (frames / "data").iterdir())
    assert taken <= 1.3 * (tmp_path / "f.parquet").stat().st_size


MEASURED = """
import json, re, sys
from offline_cli.connectors import FrameStacking
from offline_cli.training.session import Session
from offline_cli.training.train import train_bc

def taken():
    told = open("/proc/self/status").read()
    return [1024 * int(re.search(name + r":\\s+(\\d+)", told)[1]) for name in ("VmRSS", "VmHWM")]

small, data, out, config, more = *sys.argv[1:5], json.loads(sys.argv[5])
options = dict(config=config, updates=3, pipeline=lambda o, a: [FrameStacking(num_frames=4, as_learner_connector=True)], **more)
if not more:
    train_bc(small, out + "/run-small", **options)  # all libraries are there
before, _ = taken()
open("/proc/self/clear_refs", "w").write("5")
advance, seen = Session.advance, []
def look(session, *given):
    seen.append(taken()[0])
    return advance(session, *given)
Session.advance = look
train_bc(data, out + "/run-large", **options)
print(json.dumps([before, seen[0], taken()[1]]))
"""


def measured(frames: Path, tmp_path: Path, **more: Any) -> tuple[int, int, int]:
    """Bytes that a process takes before, at its first update, and at most."""
    write_dataset(pong(1), tmp_path / "small", action_scale="env")
    (tmp_path / "c.toml").write_text("hidden = [16]\nbatch_size = 32\nthreads = 1\n")
    told = [str(tmp_path / "small"), str(frames), str(tmp_path), str(tmp_path / "c.toml"), json.dumps(more)]
    done = subprocess.run([sys.executable, "-c", MEASURED, *told], capture_output=True, text=True, check=True)
    before, training, most = json.loads(done.stdout.splitlines()[-1])
    return before, training, most


def test_a_run_in_memory_takes_little_more_than_the_frames(frames: Path, tmp_path: Path) -> None:
    before, training, most = measured(frames, tmp_path)
    size = STEPS * 84 * 84
    assert training - before <= 1.2 * size
    assert most - before <= 1.2 * size, "while it reads them"


def test_a_streaming_run_keeps_to_its_limit(frames: Path, tmp_path: Path) -> None:
    *_, most = measured(frames, tmp_path, streaming=True, memory_limit="1GiB")
    assert most <= 1 << 30
