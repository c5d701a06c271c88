"""How fast are recorded episodes read from disk? Rival: Minari, its own recording of CartPole, 30 episodes of 500 steps.

Ours reads the same number of steps in episodes of the same length, in our format, with everything a command does: opening,
checking against the manifest's list, decoding. And MANY episodes in an HDF5 file of Minari's, which both read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gymnasium.spaces import Space

from benchmarks.floors import bytes_floor
from benchmarks.harness import Missing, Row, missing, paired_rates, timed
from benchmarks.read_episodes import episodes
from benchmarks.recordings import recording
from benchmarks.rival_process import Rival
from benchmarks.targets import Target
from offline_cli.converting.convert import convert
from offline_cli.converting.reading import read_episodes
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.files.locations import open_location

LENGTH, NUMBER, MANY = 500, 30, 1500
TARGET = Target(10.0, words=">= 10x Minari's own iteration")
LAYOUTS = {"cartpole/heuristic-v0": "HDF5", "cartpole/heuristic-arrow-v0": "Arrow"}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "D"
        written(episodes(LENGTH, NUMBER), data)
        return [*(against(name, data) for name in LAYOUTS), of_its_own(Path(folder))]


def written(batch: EpisodeBatch, folder: Path) -> None:
    seen, done = batch.observation_space, batch.action_space
    assert isinstance(seen, Space) and isinstance(done, Space)  # noqa: PT018  # one fact: made data has spaces
    place = open_location(str(folder))
    with DatasetWriter(place, format="episodes", observation_space=seen, action_space=done, action_scale="env") as writer:
        writer.write(batch)
        writer.commit()


def against(name: str, data: Path) -> Row:
    question = f"read {NUMBER} episodes of {LENGTH} steps from disk"
    steps = LENGTH * NUMBER
    try:
        root = str(recording("minari"))
        with Rival("minari_read.py", "rllib", root=root, name=name) as rival:
            return paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: read(data), steps),
                rival=rival,
                rival_name=f"Minari, {LAYOUTS[name]} ({rival.versions})",
                floor=bytes_floor(sum(file.stat().st_size for file in data.rglob("*.parquet")) / steps, "step"),
            )
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name=f"Minari, {LAYOUTS[name]}")


def of_its_own(folder: Path) -> Row:
    """The same HDF5 file read by both."""
    question, steps, name = f"read {MANY:,} episodes of {LENGTH} steps from Minari's HDF5", LENGTH * MANY, "made/cartpole-v0"
    written(episodes(LENGTH, MANY), folder / "many")
    convert(folder / "many", folder / "root" / name, to="minari")
    try:
        with Rival("minari_read.py", "rllib", root=str(folder / "root"), name=name) as rival:
            return paired_rates(
                question,
                unit="steps/s",
                ours=timed(lambda: read(folder / "root" / name), steps),
                rival=rival,
                rival_name=f"Minari, HDF5 ({rival.versions})",
                target=TARGET,
            )
    except Missing as error:
        return missing(question, error, unit="steps/s", rival_name="Minari, HDF5", target=TARGET)


def read(data: Path) -> int:
    return sum(batch.num_steps for batch in read_episodes([str(data)]))
