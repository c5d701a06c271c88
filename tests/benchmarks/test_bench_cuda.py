"""The GPU's questions, as far as a machine without one can answer: what they say, and the steps they time, on the CPU."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from gymnasium import spaces

from benchmarks import cuda_algorithms, cuda_cold_start, cuda_training, update_algorithms, update_sequences
from benchmarks.cuda_utilisation import while_running
from benchmarks.run import QUESTIONS
from offline_cli.converting.reading import read_episodes

CPU = torch.device("cpu")
SMALL = {"batch": 8, "held": 20, "precision": "fp32", "device": CPU}
FRAMES = spaces.Box(0, 255, (84, 84, 4), np.uint8)


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name.startswith("cuda_")])
def test_without_a_gpu_every_row_says_so(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = importlib.import_module(f"benchmarks.{name}").rows()
    assert rows
    assert {row.not_measured for row in rows} == {"no CUDA device"}


@pytest.mark.parametrize("space", [cuda_training.vector_space(4), FRAMES], ids=["vectors", "frames"])
@pytest.mark.parametrize("steps", [cuda_training.our_steps, cuda_training.bare_steps])
def test_the_steps_that_are_timed_train(space, steps):
    step = steps(space, (16,), **SMALL)
    for _ in range(4):  # over the end of an epoch
        step()


@pytest.mark.nightly
@pytest.mark.parametrize("name", cuda_algorithms.ALGORITHMS)
def test_the_updates_of_algorithms_that_are_timed_train_and_on_the_cpu_launch_nothing(name, monkeypatch):
    monkeypatch.setattr(update_algorithms, "HELD", 600)
    step = update_algorithms.our_update(name)
    assert cuda_algorithms.launches(step) == 0


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_the_updates_of_sequences_that_are_timed_train(memory, monkeypatch):
    monkeypatch.setattr(update_sequences, "EPISODES", 2)
    for step in (update_sequences.our_update(memory), update_sequences.bare_update(memory)):
        step()


def test_both_sides_train_the_same_network():
    weights = [sum(p.numel() for p in cuda_training.policy(FRAMES, (16,)).parameters()) for _ in range(2)]
    assert weights[0] == weights[1] > 0


def test_operations_are_forward_and_backward_but_for_the_inputs_gradient():
    assert cuda_training.operations(4, (8,), outputs=2) == 2 * (2 * 4 * 8 + 3 * 8 * 2)


def test_a_rate_is_in_the_units_of_a_step():
    calls = []
    rate = cuda_training.rate_of(lambda: calls.append(1), 5, CPU, amount=1000)
    assert rate() > 0
    assert len(calls) == 3 + 5


def test_how_busy_a_device_is_is_asked_while_it_works():
    steps = []
    assert while_running(lambda: steps.append(1), iter([10.0, 30.0, 20.0, *[20.0] * 1000]).__next__, CPU, seconds=0.3) == 20
    assert steps


def test_a_step_that_fails_beside_the_measurement_fails_it():
    def broken():
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        while_running(broken, lambda: 0.0, CPU, seconds=0.1)


def test_without_rllibs_recording_the_cold_start_takes_the_sample(monkeypatch, tmp_path):
    monkeypatch.setenv("OFFLINE_CLI_REAL_DATA", str(tmp_path))
    source, steps = cuda_cold_start.data()
    counted = steps_in(source)
    assert f"{counted:,}" == steps


def steps_in(source):
    stream = read_episodes(source, env="CartPole-v1")
    return sum(batch.num_steps for batch in stream)
