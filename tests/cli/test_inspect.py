"""`offline-cli inspect`: what it shows people, single episodes, and gates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli.converting.convert import convert
from offline_cli.datasets.writer import DatasetWriter
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.storage.locations import open_location

Call = Callable[..., Any]
TABLES = Path(__file__).resolve().parents[1] / "testdata" / "tables"


@pytest.fixture(params=["episodes", "columns"])
def dataset(request: pytest.FixtureRequest, recording: Path, tmp_path: Path) -> Path:
    """A dataset of eight episodes, in both formats."""
    convert(recording, tmp_path / "D", to=request.param)
    return tmp_path / "D"


def cells(text: str, name: str) -> list[str]:
    """The cells of the first line that begins with `name`."""
    return next(line.split() for line in text.splitlines() if line.startswith(f"{name} "))


def write(folder: Path, batch: EpisodeBatch) -> Path:
    """A dataset of this batch."""
    said = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    with DatasetWriter(open_location(folder), format="episodes", action_scale="env", provenance={}, **said) as writer:
        writer.write(batch)
        writer.commit()
    return folder


# ---- statistics ----


def test_without_deep_the_manifest_alone_is_read(dataset: Path, call: Call, call_json: Call) -> None:
    for shard in (dataset / "data").iterdir():
        shard.unlink()
    assert "--deep" in call("inspect", dataset).stdout
    assert call_json("inspect", dataset)[1]["columns"] == {}


def test_what_is_expected_of_columns_has_the_steps_read(dataset: Path, call: Call) -> None:
    assert call("inspect", dataset, "--expect", "columns.actions.max<=1").exit_code == 0
    assert call("inspect", dataset, "--expect", "columns.actions.max<=0").exit_code == 7


def test_deep_reads_the_steps_for_figures_of_columns(dataset: Path, call: Call, call_json: Call) -> None:
    obs = call_json("inspect", dataset, "--deep")[1]["columns"]["obs"]
    shown = call("inspect", dataset, "--deep").stdout
    for number in range(4):
        row = [float(cell) for cell in cells(shown, f"obs[{number}]")[1:5]]
        assert row == pytest.approx([obs[name][number] for name in ("min", "mean", "max", "std")], rel=1e-4)
    assert "--deep" not in shown


# ---- episodes ----


def test_head_lists_the_first_episodes(dataset: Path, recorded: Any, call: Call, call_json: Call) -> None:
    rows = call_json("inspect", dataset, "--head", "3")[1]["first_episodes"]
    assert [row["eps_id"] for row in rows] == list(recorded.ids[:3])
    assert [row["length"] for row in rows] == [5, 9, 1]
    assert [row["return"] for row in rows] == pytest.approx(recorded.returns[:3].tolist())
    lines = call("inspect", dataset, "--head", "3").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["first", "eps_id", *recorded.ids[:3]]
    assert len(call_json("inspect", dataset, "--head", "99")[1]["first_episodes"]) == 8


def test_one_episode_is_shown_with_its_ends_and_its_columns(dataset: Path, recorded: Any, call: Call, call_json: Call) -> None:
    one = call_json("inspect", dataset, "--episode", recorded.ids[4])[1]["shown_episode"]
    steps = slice(int(recorded.starts[4]), int(recorded.starts[5]))
    assert (one["length"], one["terminated"]) == (12, bool(recorded.terminated[4]))
    assert [step["t"] for step in one["steps"]] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert [step["actions"] for step in one["steps"][:5]] == recorded.actions[steps][:5].tolist()
    assert one["columns"]["rewards"]["mean"] == pytest.approx(recorded.rewards[steps].mean())
    shown = call("inspect", dataset, "--episode", recorded.ids[4]).stdout
    assert len(cells(shown, "obs[0]")) == 5
    assert cells(shown, recorded.ids[4])[1] == "12"


def test_an_episode_that_is_not_there_is_a_usage_error_that_names_the_way_to_ids(dataset: Path, call_json: Call) -> None:
    code, told = call_json("inspect", dataset, "--episode", "nobody")
    assert (code, "'nobody'" in told["error"]["what"], "--head" in told["error"]["fix"]) == (2, True, True)


def test_an_episode_without_steps_is_an_episode_of_its_dataset(
    random_batch: Callable[..., Any], tmp_path: Path, call: Call, call_json: Call
) -> None:
    batch = random_batch(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), lengths=(0, 3))
    write(tmp_path / "D", batch)
    told = call_json("inspect", tmp_path / "D", "--deep", "--head", "9", "--episode", batch.ids[0])[1]
    assert [row["length"] for row in told["first_episodes"]] == [0, 3]
    assert (told["shown_episode"]["steps"], told["shown_episode"]["columns"]) == ([], {})
    assert told["episodes"] == 2
    assert call("inspect", tmp_path / "D", "--episode", batch.ids[0]).exit_code == 0


# ---- expectations ----


def test_a_bound_of_what_is_not_known_is_not_met(dataset: Path, call_json: Call) -> None:
    file = dataset / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    del manifest["episodes_lost"]
    file.write_text(json.dumps(manifest), encoding="utf-8")
    code, told = call_json("inspect", dataset, "--expect", "episodes_lost<=0")
    assert (code, told["error"]["what"]) == (7, "episodes_lost is None, expected <= 0")


def test_all_keys_orders_and_bounds_that_cannot_be_are_named_at_once_before_anything_is_read(
    tmp_path: Path, call_json: Call
) -> None:
    wrong = ("episods>=1", "steps!=4", "steps=>4", "stepz=1", "length.mean>=many", "steps<5")
    code, told = call_json("inspect", tmp_path / "nothing", *(word for one in wrong for word in ("--expect", one)))
    assert code == 2
    for part in ("'episods'", "'!='", "'=>'", "'stepz'", "'many'", "'<'"):
        assert part in told["error"]["what"]


# ---- shards ----


def test_a_missing_shard_is_named_and_the_manifest_stays_the_one_that_says_complete(
    dataset: Path, call: Call, call_json: Call
) -> None:
    (shard,) = (dataset / "data").iterdir()
    shard.unlink()
    done = call("inspect", dataset)
    assert (done.exit_code, f"data/{shard.name} is missing" in done.stdout) == (0, True)
    assert "offline-cli repair" in done.stdout
    told = call_json("inspect", dataset)[1]
    assert (told["shards"], told["wrong_shards"], told["complete"]) == (1, [f"data/{shard.name} is missing"], True)


@pytest.mark.parametrize(
    "rewards",
    [
        (1.0, -2.5e-275, 5.98e51),
        (1.0, 1.0000000000000002, 1.0),
        (0.0, 5e-324, 0.0),
        (1.79e308, -1.79e308, 0.0),
    ],
)
def test_the_ends_of_rewards_of_any_size_are_exact(rewards: tuple[float, ...], call_json: Call, tmp_path: Path) -> None:
    cells = [f"A,{step},0.5,{step % 2},{reward!r},{int(step == 2)}" for step, reward in enumerate(rewards)]
    (tmp_path / "t.csv").write_text("\n".join(["e,t,o,a,r,d", *cells]) + "\n")
    named = 'eps_id = "e"\nt = "t"\nobs = ["o"]\nactions = "a"\nrewards = "r"\nterminateds = "d"\n'
    (tmp_path / "m.toml").write_text(f"[columns]\n{named}")
    assert call_json("convert", tmp_path / "t.csv", "--out", tmp_path / "D", "--mapping", tmp_path / "m.toml")[0] == 0
    code, told = call_json("inspect", tmp_path / "D", "--deep")
    assert code == 0
    assert (told["columns"]["rewards"]["min"], told["columns"]["rewards"]["max"]) == (min(rewards), max(rewards))
