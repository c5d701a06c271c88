"""Environments by name: the three forms of `--env`, and what each failure of theirs is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from offline_cli.environments import open_environment
from offline_cli.errors import BadConfig, BadData, MissingPackage, OfflineCliError, UnknownEnvironment, UnsupportedSpace
from offline_cli.import_path import call_of

SOURCE = """
import gymnasium as gym
class Here(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(3)
    closed = 0
    def close(self):
        Here.closed += 1
class Clinging(Here):
    def close(self):
        raise OSError("the door is stuck")
def make():
    return Here()
def make_clinging():
    return Clinging()
def make_nothing():
    return None
def make_trouble():
    raise RuntimeError("no power")
number = 3
gym.register("FromHere-v0", Here)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, in which there are modules with environments and with trouble."""
    sources = {"good": SOURCE, "broken": "raise ValueError('half written')", "leaving": "import sys; sys.exit(5)"}
    sources["wanting"] = "import no_such_simulator.core"
    for name, source in sources.items():
        (tmp_path / f"envs_{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != ""])
    yield tmp_path
    for name in sources:
        sys.modules.pop(f"envs_{name}", None)
    gym.registry.pop("FromHere-v0", None)


@pytest.mark.parametrize(
    "name",
    [
        "python:envs_good:make",
        "envs_good:FromHere-v0",
        "python:envs_good:Here",
        "envs_good:Here",
        "envs_good:make",
        "envs_good.py:Here",
        "python:./envs_good.py:make",
    ],
)
def test_code_in_the_current_folder_can_be_named(here: Path, name: str) -> None:
    with open_environment(name) as env:
        assert (env.name, env.action_space) == (name, gym.spaces.Discrete(3))


def test_every_copy_is_closed_when_its_use_raises(here: Path) -> None:
    with pytest.raises(KeyError), open_environment("python:envs_good:make") as env:
        env.singles(3)
        raise KeyError
    assert sys.modules["envs_good"].Here.closed == 3


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CartPoel-v1", "CartPole-v1"),
        ("gymnasium.envs:CartPoel-v1", "gymnasium.envs:CartPole-v1"),
        ("envs_good:mak", "envs_good:make"),
    ],
)
def test_a_misspelt_name_gets_near_matches(here: Path, name: str, near: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        open_environment(name)
    assert near in caught.value.details["near"]
    assert near in caught.value.fix


CASES: list[tuple[str, type[OfflineCliError], str]] = [
    ("NoSuchEnvAtAll-v0", UnknownEnvironment, "NoSuchEnvAtAll"),
    ("no_such_package:Env-v0", UnknownEnvironment, "there is no module 'no_such_package'"),
    ("python:no_such_package.sub:make", UnknownEnvironment, "there is no module 'no_such_package'"),
    ("python:math:nothing", UnknownEnvironment, "math has no 'nothing'"),
    ("python:make", UnknownEnvironment, "names no module"),
    (":CartPole-v1", UnknownEnvironment, "names no module"),
    ("python:envs_good:number", UnknownEnvironment, "it is int"),
    ("python:envs_good:make_nothing", UnknownEnvironment, "returned NoneType"),
    ("python:envs_good:make_trouble", BadData, "no power"),
    ("python:envs_broken:make", BadData, "half written"),
    ("envs_broken:Env-v0", BadData, "half written"),
    ("envs_leaving:Env-v0", BadData, "SystemExit"),
    ("python:envs_wanting:make", MissingPackage, "no_such_simulator"),
]


@pytest.mark.parametrize(("name", "error", "said"), CASES, ids=[case[0] for case in CASES])
def test_whatever_is_wrong_is_said_with_the_name(here: Path, name: str, error: type[OfflineCliError], said: str) -> None:
    with pytest.raises(error) as caught:
        open_environment(name)
    assert type(caught.value) is error
    assert said in caught.value.what
    assert caught.value.where == f"--env {name}"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gymnasium.envz:CartPole-v1", "gymnasium.envs"),
        ("python:pettingzoo.classic.tictactoe_v9:env", "pettingzoo.classic.tictactoe_v3"),
    ],
)
def test_a_misspelt_module_of_an_installed_package_is_no_missing_package(name: str, near: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        open_environment(name)
    assert caught.value.where == f"--env {name}"
    assert near in caught.value.details["near"]


def test_an_environment_whose_code_imports_a_missing_module_of_an_installed_package_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs_outdated.py").write_text("import gymnasium.no_such_part\n")
    with pytest.raises(BadData) as caught:
        open_environment("python:envs_outdated.py:make")
    assert caught.value.where == "--env python:envs_outdated.py:make"


def test_an_environment_that_lacks_a_package_gives_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> gym.Env[object, object]:
        raise gym.error.DependencyNotInstalled("box2d is not installed, run `pip install 'gymnasium[box2d]'`")

    gym.register("Lacking-v0", make)
    try:
        with pytest.raises(MissingPackage, match="box2d") as caught:
            open_environment("Lacking-v0")
        assert caught.value.fix == "pip install 'gymnasium[box2d]'"
        assert caught.value.exit_code == 6
    finally:
        del gym.registry["Lacking-v0"]


def test_text_observations_are_refused_and_the_copy_is_closed() -> None:
    closed: list[int] = []

    class Talking(gym.Env[object, object]):
        observation_space, action_space = gym.spaces.Text(3), gym.spaces.Discrete(2)

        def close(self) -> None:
            closed.append(1)

    gym.register("Talking-v0", Talking)
    try:
        with pytest.raises(UnsupportedSpace, match="Text"):
            open_environment("Talking-v0")
    finally:
        del gym.registry["Talking-v0"]
    assert closed == [1]


@pytest.mark.parametrize("name", ["walk.py", "python:walk.py", "walk"])
def test_a_file_alone_is_refused_and_not_imported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walk.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownEnvironment):
        open_environment(name)


@pytest.mark.parametrize("wrapper", ["NormalizeObservation", "NormalizeReward"])
def test_a_wrapper_whose_statistics_run_on_and_are_lost_is_refused(wrapper: str) -> None:
    with pytest.raises(BadConfig, match=wrapper), open_environment("CartPole-v1", wrappers=[wrapper]) as environment:
        assert environment.observation_space


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('W:text="a,b=1"', {"text": "a,b=1"}),
        ('W:a=[{"x":"1,y=2"}],b=2', {"a": [{"x": "1,y=2"}], "b": 2}),
        ("W:b=x", {"b": "x"}),
    ],
)
def test_values_of_a_wrapper_end_where_their_json_does(text: str, arguments: dict[str, object]) -> None:
    assert call_of(text) == ("W", arguments, [])
