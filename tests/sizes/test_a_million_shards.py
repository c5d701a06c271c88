"""A manifest of a million shards: entries alone, without files of shards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
SHARDS = 1_000_000

WRITE = """
import resource, sys
import numpy as np
from offline_cli.datasets.finished_shards import FinishedShards
from offline_cli.datasets.manifest import Counts, Manifest, Shard
from offline_cli.datasets.shard_list import with_figures
from offline_cli.datasets.statistics import StatisticsBuilder
from offline_cli.files.locations import open_location

folder, count = open_location(sys.argv[1]), int(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
finished, statistics = FinishedShards(folder), StatisticsBuilder()
for number in range(count):
    finished.append(Shard(f"data/shard-0123abcd-{number:06d}.parquet", 1, 1, 100, 64 << 20, f"{number:064x}"))
sealed = finished.sealed()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
flags = np.ones(count, np.bool_)
statistics.add_plain(np.full(count, 100), np.zeros(count), flags, ~flags)
counts = Counts(count, 100 * count, count, 0, 0)
manifest = Manifest(
    format="episodes", complete=True, environment=None, observation_space=None, action_space=None, spaces_inferred=False,
    action_scale="unknown", compression="zstd", counts=counts, shards=with_figures(sealed, *statistics.per_episode()),
    statistics=statistics.as_json(), assumptions={}, provenance={},
)
folder.join("manifest.json").fs.pipe_file(folder.join("manifest.json").path, manifest.to_bytes())
print(grown // 1024)
"""


def test_a_million_entries_are_written_in_64_mib_and_inspected_in_one_second_and_200_mib(tmp_path: Path) -> None:
    place = tmp_path / "D"
    place.mkdir()
    done = subprocess.run([sys.executable, "-c", WRITE, place, str(SHARDS)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64  # MiB; 6, where the entries take 400
    command = [sys.executable, "-m", "offline_cli", "inspect", str(place), "--json"]
    code = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    told, peak = done.stdout.strip().rsplit("\n", 1)
    assert json.loads(told)["episodes"] == SHARDS
    assert int(peak) < 200 * 1024  # KiB; 47,000
