"""`rllib:FOLDER` of an export: played from JSON and arrays alone, like the run that it is from; hostile files are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_policies import IMAGE, KINDS, Exports, lit

from offline_cli import export, load_policy
from offline_cli.connectors.pipeline_spec import Setting
from offline_cli.episodes.codec.arrays import pack, unpack
from offline_cli.errors import BadConfig, BadData
from offline_cli.policies.rllib_policy import read_checkpoint


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, random_batch: Callable[..., Any]) -> Exports:
    return Exports(tmp_path_factory.mktemp("exports"), random_batch)


@pytest.mark.parametrize("name", ["mlp", "continuous", "lstm alone", "cnn to choices"])
def test_an_export_plays_as_its_run_does_without_rllib_and_without_a_flag(
    name: str, exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    export(exports.run(name), tmp_path / "checkpoint", to="rllib")
    ours = load_policy(exports.run(name)).module
    theirs = read_checkpoint(str(tmp_path / "checkpoint"), trust_pickle=False).module
    kind = KINDS[name]
    kind.observations.seed(3)
    sampled = np.stack([kind.observations.sample() for _ in range(200)])
    seen = torch.from_numpy(lit(sampled)[0] if kind.observations is IMAGE else sampled)
    batch: dict[str, Any] = {"obs": seen}
    assert ours is not None
    if ours.is_stateful():
        state = {part: torch.randn(20, *first.shape) for part, first in ours.get_initial_state().items()}
        batch = {"obs": seen.reshape(20, 10, -1), "state_in": state}
    with torch.inference_mode():
        wanted, found = (module.forward_inference(batch)["action_dist_inputs"] for module in (ours, theirs))
    assert wanted.flatten(0, -2).std(0).max() > 0.02, "the policy looks at what it is given"
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 if name.startswith("cnn") else 0.0)


def test_actions_are_recorded_normalized_and_drawn_by_seeds(exports: Exports, tmp_path: Path) -> None:
    export(exports.run("continuous"), tmp_path / "checkpoint", to="rllib")
    found = read_checkpoint(str(tmp_path / "checkpoint"), trust_pickle=False)
    setting = Setting(KINDS["continuous"].observations, KINDS["continuous"].actions)
    after = found.pieces.build(setting).module_to_env
    assert any(getattr(piece, "normalize_actions", False) for piece in after.pieces())
    assert found.module.action_head is not None


def broken(folder: Path, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> str:
    """The checkpoint with what `edit` does to its description and state."""
    told = json.loads((folder / "module.json").read_text())
    state = unpack((folder / "module_state.msgpack").read_bytes(), where="state")
    edit(told, state)
    (folder / "module.json").write_text(json.dumps(told))
    (folder / "module_state.msgpack").write_bytes(pack(state))
    return str(folder)


def no_layers(told: dict[str, Any], state: dict[str, Any]) -> None:
    state.clear()


def other_width(told: dict[str, Any], state: dict[str, Any]) -> None:
    state["pi.net.mlp.0.weight"] = np.zeros((7, 32), np.float32)


def text_in_it(told: dict[str, Any], state: dict[str, Any]) -> None:
    state["pi.net.mlp.0.weight"] = np.array(["a"])


def no_space(told: dict[str, Any], state: dict[str, Any]) -> None:
    told["observation_space"] = {"type": "Box", "shape": [1 << 40], "dtype": "float32", "low": 0, "high": 1}


def unknown_activation(told: dict[str, Any], state: dict[str, Any]) -> None:
    told["model_config"]["fcnet_activation"] = "os.system"


def huge_memory(told: dict[str, Any], state: dict[str, Any]) -> None:
    told["model_config"] |= {"use_lstm": True, "lstm_cell_size": 1 << 30}


@pytest.mark.parametrize("edit", [no_layers, other_width, text_in_it, no_space, unknown_activation, huge_memory])
def test_arrays_that_make_no_module_are_bad_data(edit: Any, exports: Exports, tmp_path: Path) -> None:
    export(exports.run("mlp"), tmp_path / "checkpoint", to="rllib")
    with pytest.raises(BadData):
        read_checkpoint(broken(tmp_path / "checkpoint", edit), trust_pickle=False)


def test_a_pickle_is_not_opened_without_the_flag_and_several_modules_are_named(tmp_path: Path) -> None:
    for name in ("left", "right"):
        folder = tmp_path / "learner_group" / "learner" / "rl_module" / name
        folder.mkdir(parents=True)
        for file in ("module_state.pkl", "class_and_ctor_args.pkl"):
            (folder / file).write_bytes(b"cos\nsystem\n(S'touch here'\ntR.")
    with pytest.raises(BadConfig, match="several modules: left, right"):
        read_checkpoint(str(tmp_path), trust_pickle=True)
    with pytest.raises(BadConfig) as caught:
        read_checkpoint(str(folder), trust_pickle=False)
    assert "--trust-pickle" in caught.value.fix
