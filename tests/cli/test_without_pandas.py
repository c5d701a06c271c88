"""No command loads pandas, which pyarrow would do where it is installed; who wants it has it all the same."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

from offline_cli.cli.app import app
from offline_cli.cli.without_pandas import DataCommand

pytestmark = pytest.mark.integration

TESTS = Path(__file__).resolve().parent.parent
RUN = """
import json, sys
from offline_cli.cli.app import app
for line in json.loads(sys.argv[1]):
    code = app(line, standalone_mode=False)
    assert code == 0, (code, line)
    assert "pandas" not in sys.modules, line
"""
AFTERWARDS = """
import sys
from offline_cli.cli.without_pandas import without_pandas
if "early" in sys.argv[1]:
    without_pandas()
    assert "pyarrow" not in sys.modules
import pyarrow as pa
without_pandas()
table = pa.table({"a": [1.0]})
assert "pandas" not in sys.modules
if "asked" in sys.argv[1]:
    assert table.to_pandas()["a"].tolist() == [1.0]
import pandas
assert pa.array(pandas.Series([1.0, float("nan")])).null_count == 1
assert pa.Table.from_pandas(table.to_pandas()).equals(table)
"""

needs_pandas = pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")


def run(script: str, argument: str, folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", script, argument], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@needs_pandas
def test_every_command_runs_without_pandas_on_data_of_every_format(recording: Path, tmp_path: Path) -> None:
    rows = [
        {"eps_id": n // 3, "obs": [n / 2, 0.5], "actions": n % 2, "rewards": 1.0, "terminateds": n % 3 == 2} for n in range(9)
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "columns.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "table.arrow")
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "table.csv").write_text(
        "eps_id,x,y,a,d\n" + "".join(f"{n // 3},{n / 2},0.5,{n % 2},{n % 3 == 2}\n" for n in range(9))
    )
    (tmp_path / "mapping.toml").write_text('[columns]\neps_id = "eps_id"\nobs = ["x", "y"]\nactions = "a"\ndones = "d"\n')
    (tmp_path / "pipeline.toml").write_text('kind = "learner"\n\n[[pieces]]\nname = "mean_std_filter"\n')
    sample_batch = str(TESTS / "testdata" / "sample_batch" / "sample_batch.json")
    convert = ["convert", "--json", "--on-error", "quarantine"]
    lines = [
        [*convert, str(recording), "--out", "episodes"],
        [*convert, "episodes", "--to", "columns", "--out", "dataset"],
        [*convert, "columns.parquet", "--out", "from-columns"],
        [*convert, sample_batch, "--out", "from-sample-batch"],
        *([*convert, f"table.{kind}", "--from", "table", "--out", f"from-{kind}"] for kind in ("arrow", "jsonl")),
        [*convert, "columns.parquet", "--from", "table", "--out", "from-parquet"],
        [*convert, "table.csv", "--mapping", "mapping.toml", "--out", "from-csv"],
        ["inspect", "dataset", "--json"],
        ["inspect", str(recording), "--json"],
        ["validate", "dataset", "episodes", "--deep", "--json"],
        ["validate", sample_batch, "--json"],
        ["repair", "dataset", "--json"],
        ["filter", "dataset", "episodes", "--where", "length > 1", "--out", "filtered", "--json"],
        ["sample", "table.csv", "--mapping", "mapping.toml", "--episodes", "1", "--out", "sampled", "--json"],
        ["split", "dataset", "--counts", "a=1", "--out", "parts", "--json"],
        ["merge", "filtered", "parts/a", "--out", "merged", "--json"],
        ["repack", "merged", "--format", "columns", "--out", "repacked", "--json"],
        ["diff", "merged", "repacked", "--json"],
        ["apply", "dataset", "--pipeline", "pipeline.toml", "--out", "batches", "--json"],
        ["record", "CartPole-v1", "--policy", "random", "--episodes", "2", "--out", "recorded", "--json"],
        ["train-bc", "recorded", "--updates", "2", "--out", "run", "--json"],
        ["train", "recorded", "--updates", "2", "--algorithm", "marwil", "--out", "run-marwil", "--json"],
        ["evaluate", "run", "--env", "CartPole-v1", "--episodes", "2", "--json"],
        ["export", "run", "--to", "rllib", "--out", "exported", "--json"],
    ]
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) == {line[0] for line in lines}
    assert all(isinstance(command, DataCommand) for command in commands.values())  # the first of a process hides it for all
    run(RUN, json.dumps(lines), tmp_path)


@needs_pandas
@pytest.mark.parametrize("way", ["asked early", "imported"])
def test_whoever_imports_pandas_or_asks_for_it_has_it_as_ever(way: str, tmp_path: Path) -> None:
    run(AFTERWARDS, way, tmp_path)
