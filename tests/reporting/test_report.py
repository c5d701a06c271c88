"""`report`: what its page says."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from html_pages import Page
from rides import Made, Run, episode
from typer.testing import CliRunner

from offline_cli import DatasetWriter, EpisodeBatch, OfflineCliError, SingleAgentEpisode, open_dataset, report
from offline_cli.cli.app import app
from offline_cli.converting.reading import read_episodes
from offline_cli.errors import OutputExists

TESTDATA = Path(__file__).resolve().parents[1] / "testdata"


def page_of(sources: str | list[str], tmp_path: Path, **given: object) -> Page:
    out = tmp_path / "page.html"
    report(sources, out, overwrite=True, **given)  # type: ignore[arg-type]
    return Page(out.read_text(encoding="utf-8"))


def test_a_page_says_what_is_there_and_draws_it(made: Made, tmp_path: Path) -> None:
    place = made("rides", [episode(f"e{i}", i) for i in range(8)])
    found = page_of(place, tmp_path)
    assert all(text in found.text for text in ("rides", "960", "8 terminated", "obs[1]", "actions[0]", "rewards", "constant"))
    assert {one["id"] for one in found.data["episodes"]} == {f"e{i}" for i in range(8)}
    assert found.data["names"] == [["obs[0]", "obs[1]", "obs[2]", "actions[0]", "actions[1]", "rewards"]]
    values = np.frombuffer(base64.b64decode(found.data["episodes"][0]["y"][2]["bdata"]), np.float32)
    assert values.tolist() == [3.0] * 120


def test_only_the_scripts_of_the_page_may_run(made: Made, tmp_path: Path) -> None:
    found = page_of(made("rides", [episode("a", 1)]), tmp_path)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found.scripts[1:]]
    hashes = " ".join(f"'sha256-{one}'" for one in digests)
    directives = [one.strip() for one in found.policy.split(";")]
    assert len(digests) == 2
    assert "default-src 'none'" in directives
    assert f"script-src {hashes}" in directives
    assert "img-src data:" in directives


def test_the_better_of_two_datasets_is_named_first(made: Made, tmp_path: Path) -> None:
    places = [
        made(name, [episode(f"{name}{i}", i, reward=reward) for i in range(6)]) for name, reward in (("slow", 1), ("fast", 2))
    ]
    found = page_of(places, tmp_path)
    assert "The highest is that of fast, and the intervals are apart" in found.text
    assert {one["dataset"] for one in found.data["episodes"]} == {"slow", "fast"}
    assert found.text.count("6 terminated") == 2  # the table of differences


def test_the_better_of_two_agents_in_one_dataset_is_named(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i, reward=1 + i % 2, module_id=f"expert_{i % 2}", agent_id="a") for i in range(12)]
    assert "The highest is that of expert_1" in page_of(made("both", each), tmp_path).text


def test_agents_that_share_a_module_are_compared(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i, reward=1 + i % 2, module_id="shared", agent_id=f"car_{i % 2}") for i in range(12)]
    assert "The highest is that of car_1" in page_of(made("both", each), tmp_path).text


def test_none_of_equal_returns_is_the_highest(made: Made, tmp_path: Path) -> None:
    found = page_of([made(name, [episode(f"e{i}", i) for i in range(4)]) for name in ("one", "other")], tmp_path)
    assert "Mean return" in found.text
    assert "The highest" not in found.text


def test_a_return_that_is_no_number_decides_nothing(made: Made, tmp_path: Path) -> None:
    places = [
        made(name, [episode(f"{name}{i}", i, reward=reward) for i in range(4)])
        for name, reward in (("bad", np.nan), ("good", 2))
    ]
    assert "The highest" not in page_of(places, tmp_path).text


def test_overwriting_replaces_pages_alone(made: Made, tmp_path: Path) -> None:
    place = made("rides", [episode("a", 1)])
    manifest = Path(place) / "manifest.json"
    before = manifest.read_bytes()
    with pytest.raises(OutputExists):
        report(place, manifest, overwrite=True)
    assert manifest.read_bytes() == before


def test_the_page_is_small_however_many_episodes_there_are(made: Made, tmp_path: Path) -> None:
    place = made("many", [episode(f"e{i}", i, steps=1100) for i in range(205)])
    result = report(place, tmp_path / "page.html")
    drawn = Page((tmp_path / "page.html").read_text(encoding="utf-8")).data["episodes"]
    assert result.bytes < 15 << 20
    assert 50 < len(drawn) <= 200
    assert all(len(base64.b64decode(one["bdata"])) // 4 == 1000 for one in drawn[0]["y"])


def test_every_channel_of_an_episode_is_drawn(made: Made, tmp_path: Path) -> None:
    def wide(name: str, seed: int) -> SingleAgentEpisode:
        values = np.random.default_rng(seed).normal(size=(1501, 200)).astype(np.float32)
        return SingleAgentEpisode(
            id_=name, observations=list(values), actions=list(values[1:, :2]), rewards=[1.0] * 1500, terminated=True,
            observation_space=spaces.Box(-9, 9, (200,), np.float32), action_space=spaces.Box(-9, 9, (2,), np.float32),
            len_lookback_buffer=0,
        )  # fmt: skip

    found = page_of(made("wide", [wide(f"e{i}", i) for i in range(12)]), tmp_path)
    assert found.data["names"][0][-3:] == ["actions[0]", "actions[1]", "rewards"]
    assert [len(one["y"]) for one in found.data["episodes"]] == [203] * 12


def test_images_are_shown_as_thumbnails(made: Made, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    frames = list(random.integers(0, 255, (31, 64, 96, 3), np.uint8))
    space, choices = spaces.Box(0, 255, (64, 96, 3), np.uint8), spaces.Discrete(3)
    one = SingleAgentEpisode(
        id_="a", observations=frames, actions=[i % 3 for i in range(30)], rewards=[0.0] * 30, truncated=True,
        observation_space=space, action_space=choices, len_lookback_buffer=0,
    )  # fmt: skip
    found = page_of(made("camera", [one]), tmp_path)
    (shown,) = found.data["episodes"]
    assert len(shown["frames"]) == 8
    assert all(frame.startswith("data:image/jpeg;base64,") for frame in shown["frames"])
    assert "obs (mean)" in found.text


def test_bad_rows_are_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    rows = [f"{i // 10},{i % 10},{i % 7},{i % 3},1" for i in range(100)]
    rows[25] = "2,5,broken,1,1"
    file.write_text("\n".join(["eps_id,t,obs,actions,rewards", *rows]), encoding="utf-8")
    result = report(
        file, tmp_path / "page.html", mapping={"columns": {n: n for n in ("eps_id", "t", "obs", "actions", "rewards")}}
    )
    assert result.episodes == 9
    assert "unreadable-row" in {one["title"] for one in result.problems}


def test_a_source_without_an_episode_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(OfflineCliError) as raised:
        report(tmp_path / "empty", tmp_path / "page.html")
    assert raised.value.exit_code in (3, 5)
    assert not (tmp_path / "page.html").exists()


def test_a_source_that_fails_alone_is_its_own_error_and_beside_others_a_finding(made: Made, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"type": "SampleBatch"}\n' * 3, encoding="utf-8")
    with pytest.raises(OfflineCliError) as raised, read_episodes(broken, on_error="skip") as stream:
        list(stream)
    with pytest.raises(OfflineCliError) as told:
        report(broken, tmp_path / "page.html")
    assert (type(told.value), told.value.as_dict()) == (type(raised.value), raised.value.as_dict())
    each = [episode(f"e{i}", i, reward=1 + i % 2, module_id=f"expert_{i % 2}", agent_id="a") for i in range(12)]
    result = report([broken, made("rides", each)], tmp_path / "page.html")
    (sign,) = (one for one in result.problems if one["title"] == "Not read to the end")
    assert raised.value.where in sign["text"]
    assert "Mean return in rides" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text


def test_the_folder_of_a_page_is_made_and_must_be_one(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = made("rides", [episode("a", 1)])
    report(place, tmp_path / "no" / "such" / "page.html")
    assert (tmp_path / "no" / "such" / "page.html").exists()
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("offline_cli.reporting.report._collected", None)  # nothing is read before
    done = CliRunner().invoke(app, ["report", place, "-o", str(tmp_path / "file" / "page.html"), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["code"]) == (5, "storage-error")


def test_a_page_is_not_replaced_unless_it_is_asked_for(made: Made, tmp_path: Path) -> None:
    place, out = made("rides", [episode("a", 1)]), tmp_path / "page.html"
    out.write_text("mine", encoding="utf-8")
    done = CliRunner().invoke(app, ["report", place, "-o", str(out), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["where"]) == (2, str(out))
    assert out.read_text(encoding="utf-8") == "mine"


def test_nothing_to_report_on_is_a_usage_error(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["report", "-o", str(tmp_path / "page.html")]).exit_code == 2


def test_the_page_of_inspect_has_no_script(made: Made, tmp_path: Path) -> None:
    place, out = made("rides", [episode(f"e{i}", i) for i in range(3)]), tmp_path / "short.html"
    assert CliRunner().invoke(app, ["inspect", place, "--html", str(out)]).exit_code == 0
    found = Page(out.read_text(encoding="utf-8"))
    assert not found.scripts
    assert "script-src 'none'" in found.policy
    assert all(text in found.text for text in ("rides", "360", "obs[1]"))
    assert out.stat().st_size < 100_000


def test_a_notebook_shows_the_head_of_a_dataset(made: Made) -> None:
    shown = Page(open_dataset(made("rides", [episode("a", 1)]))._repr_html_())
    assert all(text in shown.text for text in ("rides", "120", "Box(3, float32)"))
    assert not re.search(r"\d\.\d{4}", shown.text)


def test_runs_are_drawn_beside_data(made: Made, run: Run, tmp_path: Path) -> None:
    runs = [
        run("bc/seed-0", [3, 2, 1], seed=0, lr=0.1),
        run("bc/seed-1", [3, 2, 1.5], seed=1, lr=0.1),
        run("slow", [3, 3, 3], lr=0.01),
    ]
    found = page_of(made("rides", [episode("a", 1)]), tmp_path, runs=[str(Path(runs[0]).parent), runs[2]])
    assert all(text in found.text for text in ("bc (2 seeds)", "slow", "lr", "0.01"))
    names = [trace.get("name") for plot in found.data["plots"] for trace in plot["data"]]
    assert {"bc (2 seeds)", "slow"} <= set(names)


def test_estimates_that_are_kept_in_a_run_folder_are_shown(run: Run, tmp_path: Path) -> None:
    place = run("bc", [3, 2])
    estimates = {"wis": {"value": 12.5, "low": 11.0, "high": 14.0, "reliable": True}, "dm": {"value": 9, "low": 8, "high": 9.5}}
    Path(place, "estimates.json").write_text(json.dumps({"estimates": estimates}), encoding="utf-8")
    text = page_of([], tmp_path, runs=[place]).text
    assert all(one in text for one in ("estimate by wis", "12.5 (11 to 14)", "9 (8 to 9.5), not reliable"))


def test_values_that_are_not_finite_or_huge_give_a_page(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i, steps=steps) for i, steps in enumerate((1, 2, 3, 40, 1200))]
    for one in each:
        obs = np.stack(one.get_observations())
        obs[:, 0], obs[:, 1], obs[len(obs) // 2, 2] = np.nan, np.clip(obs[:, 1], -1, 1) * np.float32(3e38), np.inf
        one.set_observations(new_data=list(obs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = page_of(made("odd", each), tmp_path)
    assert "nan-in-observations" in found.text
    assert len(found.data["episodes"]) == 5


RECORDED = (
    "rllib_columns_cartpole_expert", "rllib_columns_cartpole_plain", "rllib_columns_dict_flattened",
    "rllib_columns_pendulum_plain", "rllib_episodes_cartpole_lstm", "rllib_episodes_dict_flattened",
    "rllib_episodes_frozenlake", "rllib_episodes_pendulum", "sample_batch_cartpole_plain", "sample_batch_pendulum_lz4",
)  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_by_rllib_gives_a_page_without_a_warning(real_data: Path, name: str, tmp_path: Path) -> None:
    assert pages_quietly(real_data / name, tmp_path)


@pytest.mark.parametrize("name", ["foreign/minari_parquet", "lerobot/v30", "tables/robot_log.csv"])
def test_minari_lerobot_and_a_table_give_a_page_without_a_warning(name: str, tmp_path: Path) -> None:
    place = TESTDATA / name
    given = {"mapping": place.with_suffix(".toml")} if place.suffix else {}
    assert pages_quietly(place, tmp_path, **given)


def pages_quietly(source: Path, tmp_path: Path, **given: Any) -> bool:
    """Whether every episode of `source` is counted on a page, and nothing in Python warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = report(source, tmp_path / "page.html", **given)
    found = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    is_drawn = len(found.data["episodes"]) == min(200, result.episodes) > 0
    return is_drawn and not [one for one in result.problems if one["severity"] == "error"]


@pytest.mark.nightly
def test_a_page_of_a_million_steps_takes_at_most_20_seconds(tmp_path: Path) -> None:
    random, count = np.random.default_rng(0), 500
    observed, acted = spaces.Box(-np.inf, np.inf, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
    with DatasetWriter(tmp_path / "D", observation_space=observed, action_space=acted, action_scale="env") as writer:
        for part in range(4):
            batch = EpisodeBatch(
                ids=tuple(f"{part}-{number}" for number in range(count)), starts=np.arange(count + 1) * 500,
                obs=random.normal(size=(count * 501, 17)).astype(np.float32),
                actions=np.tanh(random.normal(size=(count * 500, 6))).astype(np.float32),
                rewards=random.normal(size=count * 500), observation_space=observed, action_space=acted,
                terminated=np.ones(count, np.bool_), truncated=np.zeros(count, np.bool_),
            )  # fmt: skip
            writer.write(batch)
        writer.commit()
    began = time.process_time()
    result = report(tmp_path / "D", tmp_path / "page.html")
    assert time.process_time() - began < 20
    assert (result.steps, result.problems) == (1_000_000, [])
    assert result.bytes < 15 << 20


@pytest.mark.nightly
def test_recordings_of_other_programs_side_by_side_give_a_page(real_data: Path, tmp_path: Path) -> None:
    places = [str(one) for one in sorted(real_data.iterdir()) if one.is_dir() and one.name != "minari"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = report([*places, str(real_data / "minari/cartpole/heuristic-v0")], tmp_path / "page.html")
    assert result.datasets >= 11
    assert result.bytes < 15 << 20
    assert not [one for one in result.problems if one["severity"] == "error"]
