"""What `report` finds wrong, each in data that was made so, and not in data that is well."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from html_pages import Page
from rides import Made, changed, episode, held
from typer.testing import CliRunner

from offline_cli import SingleAgentEpisode, open_dataset, report
from offline_cli.cli.app import app


def found(sources: str | list[str], tmp_path: Path) -> dict[str, dict[str, Any]]:
    """By title, but for what validate says of every such dataset."""
    problems = report(sources, tmp_path / "page.html", overwrite=True).problems
    return {one["title"]: one for one in problems if one["title"] != "action-scale-unknown"}


def test_nothing_is_wrong_with_good_episodes(made: Made, tmp_path: Path) -> None:
    assert not found(made("good", [episode(f"e{i}", i) for i in range(30)]), tmp_path)


def test_notes_are_counted_apart_from_problems(made: Made, tmp_path: Path) -> None:
    good = made("good", [episode(f"e{i}", i) for i in range(30)])
    done = CliRunner().invoke(app, ["report", good, "--out", str(tmp_path / "page.html"), "--short"])
    counts = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("problems", "notes")))
    severities = [one["severity"] for one in report(good, tmp_path / "page.html", overwrite=True).problems]
    assert severities.count("note") > 0
    assert counts == {"problems": str(len(severities) - severities.count("note")), "notes": str(severities.count("note"))}


def test_two_stuck_sensors_are_found_each_in_its_episode(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i) for i in range(20)]
    each[3], each[8] = changed(episode("e3", 3), obs=held(0, 40)), changed(episode("e8", 8), obs=held(1, 20))
    signs = found(made("rides", each), tmp_path)
    assert {title: one["episodes"] for title, one in signs.items()} == {
        "Stuck sensor: obs[0]": ["e3"],
        "Stuck sensor: obs[1]": ["e8"],
    }
    assert "from step 20" in signs["Stuck sensor: obs[1]"]["text"]


@pytest.mark.parametrize("count", [12, 16])
def test_a_sensor_that_is_stuck_in_most_episodes_is_found(count: int, made: Made, tmp_path: Path) -> None:
    each = [changed(episode(f"e{i}", i), obs=held(0, 40)) if i < count else episode(f"e{i}", i) for i in range(20)]
    sign = found(made("rides", each), tmp_path)["Stuck sensor: obs[0]"]
    assert {*sign["episodes"]} == {f"e{i}" for i in range(count)}


@pytest.mark.parametrize("rests", [False, True])
def test_two_of_three_sensors_are_stuck_unless_the_actions_rest_too(rests: bool, made: Made, tmp_path: Path) -> None:
    each = [changed(episode(f"e{i}", i), obs=lambda obs: np.column_stack([obs[:, :2], obs[::-1, 1]])) for i in range(20)]
    each[3] = changed(each[3], obs=lambda obs: held(1, 40)(held(0, 40)(obs)))
    if rests:
        each[3] = changed(each[3], actions=lambda actions: np.concatenate([actions[:40], np.repeat(actions[40:41], 80, 0)]))
    titles = {title for title in found(made("rides", each), tmp_path) if "Stuck" in title}
    assert titles == (set() if rests else {"Stuck sensor: obs[0]", "Stuck sensor: obs[1]"})


def test_the_command_of_a_sign_leaves_its_episodes_out(made: Made, tmp_path: Path, monkeypatch: Any) -> None:
    each = [episode(f"e{i}", i) for i in range(6)]
    each[3] = changed(episode("it's $HOME", 3), obs=held(0, 40))
    sign = found(made("rides", each), tmp_path)["Stuck sensor: obs[0]"]
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, shlex.split(sign["command"])[1:]).exit_code == 0
    assert sorted(one.id_ for one in open_dataset("kept-1")) == ["e0", "e1", "e2", "e4", "e5"]


def test_a_robot_that_rests_is_no_stuck_sensor(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i) for i in range(20)]
    each[3] = changed(episode("e3", 3), obs=lambda obs: np.concatenate([obs[:40], np.repeat(obs[40:41], 81, 0)]))
    assert not any("Stuck" in title for title in found(made("rides", each), tmp_path))


def test_an_episode_of_train_in_val_is_leakage(made: Made, tmp_path: Path) -> None:
    train = made("train", [episode(f"e{i}", i) for i in range(20)])
    val = made("val", [*(episode(f"v{i}", 100 + i) for i in range(5)), episode("copy", 7)])
    near = made(
        "near",
        [
            *(episode(f"n{i}", 200 + i) for i in range(5)),
            changed(episode("nearly", 7), obs=lambda obs: obs + np.array([1e-3, -1e-3, 0], np.float32)),
        ],
    )
    leak = found([train, val], tmp_path)["Leakage between train and val"]
    assert (leak["source"], leak["episodes"]) == ("val", ["copy"])
    assert "copy = e7" in leak["text"]
    alike = found([train, near], tmp_path)["Leakage between train and near (nearly equal)"]
    assert (alike["episodes"], alike["command"]) == (["nearly"], "")


def test_a_source_of_other_channels_hides_no_leakage(made: Made, tmp_path: Path) -> None:
    train = made("train", [episode(f"e{i}", i) for i in range(20)])
    val = made("val", [*(episode(f"v{i}", 100 + i) for i in range(5)), episode("copy", 7)])
    alone = SingleAgentEpisode(
        id_="o", observations=[0, 1, 2], actions=[0, 1], rewards=[0.0, 1.0], terminated=True, len_lookback_buffer=0,
        observation_space=spaces.Discrete(5), action_space=spaces.Discrete(3),
    )  # fmt: skip
    other = made("other", [alone])
    assert found([train, other, val], tmp_path)["Leakage between train and val"]["episodes"] == ["copy"]


def test_episodes_that_differ_where_nobody_looked_are_not_called_the_same_and_no_command_drops_them(
    made: Made, tmp_path: Path
) -> None:
    def pulse(at: int) -> Any:
        return lambda obs: obs * 0 + (np.arange(len(obs)) == at)[:, None].astype(np.float32)

    rides = [changed(episode(f"e{i}", 1), obs=pulse(36 + i)) for i in range(6)]
    others = [episode(f"o{i}", 10 + i) for i in range(6)]
    signs = found(made("pulses", [*rides, *others]), tmp_path)
    assert not signs["Repeated episodes (nearly equal)"]["command"]
    assert "Repeated episodes" not in signs
    signs = found(made("few", rides), tmp_path)  # all alike where somebody looked: that tells nothing
    assert not any("Repeated" in title for title in signs)


def test_a_copy_and_a_near_copy_are_found_apart_with_their_originals(made: Made, tmp_path: Path) -> None:
    near = changed(episode("near", 4), obs=lambda obs: obs + np.array([1e-3, -1e-3, 0], np.float32))
    signs = found(made("rides", [*(episode(f"e{i}", i) for i in range(20)), episode("again", 7), near]), tmp_path)
    exact, alike = signs["Repeated episodes"], signs["Repeated episodes (nearly equal)"]
    assert (exact["episodes"], "again = e7" in exact["text"], bool(exact["command"])) == (["again"], True, True)
    assert (alike["episodes"], "near ~ e4" in alike["text"], alike["command"]) == (["near"], True, "")


def test_images_of_equal_brightness_are_told_apart(made: Made, tmp_path: Path) -> None:
    def square(name: str, at: int) -> SingleAgentEpisode:
        frames = np.zeros((31, 32, 32), np.uint8)
        frames[:, at : at + 4, at : at + 4] = 255
        return SingleAgentEpisode(
            id_=name, observations=list(frames), actions=[0] * 30, rewards=[0.0] * 30, terminated=True,
            observation_space=spaces.Box(0, 255, (32, 32), np.uint8), action_space=spaces.Discrete(3), len_lookback_buffer=0,
        )  # fmt: skip

    signs = found(made("squares", [*(square(f"e{i}", 2 * i) for i in range(12)), square("again", 14)]), tmp_path)
    assert {title: one["episodes"] for title, one in signs.items()} == {"Repeated episodes": ["again"]}


def test_jerk_and_stillness_of_actions_are_found(made: Made, tmp_path: Path) -> None:
    each = [episode(f"e{i}", i) for i in range(20)]
    each[3] = changed(episode("e3", 3), actions=lambda actions: np.where(np.arange(120)[:, None] % 2, actions, -actions))
    each[8] = changed(
        episode("e8", 8), actions=lambda actions: np.concatenate([actions[:20], np.repeat(actions[20:21], 100, 0)])
    )
    signs = found(made("rides", each), tmp_path)
    assert signs["Jerky actions"]["episodes"] == ["e3"]
    assert signs["Actions stand still"]["episodes"] == ["e8"]


def test_the_size_of_batches_changes_no_finding(made: Made, tmp_path: Path) -> None:
    def unbounded(name: str, seed: int, change: Any = lambda actions: actions) -> SingleAgentEpisode:
        state = episode(name, seed)
        size = 1000.0 if seed else 1.0  # the first episode alone has another range than all
        actions = list(np.float32(size) * change(np.stack(state.get_actions())))
        return SingleAgentEpisode(
            id_=name, observations=state.get_observations(), actions=actions, rewards=state.get_rewards(), terminated=True,
            observation_space=state.observation_space, action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32),
            len_lookback_buffer=0,
        )  # fmt: skip

    each = [unbounded(f"e{i}", i) for i in range(20)]
    each[3] = unbounded("e3", 3, lambda actions: np.where(np.arange(120)[:, None] % 2, actions, -actions))
    each[8] = unbounded("e8", 8, lambda actions: np.concatenate([actions[:20], np.repeat(actions[20:21], 100, 0)]))
    first, second = (
        report(made(name, each, max_rows_per_file=rows), tmp_path / f"{name}.html").problems
        for name, rows in (("small", 1), ("large", 10_000))
    )
    for one in (*first, *second):
        one["source"] = one["command"] = ""
    assert first == second
    signs = {one["title"]: one["episodes"] for one in first}
    assert signs["Jerky actions"] == ["e3"]
    assert signs["Actions stand still"] == ["e8"]


def test_agents_that_share_an_episode_are_told_apart(tmp_path: Path) -> None:
    rows = ["eps_id,agent,t,x,y,action,reward"]
    for number in range(6):
        for agent in ("left", "right"):
            x, y = np.random.default_rng([number, agent == "left"]).normal(size=(2, 60)).cumsum(1)
            x[10:] = x[10] if (number, agent) == (4, "right") else x[10:]
            rows += [f"{number},{agent},{t},{x[t]},{y[t]},{t % 3},1" for t in range(60)]
    (tmp_path / "game.csv").write_text("\n".join(rows), encoding="utf-8")
    columns = {"eps_id": "eps_id", "agent_id": "agent", "t": "t", "obs": ["x", "y"], "actions": "action", "rewards": "reward"}
    result = report(tmp_path / "game.csv", tmp_path / "page.html", mapping={"columns": columns})
    (name,) = next(one for one in result.problems if one["title"] == "Stuck sensor: x")["episodes"]
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    chips = {int(attrs["data-episode"] or "") for tag, attrs in page.elements if "data-episode" in attrs}
    (shown,) = (one for one in page.data["episodes"] if one["id"] == name)
    assert page.data["episodes"].index(shown) in chips
    assert f"{name} (right)" in shown["label"]
    assert len({*np.frombuffer(base64.b64decode(shown["y"][0]["bdata"]), np.float32)[10:].tolist()}) == 1
    assert len({one["label"] for one in page.data["episodes"]}) == 12


def test_conflicting_actions_at_equal_observations_are_found(made: Made, tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def walk(name: str, follows: bool) -> SingleAgentEpisode:
        obs = random.integers(0, 5, 41)
        actions = obs[:-1] % 3 if follows else random.integers(0, 3, 40)
        return SingleAgentEpisode(
            id_=name, observations=list(obs), actions=list(actions), rewards=[0.0] * 40, terminated=True,
            observation_space=spaces.Discrete(5), action_space=spaces.Discrete(3), len_lookback_buffer=0,
        )  # fmt: skip

    title = "Conflicting actions at equal observations"
    assert title in found(made("random", [walk(f"e{i}", follows=False) for i in range(10)]), tmp_path)
    assert title not in found(made("expert", [walk(f"e{i}", follows=True) for i in range(10)]), tmp_path)
