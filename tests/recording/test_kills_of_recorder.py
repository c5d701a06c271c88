"""`kill -9` of a program that records its own loop, on disk and S3: `resume` goes on; two shards are lost at most."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from offline_cli import inspect, open_dataset, validate

pytestmark = pytest.mark.nightly

REPOSITORY = Path(__file__).resolve().parents[2]
KILLS, ROWS, LAST = 12, 4, 200
PROGRAM = f"""
import sys
from recording_envs import Count
from offline_cli import Recorder

out, first, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "resume"
with Recorder(Count(), out, resume=resume, max_rows_per_file={ROWS}) as env:
    for seed in range(first, {LAST}):
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            _, _, terminated, truncated, _ = env.step(0)
            is_over = terminated or truncated
        print(seed, flush=True)
"""


@pytest.fixture(params=["local", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Where the dataset goes, and the environment in which programs find it."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "support")])
    if request.param == "local":
        return str(tmp_path / "D"), {**os.environ, "PYTHONPATH": path}
    server = request.getfixturevalue("s3")
    return f"{server.bucket()}/D", {**os.environ, **server.environment, "PYTHONPATH": path}


def test_a_killed_loop_is_gone_on_with_and_loses_two_shards_at_most(target: tuple[str, dict[str, str]]) -> None:
    out, environment = target
    chance, seen, lost = random.Random(3), list[int](), set[int]()
    for number in range(KILLS + 1):
        first = seen[-1] + 1 if seen else 0
        words = [sys.executable, "-c", PROGRAM, out, str(first), "resume" if number else "new"]
        with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            wanted = chance.randrange(1, 30) if number < KILLS else LAST
            for line in process.stdout:
                seen.append(int(line))
                wanted -= 1
                if not wanted:
                    process.kill()
                    break
            seen += [int(line) for line in process.stdout]  # what was said until then
        assert process.returncode == (-9 if number < KILLS else 0)
        lost |= set(seen[-2 * ROWS :]) if number < KILLS else set()
    with open_dataset(out) as dataset:
        kept = [int(episode.get_infos(0)["seed"]) for episode in dataset]
    assert seen == list(range(LAST))
    assert kept == sorted(set(kept)), "an episode is there twice, or out of order"
    assert set(seen) - set(kept) <= lost
    assert len(kept) > LAST - KILLS * 2 * ROWS
    assert inspect(out).complete
    assert {problem.severity for problem in validate(out).problems} <= {"note"}
