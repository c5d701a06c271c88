"""A recording that is resumed or appended to is of one environment and one policy: a change of either is told by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_cli import Recorder
from offline_cli.errors import BadConfig, BadData
from offline_cli.import_path import module_named

Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]
FILES = {
    "dice_env.py": """
import os
import gymnasium as gym
import numpy as np
from dice_rules import SIDES

class Dice(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (SIDES,)), gym.spaces.Discrete(2)
    begun = 0

    def reset(self, *, seed=None, options=None):
        Dice.begun += 1
        if os.path.exists("stop") and Dice.begun > 3:
            raise RuntimeError("stop")
        return np.zeros(SIDES, np.float32), {}

    def step(self, action):
        return np.ones(SIDES, np.float32), 1.0, True, False, {}
""",
    "dice_rules.py": "SIDES = 6\n",
    "dice_wrapper.py": "import gymnasium as gym\n\nclass Shown(gym.Wrapper):\n    pass\n",
    "dice_policy.py": "def act(observation):\n    return 1\n",
    "dice_piece.py": """
from offline_cli import ConnectorV2

class Passed(ConnectorV2):
    def __call__(self, *, batch, **kwargs):
        return batch
""",
    "dice_net.py": """
from torch import nn
from offline_cli import RLModule

class Net(RLModule):
    def __init__(self, *spaces, **kwargs):
        super().__init__(*spaces, **kwargs)
        self.layer = nn.Linear(6, 2)
    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.layer(batch["obs"])}
""",
    "beside.toml": 'kind = "env_to_module"\n[[pieces]]\nuse = "dice_piece:Passed"\n',
}
ENV, FUNCTION = "python:dice_env:Dice", "python:dice_policy:act"
ONE_COPY = ("--vectorize", "sync", "--num-envs", 1, "--device", "cpu")
THROUGH = ("--policy", "python:dice_net:Net", "--env-to-module", "beside.toml")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own code, in which commands are run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("dice_")]:
        del sys.modules[name]


def words(*more: Any, policy: tuple[str, ...] = ("--policy", FUNCTION)) -> list[Any]:
    return ["record", ENV, "--out", "D", *policy, *ONE_COPY, "--episodes", 8, *more]


def begun(call: Call, *more: Any, **options: Any) -> None:
    """A recording of 8 episodes that broke off after some."""
    Path("stop").touch()
    code, _ = call(*words(*more, **options))
    assert code == 3
    Path("stop").unlink()
    module_named("dice_env").Dice.begun = 0


def changed(name: str, text: str = "\n# changed\n") -> None:
    with open(name, "a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("dice_rules.py", {}),
        ("dice_wrapper.py", {"more": ("--wrapper", "dice_wrapper:Shown")}),
        ("dice_piece.py", {"policy": THROUGH}),
    ],
)
def test_a_changed_source_file_ends_resume_and_is_named(file: str, options: Any, call: Call) -> None:
    options = dict(options)
    more = options.pop("more", ())
    begun(call, *more, **options)
    before = Path("D/manifest.json").read_bytes()
    changed(file)
    code, found = call(*words(*more, "--resume", **options))
    assert (code, found["error"]["code"], found["error"]["changed"]) == (4, "bad-config", [file])
    assert found["error"]["where"].endswith("D")
    assert Path("D/manifest.json").read_bytes() == before


def test_a_change_that_is_allowed_is_counted_for_good(call: Call, told: Told) -> None:
    begun(call)
    changed("dice_env.py")
    Path("stop").touch()
    code, _ = call(*words("--resume", "--allow-changes"))
    assert code == 3
    Path("stop").unlink()
    found = told(*words("--resume"))
    manifest = json.loads(Path("D/manifest.json").read_bytes())
    assert (found["episodes"], found["assumptions"], manifest["assumptions"]) == (8, {"changed-code": 1}, {"changed-code": 1})
    assert len(manifest["provenance"]["changes"]) == 1


def test_other_options_are_named(call: Call, told: Told) -> None:
    begun(call)
    for option, other in {
        "--seed": words("--seed", 1),
        "--policy": words(policy=("--policy", "random")),
    }.items():
        code, found = call(*other, "--resume")
        assert (code, found["error"]["changed"]) == (4, [option])
    allowed = words("--resume", "--allow-changes", policy=("--policy", "random"))
    assert told(*allowed)["assumptions"] == {"changed-code": 1}


def test_another_version_of_the_package_of_the_environment_is_told(call: Call) -> None:
    begun(call)
    manifest = json.loads(Path("D/manifest.json").read_bytes())
    manifest["provenance"]["unfinished"]["options"]["identity"]["gymnasium"] = "0.1.2"
    Path("D/manifest.json").write_text(json.dumps(manifest))
    code, found = call(*words("--resume"))
    assert (code, found["error"]["changed"]) == (4, ["gymnasium"])


def test_a_finished_recording_of_other_code_is_not_passed_off_as_this_one(call: Call, told: Told) -> None:
    told(*words())
    assert told(*words("--resume"))["episodes"] == 8
    changed("dice_rules.py")
    code, found = call(*words("--resume"))
    assert (code, found["error"]["changed"]) == (4, ["dice_rules.py"])


def test_the_identity_holds_names_of_files_and_no_place_of_this_machine(told: Told, project: Path) -> None:
    told(*words(policy=("--policy", f"python:{project}/dice_policy.py:act")))
    identity = json.loads(Path("D/manifest.json").read_bytes())["provenance"]["identity"]
    assert {"dice_env.py", "dice_rules.py", "dice_policy.py", "--seed"} <= identity.keys()
    assert str(project) not in json.dumps(identity)


# ---- a program's own loop ----


def looped(**options: Any) -> None:
    with Recorder(module_named("dice_env").Dice(), "L", **options) as env:
        env.reset()
        env.step(0)
        if not options.get("append"):
            env.reset()
            raise BadData("broken off", where="loop", fix="resume")


@pytest.mark.parametrize("then", ["resume", "append"])
def test_a_recorder_refuses_a_dataset_of_another_source_file(then: str) -> None:
    with pytest.raises(BadData):
        looped()
    if then == "append":
        Recorder(module_named("dice_env").Dice(), "L", resume=True).close()
    changed("dice_env.py")
    with pytest.raises(BadConfig) as caught:
        Recorder(module_named("dice_env").Dice(), "L", **{then: True})
    assert caught.value.details["changed"] == ["dice_env.py"]
    Recorder(module_named("dice_env").Dice(), "L", **{then: True}, allow_changes=True).close()


# ---- training ----
