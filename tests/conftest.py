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
    from offline_cli.files.locations import Location
    from offline_cli.spaces import Space

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))  # modules that tests of several packages share
pytest_plugins = ["called_commands", "cloud_servers", "installed_packages", "rllib_answers", "time_limits", "warm_commands"]
settings.register_profile("busy machine", deadline=None)  # an example that takes long there is no failure
settings.load_profile("busy machine")
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
    from offline_cli.files.locations import open_location

    if request.param == "local":
        yield open_location(tmp_path / "D")
        return
    root = open_location(f"memory://{uuid.uuid4().hex}")
    yield root.join("D")
    if root.exists():
        root.fs.rm(root.path, recursive=True)


NAMED = frozenset({"rivals", "cloud", "engines", "kill", "learn", "big", "slow"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The lanes of the Makefile collect the files that name their markers: a test with one in another file would never run."""
    texts: dict[Path, str] = {}
    for item in items:
        for marker in NAMED.intersection(one.name for one in item.iter_markers()):
            text = texts.setdefault(item.path, texts.get(item.path) or item.path.read_text(encoding="utf-8"))
            if f"mark.{marker}" not in text:
                raise pytest.UsageError(f"{item.nodeid} is marked {marker!r}, and its file does not name pytest.mark.{marker}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-markers", default="", help="comma-separated markers of which some test must pass and none may be skipped"
    )


class _RequiredMarkers:
    """Fails a run in which a required marker had a skipped test, or none at all: CI must not go green by skipping."""

    def __init__(self, names: list[str]) -> None:
        self.passed = dict.fromkeys(names, 0)
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name in self.passed.keys() & report.keywords.keys():
            if report.skipped and not hasattr(report, "wasxfail"):
                self.skipped.append(f"{report.nodeid} ({name})")
            self.passed[name] += report.when == "call" and report.passed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped or not all(self.passed.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, count in self.passed.items():
            if not count:
                terminalreporter.write_line(f"required marker {name!r}: no test passed", red=True)
        for test in self.skipped:
            terminalreporter.write_line(f"required, but skipped: {test}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    names = [name for name in config.getoption("--require-markers").split(",") if name]
    if names:
        config.pluginmanager.register(_RequiredMarkers(names))
