"""`export`: files, model cards, what is in the way, what has no such form, and playing what was exported."""

from __future__ import annotations

import json
import pickletools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_policies import KINDS, MEMORY, Exports, Kind
from gymnasium import spaces

from offline_cli import export, load_policy
from offline_cli.episodes.codec.arrays import unpack
from offline_cli.errors import BadConfig, MissingPackage, OutputExists
from offline_cli.exporting.model_card import card_of
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.onnx_model import read_model
from offline_cli.storage.locations import open_location

Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]


def refused(run: Path, out: Path, to: Any = "rllib") -> str:
    with pytest.raises(BadConfig) as caught:
        export(run, out, to=to)
    return caught.value.what


# ---- ONNX ----


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory, told: Told) -> Path:
    """A run of CartPole through a filter and stacked frames, and its export `policy.onnx` beside it."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("cartpole")
    pieces = folder / "pieces.toml"
    pieces.write_text(
        'kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n[[pieces]]\nname = "frame_stacking"\nnum_frames = 3\n'
    )
    told("record", "CartPole-v1", "--out", folder / "data", "--policy", "random", "--episodes", 20)
    learn = ("--env", "CartPole-v1", "--pipeline", pieces, "--updates", 30, "--hidden", "16,16", "--device", "cpu")
    told("train-bc", folder / "data", "--out", folder / "run", *learn)
    found = told("export", folder / "run", "--to", "onnx", "--out", folder / "policy.onnx")
    assert found["inputs"] == {"obs": "float32 (B, 4)", "state_in/frames": "float32 (B, 2, 4)"}
    assert list(found["outputs"]) == ["actions", "action_dist_inputs", "state_out/frames"]
    assert found["format"] == "onnx"
    assert found["difference"] < 1e-4
    return folder


def test_evaluate_measures_of_the_file_what_it_measures_of_the_run(cartpole: Path) -> None:
    played = [evaluate(policy, env="CartPole-v1", episodes=20) for policy in (cartpole / "run", f"onnx:{cartpole}/policy.onnx")]
    assert played[0].return_mean == played[1].return_mean
    assert played[0].return_std == played[1].return_std


def test_record_plays_the_file_with_the_scale_of_the_environment(cartpole: Path, told: Told) -> None:
    recorded = told(
        "record", "CartPole-v1", "--policy", f"onnx:{cartpole}/policy.onnx", "--out", cartpole / "d", "--episodes", 3
    )
    assert (recorded["episodes"], recorded["action_scale"]) == (3, "env")


def test_an_action_follows_from_what_was_seen_before_and_is_the_greedy_one_alone(cartpole: Path) -> None:
    policy = load_policy(f"onnx:{cartpole}/policy.onnx")
    assert policy.has_memory
    with pytest.raises(BadConfig, match="likeliest"):
        load_policy(f"onnx:{cartpole}/policy.onnx", explore=True)
    with pytest.raises(BadConfig, match="pipelines go around an RLModule"):
        load_policy(f"onnx:{cartpole}/policy.onnx", env="CartPole-v1", env_to_module=[])


def test_the_model_card_and_the_metadata_tell_the_same(cartpole: Path) -> None:
    facts = read_model(cartpole / "policy.onnx").facts
    text = (cartpole / "policy.md").read_text()
    assert facts["scores"]["eval_episodes"] == 20
    assert facts["environments"][0]["id"] == "CartPole-v1"
    assert facts["pieces"] == ["mean_std_filter()", "frame_stacking(num_frames=3)"]
    for fact in (f"| steps | {facts['data']['steps']} |", facts["provenance"]["policy"], "## Scores", "CartPole-v1"):
        assert fact in text


def test_the_code_on_the_model_card_runs_the_file_of_its_name(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cartpole)
    code = (cartpole / "policy.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    assert '"policy.onnx"' in code
    names: dict[str, Any] = {"observation": np.zeros(4, np.float32)}
    exec(code, names)
    assert names["actions"].tolist() == [int(names["actions"][0])]


def test_the_model_card_tells_values_in_words_and_leaves_out_what_is_not_known() -> None:
    facts: dict[str, Any] = {
        "to": "onnx",
        "action_scale": "env",
        "pieces": [],
        "environments": [{"id": "My_Env-v0", "kwargs": {"size": {"wide": True}}, "wrappers": ["TimeLimit"]}],
        "data": {},
        "training": {
            "algorithm": {"name": "iql", "expectile": 0.8},
            "hidden": [64, 32],
            "lr": 0.00025,
            "loss": 0.6898684501647949,
            "val_mse": None,
        },
        "scores": {"eval_return_mean": 12345.678, "eval_return_ci95": 3.2666666, "eval_episodes": 20},
        "provenance": {"offline_cli": "0.1.0"},
    }
    space = spaces.Discrete(2)
    lines = card_of(facts, (space, space), name="p.onnx", ports=[], how="").splitlines()
    rows = [line.strip("| ") for line in lines if line.startswith("|")]
    assert 'My_Env-v0 | size = {"wide": true}, wrapper TimeLimit' in rows
    assert {"algorithm | iql (expectile = 0.8)", "hidden | 64, 32", "lr | 0.00025", "loss | 0.6899"} <= set(rows)
    assert {"mean return | 12346 \u00b1 3.267 (95% confidence)", "episodes | 20", "offline-cli | 0.1.0"} <= set(rows)
    assert not any("val" in row.partition(" | ")[0].split() for row in rows)


def test_nothing_that_is_there_is_replaced_unasked_and_no_other_file_at_all(
    cartpole: Path, exports: Exports, tmp_path: Path
) -> None:
    with pytest.raises(OutputExists, match="an export is there already"):
        export(cartpole / "run", cartpole / "policy.onnx", to="onnx")
    (tmp_path / "notes.md").write_text("mine")
    for out in (tmp_path / "notes.onnx", cartpole / "run"):
        with pytest.raises(OutputExists, match="something else"):
            export(cartpole / "run", out, to="onnx", overwrite=True)
    assert (tmp_path / "notes.md").read_text() == "mine"
    export(exports.run("mlp"), tmp_path / "checkpoint", to="rllib")
    export(exports.run("mlp"), tmp_path / "checkpoint", to="rllib", overwrite=True)


def test_a_piece_without_a_form_in_a_graph_is_exit_4_by_name(exports: Exports, call: Call, tmp_path: Path) -> None:
    wrapper = {"name": "gymnasium_wrapper", "wrapper": "RescaleObservation", "options": {"min_obs": 0.0, "max_obs": 1.0}}
    bounded = spaces.Box(np.float32(0), np.float32(9), (4,), np.float32)
    KINDS["wrapped"] = Kind(bounded, KINDS["mlp"].actions, (wrapper,))
    code, found = call("export", exports.run("wrapped"), "--to", "onnx", "--out", tmp_path / "policy.onnx")
    assert (code, "GymnasiumWrapper" in found["error"]["what"]) == (4, True)
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_install_line_is_given(exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for act in (lambda: export(exports.run("mlp"), tmp_path / "p.onnx", to="onnx"), lambda: load_policy(f"onnx:{__file__}")):
        with pytest.raises(MissingPackage) as caught:
            act()
        assert caught.value.fix == "pip install 'offline-cli[onnx]'"


# ---- RLlib ----


def test_a_checkpoint_names_classes_of_rllib_and_gymnasium_alone(exports: Exports, tmp_path: Path) -> None:
    found = export(exports.run("continuous"), tmp_path / "checkpoint", to="rllib")
    assert found.notes == ("log standard deviations are limited to [-3, 3], and here to [-3, 2]",)
    pickled = (tmp_path / "checkpoint" / "class_and_ctor_args.pkl").read_bytes()
    texts = [arg for code, arg, _ in pickletools.genops(pickled) if code.name == "SHORT_BINUNICODE"]
    modules = {text.partition(".")[0] for text in texts if "." in text and text.replace(".", "").replace("_", "").isalpha()}
    assert modules == {"ray", "gymnasium", "numpy"}
    state = unpack((tmp_path / "checkpoint" / "module_state.msgpack").read_bytes(), where="state")
    weights = load_policy(exports.run("continuous")).module
    assert weights is not None
    np.testing.assert_array_equal(state["encoder.encoder.net.mlp.2.weight"], weights.state_dict()["network.2.weight"].numpy())
    assert not state["vf.net.mlp.0.weight"].any()
    assert json.loads((tmp_path / "checkpoint" / "metadata.json").read_text())["state_file"] == "module_state"


def test_the_same_run_gives_the_same_checkpoint_and_a_foreign_folder_stays(exports: Exports, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(exports.run("mlp"), tmp_path / name, to="rllib")
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert {name: part for name, part in files[0].items() if name != "README.md"} == {
        name: part for name, part in files[1].items() if name != "README.md"
    }
    with pytest.raises(OutputExists, match="something else"):
        export(exports.run("mlp"), exports.run("mlp"), to="rllib", overwrite=True)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Kind(KINDS["mlp"].observations, KINDS["mlp"].actions, network={"layer_norm": True}), "layer norm comes after"),
        (Kind(KINDS["mlp"].observations, KINDS["nested"].actions), "actions are Dict"),
        (Kind(KINDS["nested"].observations, KINDS["mlp"].actions), "observations are Dict"),
        (Kind(KINDS["mlp"].observations, spaces.Box(-1.0, 1.0, (), np.float32)), 'actions = ["name"] in the mapping'),
        (Kind(KINDS["mlp"].observations, KINDS["mlp"].actions, network={**MEMORY, "memory": "gru"}), "GRUPolicy"),
        (
            Kind(KINDS["mlp"].observations, KINDS["mlp"].actions, network={**MEMORY, "memory_layers": 2}),
            "the LSTM has 2 layers",
        ),
        (KINDS["filtered and stacked"], "piece MeanStdFilter"),
        (KINDS["impala"], "the encoder of images is Impala"),
        (
            Kind(KINDS["cnn"].observations, KINDS["mlp"].actions, network={"images": "none"}),
            "observations are Box(36x40x3, uint8); RLlib's default module takes a vector",
        ),
    ],
)
def test_what_rllibs_default_module_has_no_shape_for_is_told(kind: Kind, said: str, exports: Exports, tmp_path: Path) -> None:
    name = said.replace(" ", "-")
    KINDS[name] = kind
    assert said in refused(exports.run(name), tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_an_export_goes_to_other_storage_as_well(exports: Exports) -> None:
    found = export(exports.run("mlp"), "memory://exports/checkpoint", to="rllib")
    names = {child.name for child in open_location(found.out).children()}
    assert names == {"README.md", "class_and_ctor_args.pkl", "metadata.json", "module_state.msgpack"}
