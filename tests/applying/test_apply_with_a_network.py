"""`apply --policy RUN`: pieces get the run's network, and make sequences, states and values; its pieces learn no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_cli import apply, train
from offline_cli.applying.apply import ApplyResult
from offline_cli.connectors import GeneralAdvantageEstimation, learner_pipeline
from offline_cli.connectors.connector_v2 import state_from_bytes
from offline_cli.connectors.learner.added_columns import AddOneTsToEpisodesAndTruncate
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadPiece, SpaceMismatch, UsageError
from offline_cli.policies.run_policy import load_policy
from offline_cli.storage.locations import open_location
from offline_cli.training.run_modules import policy_with_values
from offline_cli.trees import flatten

Dataset = Callable[..., str]
Pipeline = Callable[..., str]
Stored = Callable[[str], list[dict[str, Any]]]
Call = Callable[..., tuple[int, dict[str, Any]]]
MEMORY = 'hidden = [8]\nbatch_size = 20\n[network]\nmemory = "lstm"\nmemory_size = 4\nmax_seq_len = 5\nburn_in = 2\n'
DEFAULTS = (
    *("add_observations_from_episodes_to_batch", "add_columns_from_episodes_to_batch", "add_time_dim_to_batch_and_zero_pad"),
    *("add_states_from_episodes_to_batch", "batch_individual_items", "numpy_to_tensor"),
)
VALUES = "".join(
    f'[[pieces]]\nname = "{name}"\n'
    for name in ("add_one_ts_to_episodes_and_truncate", *DEFAULTS, "general_advantage_estimation")
)
VALUES += "gamma = 0.9\nlambda_ = 0.8\n"
ALL_PIECES = 'kind = "learner"\ndefaults = false'


@pytest.fixture
def data(dataset: Dataset, episodes: EpisodeBatch) -> str:
    return dataset(episodes)


@pytest.fixture
def run(data: str, tmp_path: Path) -> str:
    """A run of MARWIL with a memory: its checkpoint has values."""
    (tmp_path / "c.toml").write_text(MEMORY)
    train(data, tmp_path / "run", algorithm="marwil", config=tmp_path / "c.toml", updates=6, device="cpu")
    return str(tmp_path / "run")


@pytest.fixture
def plain(data: str, tmp_path: Path) -> str:
    """A run of cloning without memory, through a filter."""
    (tmp_path / "filter.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    train(data, tmp_path / "plain", hidden=[8], pipeline=tmp_path / "filter.toml", updates=3, device="cpu")
    return str(tmp_path / "plain")


@pytest.mark.parametrize("format", ["columns", "safetensors"])
def test_batches_are_the_sequences_that_the_pipeline_makes_with_this_network(
    data: str, run: str, episodes: EpisodeBatch, pipeline_file: Pipeline, tmp_path: Path, stored: Stored, format: Any
) -> None:
    done = apply(data, str(tmp_path / "out"), pipeline=pipeline_file(), policy=run, format=format)
    assert isinstance(done, ApplyResult)
    (found,) = stored(str(tmp_path / "out"))
    pipeline = learner_pipeline(episodes.observation_space, episodes.action_space)  # type: ignore[arg-type]
    wanted = pipeline(rl_module=load_policy(run).module, episodes=episodes)
    assert done.rows == len(wanted["seq_lens"])
    assert {"state_in", "seq_lens", "loss_mask"} < wanted.keys()
    mine, other = dict(flatten(found)), dict(flatten(wanted))
    assert mine.keys() == other.keys()
    for path, leaf in other.items():
        np.testing.assert_array_equal(mine[path], leaf.numpy(), err_msg=path, strict=True)


def test_values_are_those_of_the_runs_algorithm(
    data: str, run: str, episodes: EpisodeBatch, pipeline_file: Pipeline, tmp_path: Path, stored: Stored
) -> None:
    apply(data, str(tmp_path / "out"), pipeline=pipeline_file(VALUES, head=ALL_PIECES), policy=run)
    (found,) = stored(str(tmp_path / "out"))
    module = policy_with_values(open_location(run), None).module
    pipeline = learner_pipeline(episodes.observation_space, episodes.action_space)  # type: ignore[arg-type]
    pipeline.prepend(AddOneTsToEpisodesAndTruncate())
    pipeline.append(GeneralAdvantageEstimation(gamma=0.9, lambda_=0.8))
    wanted = pipeline(rl_module=module, episodes=episodes)
    for name in ("advantages", "value_targets"):
        np.testing.assert_array_equal(found[name], wanted[name].numpy())
    assert found["advantages"].shape == found["loss_mask"].shape
    assert np.ptp(found["value_targets"][found["loss_mask"]]) > 0


def test_pieces_keep_what_they_learned_in_the_run(
    dataset: Dataset, plain: str, random_batch: Callable[..., EpisodeBatch], episodes: EpisodeBatch, tmp_path: Path
) -> None:
    other = random_batch(episodes.observation_space, episodes.action_space, lengths=(4, 4), seed=9)
    apply(dataset(other, name="other"), str(tmp_path / "out"), pipeline=tmp_path / "filter.toml", policy=plain)
    learned = [
        state_from_bytes((folder / "connectors.msgpack").read_bytes(), where="test")
        for folder in (tmp_path / "plain", tmp_path / "out")
    ]
    for (path, one), (_, two) in zip(*(flatten(state) for state in learned), strict=True):
        np.testing.assert_array_equal(one, two, err_msg=path)


def test_a_memory_of_the_recording_is_in_the_states(
    dataset: Dataset,
    run: str,
    random_batch: Callable[..., EpisodeBatch],
    pipeline_file: Pipeline,
    tmp_path: Path,
    stored: Stored,
) -> None:
    batch = random_batch(spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(2), lengths=(7,))
    outs = {name: np.arange(7 * 4, dtype=np.float32).reshape(7, 1, 4) for name in ("h", "c")}
    recorded = dataset(replace(batch, extra={"state_out": outs}), name="played")
    apply(recorded, str(tmp_path / "out"), pipeline=pipeline_file(), policy=run)
    (found,) = stored(str(tmp_path / "out"))
    state = found["state_in"]["h"]
    np.testing.assert_array_equal(state[0], np.zeros((1, 4)))
    np.testing.assert_array_equal(state[1], outs["h"][2])  # the second sequence begins with two steps that lead in


def test_values_of_a_run_that_has_none_are_refused_by_name(
    data: str, plain: str, pipeline_file: Pipeline, tmp_path: Path
) -> None:
    with pytest.raises(BadPiece, match="no module here has values") as caught:
        apply(data, str(tmp_path / "out"), pipeline=pipeline_file(VALUES, head=ALL_PIECES), policy=plain)
    assert "apply --policy" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_a_network_of_other_spaces_is_refused_before_data_is_read(
    dataset: Dataset, run: str, random_batch: Callable[..., EpisodeBatch], pipeline_file: Pipeline, call: Call, tmp_path: Path
) -> None:
    other = dataset(random_batch(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)), name="other")
    code, found = call("apply", other, "--pipeline", pipeline_file(), "--policy", run, "--out", tmp_path / "out")
    assert (code, found["error"]["code"]) == (4, "space-mismatch")
    assert [word for word in ("the pipeline gives", "the network takes") if word not in found["error"]["what"]] == []
    with pytest.raises(SpaceMismatch):
        apply(other, pipeline=pipeline_file(), policy=run, show=True)


def test_the_code_of_a_network_is_named_again(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_file: Pipeline
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("from torch import nn\ndef build(seen, acted, options):\n    return nn.Linear(4, 2)\n")
    train(data, tmp_path / "coded", network="own.py:build", updates=2, device="cpu")
    with pytest.raises(BadConfig) as caught:
        apply(data, pipeline=pipeline_file(), policy=tmp_path / "coded", show=True)
    assert caught.value.fix.endswith("--network python:own.py:build")
    apply(data, str(tmp_path / "out"), pipeline=pipeline_file(), policy=tmp_path / "coded", network="own.py:build")
    with pytest.raises(UsageError, match="random is no run folder"):
        apply(data, pipeline=pipeline_file(), policy="random", show=True)
    with pytest.raises(UsageError, match="--network is the code of a run's network"):
        apply(data, pipeline=pipeline_file(), network="own.py:build", show=True)
