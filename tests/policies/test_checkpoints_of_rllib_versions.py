"""Checkpoints of RLlib 2.40 to 2.60 play the episodes that the version that wrote them played: the same seeds, greedily."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rllib_versions import FIRST, VERSIONS, unpacked

from offline_cli.connectors import FrameStacking as OurStacking
from offline_cli.connectors import MeanStdFilter
from offline_cli.connectors.pipeline_spec import Setting
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.exporting.rllib_checkpoint import _Named, _Pickler
from offline_cli.policies.rllib_pickles import CLASS, state_of_piece
from offline_cli.policies.rllib_policy import read_checkpoint
from offline_cli.recording.record import record

ALONE = ("cartpole", "cartpole_lstm", "pendulum")  # nothing but RLlib's default pieces: the module alone plays the same
BETWEEN = ("cartpole_filter", "cartpole_previous", "pendulum_filter")
LIMIT = {"Pendulum-v1": {"max_episode_steps": 50}}  # as make.py has it
PIPELINE = "algorithm/env_runner/env_to_module_connector"


@pytest.fixture(scope="module", params=VERSIONS)
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(request.param, tmp_path_factory.mktemp("samples"))


def assert_plays(sample: Path, name: str, kind: str, out: Path, *, trust: bool) -> None:
    """Equal actions in equal observations, in as many steps."""
    there = np.load(sample / name / "played.npz")
    env = "Pendulum-v1" if name.startswith("pendulum") else "CartPole-v1"
    record(
        env,
        out,
        policy=f"rllib:{sample / name / kind}",
        episodes=len(there["lengths"]),
        env_kwargs=LIMIT.get(env),
        trust_pickle=trust,
        vectorize="sync",
        device="cpu",
    )
    here = EpisodeBatch.concat(list(open_dataset(str(out)).batches()))
    assert [len(episode) for episode in here] == there["lengths"].tolist()
    assert len(np.unique(there["actions"])) > 1, "the policy looks at what it is given"
    if env == "CartPole-v1":
        np.testing.assert_array_equal(here.actions, there["actions"])
    else:  # recorded as the module gave it, played within the bounds
        np.testing.assert_allclose(np.clip(2 * here.actions, -2, 2), there["actions"], rtol=0, atol=1e-5)
    observations = np.concatenate([episode.get_observations() for episode in here])
    np.testing.assert_allclose(observations, there["observations"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALONE)
def test_a_state_dict_of_arrays_plays_as_in_its_version_without_rllib(
    name: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_plays(sample, name, "arrays", tmp_path / "D", trust=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "algorithm") for name in (*ALONE, *BETWEEN)),
        *((name, "module") for name in ALONE),
        ("cartpole_filter", "packed"),
    ],
)
def test_a_checkpoint_plays_as_in_its_version(name: str, kind: str, sample: Path, tmp_path: Path) -> None:
    if kind == "packed" and not (sample / name / kind).is_dir():
        assert sample.name == FIRST, "every later version writes msgpack"
        return
    assert_plays(sample, name, kind, tmp_path / "D", trust=True)


def test_no_pickle_of_any_version_is_opened_without_the_flag(sample: Path) -> None:
    for kind in ("algorithm", "module"):
        with pytest.raises(BadConfig) as caught:
            read_checkpoint(str(sample / "cartpole" / kind), trust_pickle=False)
        assert "--trust-pickle" in caught.value.fix


def test_what_a_filter_learned_is_read_from_every_version(sample: Path) -> None:
    states = [state_of_piece(sample / "cartpole_filter" / PIPELINE / "MeanStdFilter")]
    if (packed := sample / "cartpole_filter" / "packed/env_to_module_connector/MeanStdFilter").is_dir():
        states.append(state_of_piece(packed))
    for state in states:
        piece = MeanStdFilter()
        piece.set_state(state)
        (moments,) = piece.get_state()["shared"].values()
        assert moments["count"] > 500
        assert (np.sqrt(moments["m2"] / moments["count"]) > 0.01).all()


@pytest.mark.nightly
def test_weights_that_the_installed_version_wants_and_2_40_had_not_are_named(tmp_path: Path) -> None:
    module = unpacked(FIRST, tmp_path) / "pendulum" / "module"
    state = pickle.loads((module / "module_state.pt").read_bytes())
    del state["pi.net.mlp.0.weight"]
    (module / "module_state.pt").write_bytes(pickle.dumps(state))
    with pytest.raises(BadData, match=r"the state has no pi\.net\.mlp\.0\.weight"):
        read_checkpoint(str(module), trust_pickle=True)


def rename(file: Path, old: Any, module: str, name: str) -> None:
    """Pickle what `file` holds again, with another name for class `old`."""
    buffer = io.BytesIO()
    told = pickle.loads(file.read_bytes())
    told["class"] = _Named(module, name) if told["class"] is old else told["class"]
    arguments, named = told["ctor_args_and_kwargs"]
    pieces = [(_Named(module, name) if one[0] is old else one[0], *one[1:]) for one in named.get("connectors", ())]
    named = {**named, "connectors": pieces} if pieces else named
    _Pickler(buffer, protocol=4).dump({**told, "ctor_args_and_kwargs": (arguments, named)})
    file.write_bytes(buffer.getvalue())


@pytest.mark.nightly
def test_a_module_of_2_40_whose_class_and_weights_had_other_names_is_the_same(tmp_path: Path) -> None:
    from ray.rllib.algorithms.bc.bc_catalog import BCCatalog
    from ray.rllib.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    model = vars(DefaultModelConfig(fcnet_hiddens=[8]))
    seen, choices = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)
    made = DefaultBCTorchRLModule(
        observation_space=seen, action_space=choices, model_config=model, catalog_class=BCCatalog, inference_only=False
    )
    made.save_to_path(str(tmp_path))
    rename(tmp_path / CLASS, DefaultBCTorchRLModule, "ray.rllib.algorithms.bc.torch.bc_torch_rl_module", "BCTorchRLModule")
    (tmp_path / "module_state.pkl").unlink()
    state = {name.replace("_pi_head.", "pi.").removeprefix("_"): np.asarray(array) for name, array in made.get_state().items()}
    assert {name.split(".")[0] for name in state} == {"encoder", "pi"}
    (tmp_path / "module_state.pt").write_bytes(pickle.dumps(state))
    found = read_checkpoint(str(tmp_path), trust_pickle=True).module
    batch = {"obs": torch.randn(20, 4)}
    torch.testing.assert_close(found.forward_inference(batch), made.forward_inference(batch), rtol=0, atol=0)


@pytest.mark.nightly
def test_the_piece_that_stacks_frames_is_known_by_its_private_name(tmp_path: Path) -> None:
    from ray.rllib.connectors.common.frame_stacking import FrameStacking
    from ray.rllib.connectors.env_to_module import BatchIndividualItems, EnvToModulePipeline

    checkpoint = unpacked(FIRST, tmp_path) / "cartpole" / "algorithm"
    file = checkpoint / "env_runner/env_to_module_connector" / CLASS
    seen, choices = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), gym.spaces.Discrete(2)
    pieces = [FrameStacking(num_frames=4), BatchIndividualItems()]
    made = EnvToModulePipeline(input_observation_space=seen, input_action_space=choices, connectors=pieces)
    file.write_bytes(pickle.dumps({"class": type(made), "ctor_args_and_kwargs": made.get_ctor_args_and_kwargs()}))
    rename(file, FrameStacking, FrameStacking.__module__, "_FrameStacking")
    found = read_checkpoint(str(checkpoint), trust_pickle=True).pieces.build(Setting(seen, choices)).env_to_module
    assert [piece.num_frames for piece in found.pieces() if isinstance(piece, OurStacking)] == [4]
