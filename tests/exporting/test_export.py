"""`export`: files, model cards, what is in the way, what has no such form, and playing what was exported."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_policies import KINDS, MEMORY, Exports, Kind
from gymnasium import spaces

from offline_cli import export, load_policy, write_dataset
from offline_cli.errors import BadConfig, MissingPackage, OutputExists
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.onnx_policy import model_of
from offline_cli.storage.locations import open_location

Call = Callable[..., tuple[int, dict[str, Any]]]
Told = Callable[..., dict[str, Any]]
VECTOR, CHOICES = KINDS["mlp"].observations, KINDS["mlp"].actions

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
    assert found["difference"] < 1e-6
    return folder


def test_evaluate_measures_of_the_file_what_it_measures_of_the_run(cartpole: Path) -> None:
    played = [evaluate(policy, env="CartPole-v1", episodes=20) for policy in (cartpole / "run", f"onnx:{cartpole}/policy.onnx")]
    assert played[0].return_mean == played[1].return_mean
    assert played[0].return_std == played[1].return_std


def test_the_card_tells_the_same_as_json_as_markdown_and_among_the_metadata(cartpole: Path) -> None:
    facts = model_of((cartpole / "policy.onnx").read_bytes(), where="policy.onnx").facts
    card = json.loads((cartpole / "policy.card.json").read_text())
    assert {name: card[name] for name in facts} == facts
    assert card["scores"]["eval_episodes"] == 20
    assert card["environments"][0]["id"] == "CartPole-v1"
    assert card["pieces"] == ["MeanStdFilter", "FrameStacking"]
    text = (cartpole / "policy.md").read_text()
    for fact in (f"| steps | {card['data']['steps']} |", card["provenance"]["policy"], "## Scores", "CartPole-v1"):
        assert fact in text


def test_the_code_on_the_card_runs_the_file(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cartpole)
    code = (cartpole / "policy.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    names: dict[str, Any] = {"observation": np.zeros(4, np.float32)}
    exec(code, names)
    assert names["found"]["actions"].shape == (1,)


def test_an_export_is_replaced_when_asked_and_no_other_file_at_all(cartpole: Path, tmp_path: Path) -> None:
    for name in ("policy.onnx", "policy.card.json", "policy.md"):
        shutil.copyfile(cartpole / name, tmp_path / name.replace("policy", "p"))
    with pytest.raises(OutputExists):
        export(cartpole / "run", tmp_path / "p.onnx", to="onnx")
    export(cartpole / "run", tmp_path / "p.onnx", to="onnx", overwrite=True)
    assert (tmp_path / "p.onnx").read_bytes() == (cartpole / "policy.onnx").read_bytes(), "one run gives the same bytes"
    (tmp_path / "notes.md").write_text("mine")
    for out in (tmp_path / "notes.onnx", cartpole / "run" / "policy.json", cartpole / "run"):
        with pytest.raises(OutputExists):
            export(cartpole / "run", out, to="onnx", overwrite=True)
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_names_of_elements_and_categories_are_in_the_file_and_on_the_card(
    random_batch: Callable[..., Any], told: Told, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    meanings = {
        "obs": [{"name": "temperature", "unit": "K"}, *[{}] * 3, {"name": "fan"}],
        "actions": [{"categories": ["down", "hold", "up"]}],
    }
    write_dataset(random_batch(VECTOR, spaces.Discrete(3, start=2), (9, 7), seed=1), tmp_path / "D", meanings=meanings)
    told("train-bc", tmp_path / "D", "--out", tmp_path / "run", "--updates", 2, "--hidden", 8, "--val-fraction", 0.5)
    told("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "p.onnx")
    known = {one.key: json.loads(one.value) for one in onnx.load(tmp_path / "p.onnx").metadata_props}
    card, text = json.loads((tmp_path / "p.card.json").read_text()), (tmp_path / "p.md").read_text()
    assert known["meanings"] == card["meanings"] == meanings
    for row in (
        "| obs\\[0\\] | temperature; in K |",
        "| obs\\[4\\] | fan |",
        "| actions | 2 down, 3 hold, 4 up |",
    ):
        assert row in text
    assert "obs\\[1\\]" not in text
    assert list(card["training"]["val_recall"]) == ["down", "hold", "up"]


OWN_PIECES = """
    import numpy as np
    import torch
    from offline_cli.connectors import SingleAgentObservationPreprocessor

    class Halved(SingleAgentObservationPreprocessor):
        def recompute_output_observation_space(self, observation_space, action_space):
            return observation_space
        def preprocess(self, observation):
            return (observation / 2).astype(np.float32)

    class Half(torch.nn.Module):
        def forward(self, observations):
            return observations / 2

    class HalvedInGraphs(Halved):
        def to_torch(self):
            return Half()
"""


@pytest.fixture
def own_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with a piece that has a torch form, and one that has none."""
    name = f"own_pieces_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN_PIECES))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_piece_of_ones_own_is_in_the_graph_by_its_torch_form(own_pieces: str, exports: Exports) -> None:
    KINDS["own piece"] = Kind(VECTOR, CHOICES, ({"use": f"{own_pieces}:HalvedInGraphs"},))
    run, file = exports.run("own piece"), exports.folder / "own.onnx"
    assert not exports.notes["own piece"]
    export(run, file, to="onnx", env_to_module=run.parent / "pieces.toml")
    ours, theirs = load_policy(run, env_to_module=run.parent / "pieces.toml"), load_policy(f"onnx:{file}")
    seen = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    np.testing.assert_array_equal(ours.act(seen), theirs.act(seen))


def test_a_piece_without_a_form_is_told_by_the_training_and_is_exit_4_by_name(
    own_pieces: str, exports: Exports, call: Call, tmp_path: Path
) -> None:
    KINDS["no form"] = Kind(VECTOR, CHOICES, ({"use": f"{own_pieces}:Halved"},))
    run = exports.run("no form")
    assert "Halved" in " ".join(exports.notes["no form"])
    code, found = call(
        "export", run, "--to", "onnx", "--out", tmp_path / "policy.onnx", "--env-to-module", run.parent / "pieces.toml"
    )
    assert (code, "Halved" in found["error"]["what"]) == (4, True)
    assert not list(tmp_path.glob("policy*"))


def test_without_onnx_the_install_line_is_given(exports: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    for act in (lambda: export(exports.run("mlp"), tmp_path / "p.onnx", to="onnx"), lambda: load_policy(f"onnx:{__file__}")):
        with pytest.raises(MissingPackage) as caught:
            act()
        assert caught.value.fix == "pip install 'offline-cli[onnx]'"


# ---- RLlib; what RLlib makes of the files: tests/interop/test_rllib_policies.py ----

with_ray = pytest.mark.integration  # whose import takes seconds


@with_ray
def test_a_checkpoint_goes_to_any_storage_and_is_replaced_when_asked(exports: Exports) -> None:
    out = "memory://exports/checkpoint"
    found = export(exports.run("continuous"), out, to="rllib")
    assert found.notes == ("RLlib limits log standard deviations to [-3, 3], this policy to [-3, 2]",)
    assert found.difference < 1e-6
    names = {"README.md", "card.json", "class_and_ctor_args.pkl", "metadata.json", "module_state.pkl"}
    assert {child.name for child in open_location(out).children()} == names
    with pytest.raises(OutputExists):
        export(exports.run("mlp"), out, to="rllib")
    export(exports.run("mlp"), out, to="rllib", overwrite=True)
    with pytest.raises(OutputExists):
        export(exports.run("mlp"), exports.run("mlp"), to="rllib", overwrite=True)


@with_ray
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(Kind(VECTOR, CHOICES, network={"layer_norm": True}), id="layer norm"),
        pytest.param(Kind(VECTOR, spaces.Discrete(3, start=2)), id="choices from 2 on"),
        pytest.param(Kind(VECTOR, CHOICES, network={**MEMORY, "memory": "gru"}), id="GRU"),
        pytest.param(KINDS["filtered and stacked"], id="a filter"),
        pytest.param(KINDS["cnn to choices"], id="images"),
    ],
)
def test_what_rllibs_default_module_has_no_shape_for_is_exit_4(
    kind: Kind, request: pytest.FixtureRequest, exports: Exports, tmp_path: Path
) -> None:
    name = f"refused {request.node.callspec.id}"
    KINDS[name] = kind
    with pytest.raises(BadConfig) as caught:
        export(exports.run(name), tmp_path / "checkpoint", to="rllib")
    assert "--to onnx" in caught.value.fix
    assert not list(tmp_path.iterdir())
