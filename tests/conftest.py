"""Fixtures that every test may use."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several test processes share the cores; torch reads it when it is imported

import numpy as np
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from offline_cli.episodes.batch import EpisodeBatch
    from offline_cli.spaces import Space
    from offline_cli.storage.locations import Location

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))  # modules that tests of several packages share
pytest_plugins = ["called_commands", "cloud_servers", "installed_packages", "rllib_answers", "warm_commands"]
settings.register_profile("ci", deadline=None, derandomize=True, database=None)  # the same examples on every machine
settings.register_profile("nightly", deadline=None, max_examples=1000, print_blob=True)  # random: write down what it finds
settings.load_profile(os.environ.get("OFFLINE_CLI_HYPOTHESIS", "ci"))
# A child counts the memory of the process that started it as its own, until it runs its program: so a small one starts it.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
out = process.stdout.read()
_, status, usage = os.wait4(process.pid, 0)
peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
sys.stdout.buffer.write(str(peak).encode() + b" " + out)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of recordings made by RLlib and Minari themselves; skips where it is not beside the repository."""
    folder = Path(os.environ.get("OFFLINE_CLI_REAL_DATA", REPOSITORY.parent / "shared" / "real_data"))
    if not folder.is_dir():
        pytest.skip(f"recordings by RLlib and Minari are not at {folder}; set OFFLINE_CLI_REAL_DATA")
    return folder


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., EpisodeBatch]:
    """A function that makes a batch of whole, terminated episodes sampled from spaces: the same one for the same arguments."""
    from offline_cli.episodes.batch import EpisodeBatch
    from offline_cli.episodes.single_agent_episode import SingleAgentEpisode

    def make(observation_space: Space, action_space: Space, lengths: Sequence[int] = (3, 1, 5), seed: int = 0) -> EpisodeBatch:
        observation_space.seed(seed)
        action_space.seed(seed)
        rng = np.random.default_rng(seed)
        return EpisodeBatch.from_episodes(
            SingleAgentEpisode(
                id_=f"episode-{number}",
                observation_space=observation_space,
                action_space=action_space,
                observations=[observation_space.sample() for _ in range(length + 1)],
                actions=[action_space.sample() for _ in range(length)],
                rewards=rng.normal(size=length).tolist(),
                terminated=True,
                len_lookback_buffer=0,
            )
            for number, length in enumerate(lengths)
        )

    return make


@pytest.fixture(scope="session")
def measured() -> Callable[..., tuple[str, int]]:
    """A function that runs a command: its standard output, and the most memory, in bytes, that it or one child of it had."""

    def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[str, int]:
        words = [sys.executable, "-S", "-c", LAUNCHER, *command]
        done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
        peak, _, out = done.stdout.partition(" ")
        return out, int(peak)

    return run


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Location]:
    """A folder that does not exist yet, on disk and in memory."""
    from offline_cli.storage.locations import open_location

    if request.param == "local":
        yield open_location(tmp_path / "D")
        return
    root = open_location(f"memory://{uuid.uuid4().hex}")
    yield root.join("D")
    if root.exists():
        root.fs.rm(root.path, recursive=True)


MAY_SKIP = ("recordings by RLlib and Minari are not at",)  # reasons that --no-skips accepts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails: CI must not go green by skipping")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not hasattr(report, "wasxfail"):
        fail_if_skipped(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    fail_if_skipped(report, collector.config)
    return report


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """With --no-skips, a test or module that was skipped has failed, but for the reasons in MAY_SKIP."""
    why = str(report.longrepr)
    if report.skipped and config.getoption("--no-skips") and not any(reason in why for reason in MAY_SKIP):
        report.outcome, report.longrepr = "failed", f"skipped, and --no-skips was given: {why}"
