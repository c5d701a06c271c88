"""On a GPU: training as on the CPU, data fed from the host, resuming, playing and recording. `make gpu` runs these tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file

from offline_cli.errors import Interrupted
from offline_cli.modules.policy_modules import build_module
from offline_cli.progress import Progress
from offline_cli.training import steps
from offline_cli.training.learner import Update, cloning_learner
from offline_cli.training.steps import Batches, Steps
from offline_cli.training.train import train_bc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
Write = Callable[..., Path]
GPU = "cuda"


def flat(run: Path) -> torch.Tensor:
    tensors = load_file(run / "policy.safetensors")
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """On average: where a gradient is nearly 0, Adam makes whole steps of rounding, so single weights may differ."""
    return float((one - other).abs().mean())


@pytest.mark.parametrize("streaming", [False, True])
def test_training_there_ends_where_training_on_the_cpu_does(
    write_dataset: Write, config: Path, tmp_path: Path, streaming: bool
) -> None:
    data = write_dataset()
    options: dict[str, Any] = {"config": config, "updates": 60, "val_fraction": 0.25, "eval_every": 15, "streaming": streaming}
    results = [train_bc(data, tmp_path / device, device=device, memory_limit=4 << 30, **options) for device in ("cpu", GPU)]
    assert [result.device for result in results] == ["cpu", GPU]
    assert results[0].val_loss == pytest.approx(results[1].val_loss, rel=1e-2)
    assert apart(flat(tmp_path / "cpu"), flat(tmp_path / GPU)) < 1e-3


def test_data_that_stays_on_the_host_trains_the_same_policy(
    write_dataset: Write, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_dataset()
    train_bc(data, tmp_path / "resident", config=config, updates=60, device=GPU)
    monkeypatch.setattr(steps, "fits_on", lambda device, nbytes: False)
    train_bc(data, tmp_path / "fed", config=config, updates=60, device=GPU)
    assert apart(flat(tmp_path / "resident"), flat(tmp_path / "fed")) < 1e-4


def test_a_run_that_was_stopped_there_ends_as_an_undisturbed_one(write_dataset: Write, config: Path, tmp_path: Path) -> None:
    data, sent = write_dataset(), list[int]()

    def listen(progress: Progress) -> None:
        if progress.stage == "training" and progress.done >= 20 and not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    options: dict[str, Any] = {"config": config, "updates": 60, "device": GPU, "val_fraction": 0.25, "eval_every": 15}
    train_bc(data, tmp_path / "whole", **options)
    with pytest.raises(Interrupted):
        train_bc(data, tmp_path / "cut", on_progress=listen, **options)
    train_bc(data, tmp_path / "cut", resume=True)
    assert apart(flat(tmp_path / "whole"), flat(tmp_path / "cut")) < 1e-4


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "image": spaces.Box(0, 255, (40, 40, 3), "uint8"),
    "choices": spaces.MultiDiscrete([3, 4]),
    "nested": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (3,)), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-1.0, 1.0, (2,)),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(3),
    "nested": spaces.Dict({"go": spaces.Discrete(3, start=2), "aim": spaces.Box(-1.0, 1.0, (2,))}),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("seen", "done"), [("image", "box"), ("choices", "choices"), ("nested", "nested"), ("nested", "bits")])
def test_every_kind_of_space_is_learned_there_as_on_the_cpu(seen: str, done: str, precision: str) -> None:
    space, actions = OBSERVATIONS[seen], ACTIONS[done]
    columns = {name: stacked(part) for name, part in (("obs", space), ("actions", actions))}
    ends = []
    for device in ("cpu", GPU):
        module = build_module(space, actions, hidden=[16], action_scale="env", seed=0).to(device).train()
        loader = Batches(Steps(columns), batch_size=8, seed=0, device=torch.device(device))
        update = Update(cloning_learner(module), loader.batch, lr=1e-3, precision=precision)
        for number in range(10):
            loader.fill(number)
            update(number)
        ends.append(torch.cat([one.detach().reshape(-1).cpu() for one in update.steps[0].parameters]))
        assert torch.isfinite(ends[-1]).all()
    assert apart(*ends) < (2e-4 if precision == "fp32" else 2e-3)  # of weights that have moved by some 5e-3


def stacked(space: spaces.Space[Any], rows: int = 20) -> Any:
    """(20, ...) drawn values as tensors."""
    if isinstance(space, spaces.Dict):
        return {name: stacked(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part) for part in space.spaces)
    space.seed(0)
    return torch.stack([torch.as_tensor(space.sample()) for _ in range(rows)])
