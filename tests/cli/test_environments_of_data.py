"""`--env` with the arguments and wrappers of the data: taken where they are plain, refused with the flags to give where not."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.datasets.manifest import Manifest
from offline_cli.environments import EnvironmentSpec
from offline_cli.formats.asked_environment import refused
from offline_cli.storage.locations import open_location

Call = Callable[..., Any]
KWARGS = '{"g": 5.0}'
SHORT = "TimeLimit:max_episode_steps=20"
SCALED = "RescaleAction:min_action=-1,max_action=1"
CPU = ("--device", "cpu")


@pytest.fixture
def recorded(tmp_path: Path, call_json: Call) -> Path:
    """Two short episodes of Pendulum with arguments and wrappers."""
    words = ("record", "Pendulum-v1", "--out", tmp_path / "D", "--policy", "random", "--episodes", "2", *CPU)
    assert call_json(*words, "--env-kwargs", KWARGS, "--wrapper", SHORT, "--wrapper", SCALED)[0] == 0
    return tmp_path / "D"


def rewritten(folder: Path, **changes: Any) -> None:
    """Put arguments or wrappers into the manifest, as anybody may."""
    place = folder / "manifest.json"
    manifest = json.loads(place.read_text(encoding="utf-8"))
    if "kwargs" in changes:
        manifest["environment"]["kwargs"] = changes["kwargs"]
    if "wrappers" in changes:
        manifest["environment"]["wrappers"] = changes["wrappers"]
    place.write_text(json.dumps(manifest), encoding="utf-8")


def environment_of(folder: Path) -> EnvironmentSpec | None:
    return Manifest.read(open_location(str(folder))).environment


def test_arguments_and_wrappers_follow_the_data_to_the_evaluation(recorded: Path, tmp_path: Path, call_json: Call) -> None:
    assert call_json("convert", recorded, "--out", tmp_path / "E", "--env", "Pendulum-v1", "--to", "columns")[0] == 0
    assert environment_of(tmp_path / "E") == environment_of(recorded)
    run = tmp_path / "run"
    code, told = call_json("train-bc", tmp_path / "E", "--out", run, "--env", "Pendulum-v1", "--epochs", "1", *CPU)
    assert code == 0
    assert any(SHORT in note and shlex.quote(KWARGS) in note for note in told["notes"])
    code, told = call_json("evaluate", run, "--env", "Pendulum-v1", "--episodes", "2", *CPU)
    assert (code, told["length_mean"], told["env_kwargs"], told["wrappers"]) == (0, 20.0, {"g": 5.0}, [SHORT, SCALED])


def test_a_conversion_keeps_the_wrappers_without_being_told_the_environment(
    recorded: Path, tmp_path: Path, call_json: Call
) -> None:
    for source, out in ((recorded, "E"), (tmp_path / "E", "F")):
        assert call_json("convert", source, "--out", tmp_path / out)[0] == 0
    found = environment_of(tmp_path / "F")
    assert found is not None
    assert found.wrappers == (SHORT, SCALED)


def test_flags_win_over_the_data_each_for_itself(recorded: Path, tmp_path: Path, call: Call) -> None:
    words = ("train-bc", recorded, "--out", tmp_path / "run", "--env", "Pendulum-v1", "--epochs", "1", "--json", *CPU)
    done = call(*words, "--env-kwargs", "{}", "--wrapper", "TimeLimit:max_episode_steps=7", "--wrapper", SCALED)
    assert done.exit_code == 0
    code = call("evaluate", tmp_path / "run", "--episodes", "2", "--json", *CPU)
    assert json.loads(code.stdout)["length_mean"] == 7.0
    done = call("evaluate", tmp_path / "run", "--episodes", "1", "--wrapper", "none", "--json", *CPU)
    assert json.loads(done.stdout)["length_mean"] == 200.0


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a wrapper by module": ({"wrappers": ["os:system"]}, "--wrapper os:system"),
    "a wrapper by python:": ({"wrappers": ["python:antigravity:W"]}, "--wrapper python:antigravity:W"),
    "one that writes files": ({"wrappers": ["RecordVideo:video_folder=videos"]}, "--wrapper RecordVideo:video_folder=videos"),
    "a part of the package that is no wrapper": ({"wrappers": ["vector"]}, "--wrapper vector"),
    "a path in the arguments of a wrapper": (
        {"wrappers": ["TimeLimit:max_episode_steps=/etc"]},
        "--wrapper TimeLimit:max_episode_steps=/etc",
    ),
    "a path": ({"kwargs": {"model": "../../secret.xml"}}, """--env-kwargs '{"model": "../../secret.xml"}'"""),
    "a file by its key": ({"kwargs": {"modelFile": "x"}}, """--env-kwargs '{"modelFile": "x"}'"""),
    "a URL": ({"kwargs": {"model": "http://evil"}}, """--env-kwargs '{"model": "http://evil"}'"""),
    "a quote for the shell": ({"kwargs": {"x": "'; rm -rf ~ #"}}, shlex.join(["--env-kwargs", '{"x": "\'; rm -rf ~ #"}'])),
    "a value that was blanked out": ({"kwargs": {"api_key": "***"}}, """--env-kwargs '{"api_key": "***"}'"""),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_manifest_makes_nothing_be_imported_or_written(what: str, recorded: Path, tmp_path: Path, call_json: Call) -> None:
    changes, flags = HOSTILE[what]
    rewritten(recorded, **changes)
    code, told = call_json("train-bc", recorded, "--out", tmp_path / "run", "--env", "Pendulum-v1", "--epochs", "1", *CPU)
    assert (code, told["error"]["code"]) == (4, "bad-config")
    assert told["error"]["fix"].endswith(flags)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["D"]


@pytest.mark.parametrize("wrappers", ["TimeLimit;rm", [{"a": 1}]])
def test_wrappers_of_another_form_make_a_bad_manifest(wrappers: Any, recorded: Path, call_json: Call) -> None:
    rewritten(recorded, wrappers=wrappers)
    assert call_json("validate", recorded, "--env", "Pendulum-v1")[0] == 3


def test_every_refusal_is_named_at_once(recorded: Path, tmp_path: Path, call_json: Call) -> None:
    rewritten(recorded, wrappers=["os:system", "RecordVideo", SHORT], kwargs={"a": "/x", "b": "/y"})
    code, told = call_json("validate", recorded, "--env", "Pendulum-v1")
    assert (code, len(told["error"]["problems"])) == (4, 4)
    code, told = call_json("validate", recorded, "--env", "Pendulum-v1", "--env-kwargs", "{}")
    assert (code, len(told["error"]["problems"]), "--env-kwargs" in told["error"]["fix"]) == (4, 2, False)
    assert call_json("validate", recorded, "--env", "Pendulum-v1", "--env-kwargs", "{}", "--wrapper", SCALED)[0] == 0


@pytest.mark.parametrize(
    "wrapper", ["FlattenObservation", "FrameStackObservation:stack_size=4", 'ReshapeObservation:shape=[2,"a b"]']
)
def test_plain_wrappers_and_arguments_are_taken(wrapper: str) -> None:
    kwargs = {
        "g": 9.8,
        "render_mode": None,
        "map_name": "4x4",
        "desc": ["SFFF", "FHFG"],
        "deep": {"direction": "left"},
        "on": True,
    }
    assert refused(EnvironmentSpec("E", kwargs, (wrapper,))) == ([], [])


@pytest.mark.parametrize("kwargs", [{"render_mode": "human"}, {"num_envs": 10**9}, {"file": {"name": "passwd"}}])
def test_arguments_that_open_windows_or_name_places_are_not_taken_from_data(kwargs: dict[str, Any]) -> None:
    assert len(refused(EnvironmentSpec("E", kwargs, ()))[0]) == 1


def test_a_run_folder_may_say_no_more_than_a_manifest(recorded: Path, tmp_path: Path, call_json: Call) -> None:
    words = ("train-bc", recorded, "--out", tmp_path / "run", "--env", "Pendulum-v1", "--epochs", "1", *CPU)
    mine = ("--wrapper", "gymnasium.wrappers:TimeLimit:max_episode_steps=5", "--wrapper", SCALED)
    assert call_json(*words, *mine)[0] == 0
    code, told = call_json("evaluate", tmp_path / "run", "--episodes", "1", *CPU)
    assert (code, shlex.join(mine) in told["error"]["fix"]) == (4, True)
    assert call_json("evaluate", tmp_path / "run", "--episodes", "1", *mine, *CPU)[1]["length_mean"] == 5.0
    code, told = call_json(*words, "--resume")
    assert (code, shlex.join(mine) in told["error"]["fix"]) == (4, True)
    assert call_json(*words, "--resume", *mine)[0] == 0


def test_secret_arguments_are_in_no_run_folder(tmp_path: Path, call_json: Call) -> None:
    words = ("record", "recording_envs:Guarded-v0", "--out", tmp_path / "D", "--policy", "random", "--episodes", "2", *CPU)
    mine = ("--env-kwargs", '{"api_key": "hunter2-hunter2"}', "--wrapper", "recording_envs:Doubled:api_key=hunter3-hunter3")
    assert call_json(*words, *mine[:2])[0] == 0
    words = ("train-bc", tmp_path / "D", "--out", tmp_path / "run", "--env", "recording_envs:Guarded-v0", "--epochs", "1", *CPU)
    assert call_json(*words)[0] == 4
    assert call_json(*words, *mine)[0] == 4  # Doubled takes no api_key
    mine = mine[:2]
    assert call_json(*words, *mine)[0] == 0
    text = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert "hunter" not in text
    assert call_json(*words, "--resume")[0] == 4
    assert call_json(*words, "--resume", *mine)[0] == 0


def test_a_secret_of_a_wrapper_is_stored_nowhere(tmp_path: Path, call: Call) -> None:
    words = ("record", "recording_envs:Guarded-v0", "--out", tmp_path / "D", "--policy", "random", "--episodes", "2", *CPU)
    done = call(*words, "--wrapper", "recording_envs:Keyed:api_key=hunter2-hunter2")
    assert done.exit_code == 0, done.output
    assert "hunter2" not in (tmp_path / "D" / "manifest.json").read_text(encoding="utf-8")
    done = call(*words, "--overwrite", "--wrapper", "recording_envs:Keyed:key=1,api_key=hunter2-hunter2")
    assert (done.exit_code, "hunter2" in done.output + done.stderr) == (4, False)


def test_a_config_file_may_say_them(recorded: Path, tmp_path: Path, call_json: Call) -> None:
    text = (
        'env = "Pendulum-v1"\nepochs = 1\nwrappers = ["TimeLimit:max_episode_steps=9", "ClipAction"]\n[env_kwargs]\ng = 4.0\n'
    )
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    words = ("train-bc", recorded, "--out", tmp_path / "run", "--config", tmp_path / "c.toml", "--action-scale", "env", *CPU)
    code, told = call_json(*words, "--wrapper", SHORT, "--wrapper", SCALED)
    assert code == 0, told
    code, told = call_json("evaluate", tmp_path / "run", "--episodes", "1", *CPU)
    assert (told["env_kwargs"], told["wrappers"]) == ({"g": 4.0}, [SHORT, SCALED])


def test_all_mistakes_of_wrappers_are_named_at_once(tmp_path: Path, call_json: Call) -> None:
    words = ("record", "CartPole-v1", "--out", tmp_path / "D", "--policy", "random", "--episodes", "1")
    wrong = ("TimeLimi:max_episode_steps=3", "no_such_module:W", "ReshapeObservation:shape=(2,2)", "TimeLimit:a=1,a=2")
    code, told = call_json(*words, *(word for text in wrong for word in ("--wrapper", text)))
    problems = told["error"]["problems"]
    assert (code, len(problems)) == (4, 4)
    assert "did you mean TimeLimit?" in problems[0]
    assert "a is given twice" in problems[3]
    code, told = call_json(*words, "--wrapper", "TimeLimit:no=1")
    assert (code, "no" in told["error"]["what"]) == (4, True)
