"""Policies with memory: what they learn from, how they are kept and played, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edited_json import told_in
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_cli import load_policy as policy_in_use
from offline_cli import record
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.modules import build_recurrent_module
from offline_cli.playing.evaluate import evaluate
from offline_cli.training.algorithms.bc import bc_loss
from offline_cli.training.config import resolve_config
from offline_cli.training.learner import Setup
from offline_cli.training.steps import WEIGHTS, Batches
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=1)
LENGTHS = (7, 1, 12, 5)
CPU = torch.device("cpu")
NUMBERS = count()
MEMORY = '[network]\nmemory = "{}"\nmemory_size = 8\nmax_seq_len = 5\n'


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file for a small network with a memory."""

    def write(memory: str = "lstm", *, above: str = "", below: str = "") -> Path:
        text = f"hidden = [16]\nbatch_size = 20\nlr = 0.01\n{above}{MEMORY.format(memory)}{below}"
        (tmp_path / "c.toml").write_text(text)
        return tmp_path / "c.toml"

    return write


@pytest.fixture
def episodes(random_batch: Callable[..., EpisodeBatch]) -> EpisodeBatch:
    """Four of LENGTHS."""
    return random_batch(OBS, ACT, LENGTHS)


def loaded(write_dataset: Write, config: Path, episodes: EpisodeBatch, **options: Any) -> TrainingData:
    resolved = resolve_config(options, file=config)
    name = f"data-{next(NUMBERS)}"
    return load_data(write_dataset(episodes, name=name), resolved, Setup.of(resolved), on_progress=lambda _: None)


def stepper(data: TrainingData, batch_size: int) -> Batches:
    return Batches(data.train, batch_size=batch_size, seed=0, device=CPU, before=data.learner.before_sequences())


@pytest.mark.parametrize("streaming", [False, True])
def test_an_epoch_learns_from_every_step_once(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, streaming: bool
) -> None:
    data = loaded(write_dataset, config(), episodes, streaming=streaming)
    loader = stepper(data, 15)
    counts, seen = [], []
    for update in range(loader.updates_per_epoch):
        counts.append(int(loader.fill(update)))
        mask = loader.batch["loss_mask"]
        seen.append(loader.batch["obs"][mask].numpy().copy())
        weights = loader.batch[WEIGHTS].reshape(mask.shape)
        assert bool((weights[mask] == 1 / counts[-1]).all())
        assert not weights[~mask].any()
    data.close()
    assert sum(counts) == sum(LENGTHS)
    wanted = episodes.acted_obs()
    assert isinstance(wanted, np.ndarray)
    assert np.array_equal(np.sort(np.concatenate(seen), 0), np.sort(wanted, 0))


def test_the_loss_is_the_mean_over_steps_each_episode_played_from_its_start(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch
) -> None:
    file = config()
    file.write_text(file.read_text().replace("max_seq_len = 5", "max_seq_len = 12"))
    data = loaded(write_dataset, file, episodes)
    loader = stepper(data, 1000)
    loader.fill(0)
    found = bc_loss(data.learner.policy, loader.batch).item()
    policy, nats = data.learner.policy, 0.0
    for episode in episodes:
        state = {name: leaf[None] for name, leaf in policy.get_initial_state().items()}
        for step in range(len(episode)):
            seen = torch.as_tensor(np.asarray(episode.get_observations(step)))[None, None]
            outputs = policy.forward_train({"obs": seen, "state_in": state})
            state = outputs["state_out"]
            acted = torch.as_tensor(np.asarray(episode.get_actions(step)))[None]
            nats -= policy.action_head.logp(outputs["action_dist_inputs"][:, 0], acted).item()
    assert found == pytest.approx(nats / sum(LENGTHS), rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    memory=st.sampled_from(["lstm", "gru"]),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    padding=st.integers(1, 5),
    wild=st.floats(-1e3, 1e3, width=32),
)
def test_steps_that_pad_change_no_gradient(memory: str, lengths: list[int], padding: int, wild: float) -> None:
    count, least = len(lengths), max(lengths)
    most = least + padding
    policy = build_recurrent_module(OBS, spaces.Discrete(4), hidden=[8], memory=memory, memory_size=6, max_seq_len=most)
    generator = torch.Generator().manual_seed(0)
    obs, actions = torch.rand(count, most, 3, generator=generator), torch.randint(4, (count, most), generator=generator)
    mask = torch.arange(most) < torch.tensor(lengths)[:, None]
    state = {name: leaf.expand(count, *leaf.shape) for name, leaf in policy.get_initial_state().items()}

    def gradients(end: int, *, wild: float) -> list[torch.Tensor]:
        seen = torch.where(mask[..., None], obs, wild)[:, :end]
        weights = (mask / mask.sum())[:, :end].flatten()
        batch = {"obs": seen, "actions": actions[:, :end], "state_in": state, "loss_mask": mask[:, :end], WEIGHTS: weights}
        policy.zero_grad()
        bc_loss(policy, batch).backward()  # type: ignore[no-untyped-call]
        return [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]

    short, long = gradients(least, wild=0.0), gradients(most, wild=wild)
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert any(bool(part.any()) for part in short)


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_a_run_with_a_memory_is_trained_evaluated_recorded_and_acts(
    memory: str, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path, told: Any
) -> None:
    data, run = write_dataset(make_batch()), tmp_path / "run"
    words = ["train", data, "--out", run, "--config", config(memory), "--updates", 30, "--env", "Sign-v0"]
    found = told(*words, "--val-fraction", 0.2, "--device", "cpu")
    assert found["eval_return_mean"] is not None
    assert found["val_loss"] > 0
    assert told_in(run / "policy.json")["network"]["memory"] == memory
    assert evaluate(run, env="Sign-v0", episodes=4).episodes == 4
    record("Sign-v0", tmp_path / "out", policy=str(run), episodes=3, vectorize="sync", device="cpu")
    policy = policy_in_use(run)
    for batch in open_dataset(str(tmp_path / "out")).batches():
        for episode in batch:
            policy.reset()
            for step in range(len(episode)):
                assert policy.act(episode.get_observations(step)) == episode.get_actions(step)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_that_is_stopped_goes_on_to_the_same_weights(
    streaming: bool, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    data = write_dataset(make_batch())
    options: dict[str, Any] = {"config": config("gru"), "streaming": streaming, "device": "cpu", "val_fraction": 0.25}
    train_bc(data, tmp_path / "whole", updates=40, **options)
    train_bc(data, tmp_path / "parts", updates=13, **options)
    train_bc(data, tmp_path / "parts", updates=40, resume=True, **options)
    whole, parts = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def marwil(config: Callable[..., Path], tmp_path: Path, **options: Any) -> Path:
    file = config("lstm", below='[algorithm]\nname = "marwil"\n' + "".join(f"{key} = {one}\n" for key, one in options.items()))
    assert file.parent == tmp_path
    return file


@pytest.mark.parametrize("lambda_", [1.0, 0.7])
def test_value_targets_of_sequences_are_those_of_whole_episodes(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, tmp_path: Path, lambda_: float
) -> None:
    cut = np.array([False, True, False, True])
    episodes = replace(episodes, rewards=np.arange(sum(LENGTHS), dtype=np.float64), terminated=~cut, truncated=cut)
    data = loaded(write_dataset, marwil(config, tmp_path, lambda_=lambda_, gamma=0.9), episodes)
    value: Any = data.learner.modules["value"]
    loader = stepper(data, 1000)
    loader.fill(0)
    mask = loader.batch["loss_mask"]
    found = {
        tuple(seen): target
        for seen, target in zip(loader.batch["obs"][mask].tolist(), loader.batch["value_targets"][mask].tolist(), strict=True)
    }
    assert len(found) == sum(LENGTHS)
    for number, episode in enumerate(episodes):
        seen = torch.as_tensor(np.asarray(episode.get_observations()))
        values = value(seen).detach().double().numpy()
        values[-1] *= cut[number]  # nothing has value after a terminated episode
        rewards, sum_ = np.asarray(episode.get_rewards()), 0.0
        for step in reversed(range(len(episode))):
            sum_ = rewards[step] + 0.9 * values[step + 1] - values[step] + 0.9 * lambda_ * sum_
            assert found[tuple(seen[step].tolist())] == pytest.approx(sum_ + values[step], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("algorithm", ["iql", "td3-bc"])
def test_an_algorithm_that_learns_from_single_steps_refuses_a_memory_by_name(
    algorithm: str, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path, call: Any
) -> None:
    data = write_dataset(make_batch(continuous=True), action_scale="env")
    code, found = call("train", data, "--out", tmp_path / "run", "--config", config(), "--algorithm", algorithm)
    assert (code, found["error"]["code"]) == (4, "bad-config")
    assert "recurrent networks" in found["error"]["what"]
    assert not (tmp_path / "run").exists()
