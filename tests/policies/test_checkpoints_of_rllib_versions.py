"""Checkpoints of RLlib 2.40 to 2.60 play the episodes that the version that wrote them played: the same seeds, greedily."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from rllib_versions import FIRST, VERSIONS, unpacked

from offline_cli.connectors import MeanStdFilter
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.policies.rllib_pickles import state_of_piece
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
