"""Policies with memory: what they learn from, how they are kept and played, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed_runs import tell, told_in

from offline_cli import load_policy as policy_in_use
from offline_cli import record, train
from offline_cli.connectors.common.states_and_time import Cut
from offline_cli.datasets.dataset import open_dataset
from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig, BadData
from offline_cli.modules import build_recurrent_module
from offline_cli.playing.evaluate import evaluate
from offline_cli.policies.run_policy import load_policy
from offline_cli.training.algorithms.bc import bc_loss
from offline_cli.training.config import resolve_config
from offline_cli.training.learner import Setup
from offline_cli.training.loader import WEIGHTS, StepLoader
from offline_cli.training.train import train_bc
from offline_cli.training.training_data import TrainingData, load_data

Write = Callable[..., Path]
Make = Callable[..., EpisodeBatch]
OBS, ACT = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=1)
LENGTHS = (7, 1, 12, 5)
CPU = torch.device("cpu")
NUMBERS = count()
MEMORY = '[network]\nmemory = "{}"\nmemory_size = 8\nmax_seq_len = 5\nburn_in = {}\n'


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file for a small network with a memory."""

    def write(memory: str = "lstm", burn_in: int = 0, *, above: str = "", below: str = "") -> Path:
        text = f"hidden = [16]\nbatch_size = 20\nlr = 0.01\n{above}{MEMORY.format(memory, burn_in)}{below}"
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


def stepper(data: TrainingData, batch_size: int) -> StepLoader:
    return StepLoader(data.train, batch_size=batch_size, seed=0, device=CPU, before=data.learner.before_sequences())


# ---- batches ----


@pytest.mark.parametrize("burn_in", [0, 3, 9])
@pytest.mark.parametrize("streaming", [False, True])
def test_an_epoch_learns_from_every_step_once(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, burn_in: int, streaming: bool
) -> None:
    data = loaded(write_dataset, config(burn_in=burn_in), episodes, streaming=streaming)
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


@pytest.mark.parametrize("burn_in", [0, 2, 7])
def test_no_sequence_reaches_over_the_end_of_an_episode(burn_in: int) -> None:
    cut = Cut.of(LENGTHS, 5, burn_in)
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    for rows, there, own in zip(cut.rows, cut.there, cut.own, strict=True):
        assert len(set(episode[rows[there]])) == 1
        assert np.array_equal(rows[there], np.arange(rows[0], rows[0] + there.sum())), "one step after the other"
        assert bool((there | ~own).all())
    assert np.array_equal(np.sort(cut.rows[cut.own]), np.arange(sum(LENGTHS)))


def test_steps_that_lead_in_are_those_before_as_far_as_the_episode_has_them() -> None:
    cut = Cut.of([12], 5, 3)
    assert [rows[there].tolist() for rows, there in zip(cut.rows, cut.there, strict=True)] == [
        [0, 1, 2, 3, 4],
        [2, 3, 4, 5, 6, 7, 8, 9],
        [7, 8, 9, 10, 11],
    ]
    assert [rows[own].tolist() for rows, own in zip(cut.rows, cut.own, strict=True)] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [10, 11],
    ]


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


def test_steps_that_the_recording_masks_are_not_learned_from(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch
) -> None:
    mask = np.ones(sum(LENGTHS), np.bool_)
    mask[[0, 8, 9]] = False
    mask[7] = False  # the episode of one step
    data = loaded(write_dataset, config(), replace(episodes, extra={"loss_mask": mask}))
    loader = stepper(data, 1000)
    assert int(loader.fill(0)) == mask.sum()


def test_states_of_a_recording_are_not_those_of_the_network_that_learns(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch
) -> None:
    outs = {"state_out": {"h": np.ones((sum(LENGTHS), 1, 3), np.float32)}}
    data = loaded(write_dataset, config("gru"), replace(episodes, extra=outs))
    loader = stepper(data, 1000)
    loader.fill(0)
    assert not loader.batch["state_in"]["h"].any()
    assert loader.batch["state_in"]["h"].shape[1:] == (1, 8)


# ---- runs ----


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_a_run_with_a_memory_is_trained_evaluated_recorded_and_acts(
    memory: str, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path, told: Any
) -> None:
    data, run = write_dataset(make_batch()), tmp_path / "run"
    words = ["train", data, "--out", run, "--config", config(memory, 2), "--updates", 30, "--env", "Sign-v0"]
    found = told(*words, "--val-fraction", 0.2, "--device", "cpu")
    assert found["eval_return_mean"] is not None
    assert found["val_loss"] > 0
    assert told_in(run / "policy.json")["mlp"]["memory"] == memory
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
    options: dict[str, Any] = {"config": config("gru", 2), "streaming": streaming, "device": "cpu", "val_fraction": 0.25}
    train_bc(data, tmp_path / "whole", updates=40, **options)
    train_bc(data, tmp_path / "parts", updates=13, **options)
    train_bc(data, tmp_path / "parts", updates=40, resume=True, **options)
    whole, parts = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_samples_count_steps_and_not_what_pads(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, tmp_path: Path
) -> None:
    train_bc(write_dataset(episodes), tmp_path / "run", config=config(burn_in=3), epochs=3, device="cpu")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["samples"] == 3 * sum(LENGTHS)


def test_between_pieces_it_plays_the_same_episodes_for_any_number_of_copies(
    config: Callable[..., Path], tmp_path: Path, told: Any
) -> None:
    (tmp_path / "p.toml").write_text('kind = "learner"\n[[pieces]]\nname = "mean_std_filter"\n')
    record("CartPole-v1", tmp_path / "data", policy="random", episodes=6, device="cpu")
    words = ["--config", config("lstm", 2), "--pipeline", tmp_path / "p.toml", "--updates", 20, "--device", "cpu"]
    told("train-bc", tmp_path / "data", "--out", tmp_path / "run", *words)
    found, scores = [], []
    for copies in (1, 3):
        out = tmp_path / f"out-{copies}"
        how = {"num_envs": copies, "device": "cpu"}
        record("CartPole-v1", out, policy=str(tmp_path / "run"), episodes=5, vectorize="sync", **how)  # type: ignore[arg-type]
        found.append([path.read_bytes() for path in sorted((out / "data").iterdir())])
        scores.append(evaluate(tmp_path / "run", env="CartPole-v1", episodes=5, **how).return_mean)  # type: ignore[arg-type]
    assert found[0] == found[1]
    assert scores[0] == scores[1]


def test_streaming_and_memory_have_the_same_loss_for_each_sequence(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch
) -> None:
    losses = []
    for streaming in (False, True):
        data = loaded(write_dataset, config("gru", 2), episodes, streaming=streaming)
        loader = stepper(data, 1)  # a sequence a batch: in whatever order they come, each has its loss
        found = []
        for update in range(loader.updates_per_epoch):
            loader.fill(update)
            found.append(bc_loss(data.learner.policy, loader.batch).item())
        losses.append(sorted(found))
        data.close()
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == sum(-(-length // 5) for length in LENGTHS)


def test_marwil_without_advantages_learns_from_sequences_as_cloning_does(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    data = write_dataset(make_batch())
    for name, options in (("bc", {}), ("marwil", {"beta": 0.0})):
        train(data, tmp_path / name, config=config(), algorithm=name, set=options, updates=12, device="cpu")
    one, other = (load_policy(tmp_path / name).module.state_dict() for name in ("bc", "marwil"))
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---- with values ----


def marwil(config: Callable[..., Path], tmp_path: Path, **options: Any) -> Path:
    file = config(
        "lstm", 2, below='[algorithm]\nname = "marwil"\n' + "".join(f"{key} = {one}\n" for key, one in options.items())
    )
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


def test_what_pads_a_sequence_changes_no_gradient_of_marwil(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, tmp_path: Path
) -> None:
    data = loaded(write_dataset, marwil(config, tmp_path), episodes)
    loader = stepper(data, 1000)
    loader.fill(0)
    mask = loader.batch["loss_mask"]
    last = torch.arange(mask.shape[1]) * mask
    pads = torch.arange(mask.shape[1]) > last.amax(1, keepdim=True)
    assert bool(pads.any())
    (group,) = data.learner.groups
    gradients = []
    for wild in (0.0, 3.0):
        loader.batch["obs"][pads] = wild
        loader.batch["value_targets"][pads] = wild
        data.learner.whole.zero_grad()
        data.learner.modules["value"].squared_norm.fill_(100.0)  # type: ignore[operator, union-attr]
        sum(group.loss(loader.batch).values()).backward()  # type: ignore[union-attr, no-untyped-call]
        gradients.append([part.grad.clone() for part in data.learner.whole.parameters() if part.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    assert any(bool(part.any()) for part in gradients[0])


def test_a_sequence_of_one_step_each_is_the_same_as_single_steps(
    write_dataset: Write, config: Callable[..., Path], episodes: EpisodeBatch, tmp_path: Path
) -> None:
    """What MARWIL learns of values does not depend on how steps lie in sequences."""
    losses = []
    for length in (1, 5, 12):
        file = marwil(config, tmp_path, lambda_=0.8)
        file.write_text(file.read_text().replace("max_seq_len = 5", f"max_seq_len = {length}"))
        data = loaded(write_dataset, file, episodes)
        loader = stepper(data, 1000)
        loader.fill(0)
        (group,) = data.learner.groups
        losses.append(group.loss(loader.batch)["vf"].item())
    assert losses[1:] == pytest.approx(losses[:-1], rel=1e-5)


@pytest.mark.parametrize("refresh_every", [0, 3])
def test_marwil_on_sequences_that_is_stopped_goes_on_to_the_same_weights(
    refresh_every: int, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    data, file = write_dataset(make_batch()), marwil(config, tmp_path, refresh_every=refresh_every)
    options: dict[str, Any] = {"config": file, "device": "cpu", "val_fraction": 0.25, "streaming": not refresh_every}
    whole = train_bc(data, tmp_path / "whole", updates=12, **options)
    train_bc(data, tmp_path / "parts", updates=5, **options)
    parts = train_bc(data, tmp_path / "parts", updates=12, resume=True, **options)
    assert whole.losses == parts.losses
    one, other = ((tmp_path / name / "policy.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other


# ---- what is refused ----


@pytest.mark.parametrize("algorithm", ["iql", "td3-bc"])
def test_an_algorithm_that_learns_from_single_steps_refuses_a_memory_by_name(
    algorithm: str, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path, call: Any
) -> None:
    data = write_dataset(make_batch(continuous=True), action_scale="env")
    code, found = call("train", data, "--out", tmp_path / "run", "--config", config(), "--algorithm", algorithm)
    assert (code, found["error"]["code"]) == (4, "bad-config")
    assert "single steps" in found["error"]["what"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('memory = "rnn"', ["network.memory", "lstm", "gru"]),
        ("memory_size = 8", ["memory"]),
        ('memory = "gru"\nburn_in = -1\nmax_seq_len = 0', ["network.burn_in", "network.max_seq_len"]),
        ('memory = "gru"\nmemory_size = 100000', ["memory"]),
    ],
)
def test_wrong_options_of_a_memory_are_named(
    table: str, words: list[str], make_batch: Make, write_dataset: Write, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(f"[network]\n{table}\n")
    with pytest.raises(BadConfig) as caught:
        train_bc(write_dataset(make_batch()), tmp_path / "run", config=tmp_path / "c.toml", updates=1, device="cpu")
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "options",
    [
        None,
        {},
        {"memory": "lstm", "memory_size": 9},
        {"memory": "lstm", "memory_size": 1 << 40},
        {"memory": "none"},
        {"memory": "gru", "memory_size": 8},
        {"memory": "lstm", "memory_size": 8, "hidden": [3]},
    ],
    ids=str,
)
def test_a_description_of_another_memory_than_the_weights_have_is_bad_data(
    options: Any, make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    train_bc(write_dataset(make_batch()), tmp_path / "run", config=config(), updates=1, device="cpu")
    described = told_in(tmp_path / "run" / "policy.json")
    tell(tmp_path / "run" / "policy.json", {**described, "mlp": options})
    with pytest.raises(BadData) as caught:
        load_policy(str(tmp_path / "run"))
    assert str(tmp_path / "run") in caught.value.where


def test_weights_of_sources_are_refused_beside_a_memory(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    sources = [write_dataset(make_batch(seed=seed), name=name) for seed, name in enumerate("ab")]
    with pytest.raises(BadConfig, match="memory"):
        train(sources, tmp_path / "run", config=config(), weight={str(sources[0]): 0.3}, updates=1, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_begins_with_another_of_the_same_memory_whatever_its_sequences(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    data = write_dataset(make_batch())
    train(data, tmp_path / "first", config=config("gru"), updates=5, device="cpu")
    train(data, tmp_path / "second", config=config("gru", 3), init_from=tmp_path / "first", updates=1, lr=1e-12, device="cpu")
    first, second = (load_policy(tmp_path / name).module.state_dict() for name in ("first", "second"))
    for name, weights in first.items():
        torch.testing.assert_close(weights, second[name], rtol=0, atol=1e-9)
    with pytest.raises(BadConfig, match=r"memory gru.*memory lstm"):
        train(data, tmp_path / "third", config=config("lstm"), init_from=tmp_path / "first", updates=1, device="cpu")


def test_a_pipeline_without_the_pieces_that_cut_sequences_is_refused(
    make_batch: Make, write_dataset: Write, config: Callable[..., Path], tmp_path: Path
) -> None:
    pieces = 'kind = "learner"\ndefaults = false\n' + "".join(
        f'[[pieces]]\nname = "{name}"\n'
        for name in ("add_observations_from_episodes_to_batch", "add_columns_from_episodes_to_batch", "batch_individual_items")
    )
    (tmp_path / "p.toml").write_text(pieces)
    with pytest.raises(BadConfig, match="sequences"):
        train_bc(
            write_dataset(make_batch()),
            tmp_path / "run",
            config=config(),
            pipeline=tmp_path / "p.toml",
            updates=1,
            device="cpu",
        )
