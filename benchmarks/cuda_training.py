"""What the GPU's questions share: the card, its measured rates, and training steps put together as `train-bc` does it.

Everything here but the card's own rates runs on the CPU as well, where the tests look at it.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from benchmarks.harness import Missing, Rate
from offline_cli.modules.devices import autocast
from offline_cli.modules.policy_modules import build_module
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space
from offline_cli.training.learner import cloning_learner
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.updates import Update, captured

__all__ = ["bare_steps", "card", "card_name", "matrix_rate", "operations", "our_steps", "rate_of", "vector_space"]

WIDTH, PRODUCTS = 8192, 20  # of the matrix product that says what the card can do
NO_DEVICE = "no CUDA device"


def card() -> torch.device:
    """The GPU. Raises Missing where there is none."""
    if not torch.cuda.is_available():
        raise Missing(NO_DEVICE)
    return torch.device("cuda")


def card_name() -> str:
    """`NVIDIA H100 80GB HBM3, torch 2.13.0`."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


@functools.cache
def matrix_rate() -> float:
    """Operations per second of the card in products of large bfloat16 matrices."""
    left, right = (torch.randn(WIDTH, WIDTH, device=card(), dtype=torch.bfloat16) for _ in range(2))
    work = functools.partial(torch.mm, left, right)
    return 2 * WIDTH**3 * rate_of(work, PRODUCTS, left.device)()


def rate_of(step: Callable[[], object], count: int, device: torch.device, *, amount: float = 1) -> Rate:
    """Units per second of `count` steps of `amount` units in a row, waiting for the device only before and after."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def rate() -> float:
        for _ in range(3):
            step()
        wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return count * amount / (time.perf_counter() - start)

    return rate


def vector_space(width: int) -> Space:
    return spaces.Box(-np.inf, np.inf, (width,), np.float32)


def policy(space: Space, hidden: Sequence[int]) -> RLModule:
    return build_module(space, spaces.Discrete(2), hidden=hidden, action_scale="env", seed=0)


def made_columns(space: Space, held: int) -> dict[str, torch.Tensor]:
    """`held` steps: numbers for vectors, bytes for frames."""
    assert space.shape is not None
    if space.dtype == np.uint8:
        obs = torch.randint(0, 256, (held, *space.shape), dtype=torch.uint8)
    else:
        obs = torch.randn(held, *space.shape)
    return {"obs": obs, "actions": torch.randint(0, 2, (held,))}


def our_steps(
    space: Space, hidden: Sequence[int], *, batch: int, held: int, precision: str, device: torch.device
) -> Callable[[], None]:
    """One batch drawn and one update at a call: captured on a GPU, eager on the CPU."""
    module = policy(space, hidden).to(device).train()
    loader = StepLoader(MemoryStore(made_columns(space, held)), batch_size=batch, seed=0, device=device)
    update = Update(cloning_learner(module), loader.batch, lr=1e-3, precision=precision)
    loader.fill(0)
    launch = captured(update) if device.type == "cuda" else update
    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        loader.fill(number)
        launch(number)

    return step


def bare_steps(
    space: Space, hidden: Sequence[int], *, batch: int, held: int, precision: str, device: torch.device
) -> Callable[[], None]:
    """The same network as one writes it down: data on the device, random rows, cross entropy, fused Adam."""
    module = policy(space, hidden).to(device).train()
    columns = {name: column.to(device) for name, column in made_columns(space, held).items()}
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=device.type == "cuda")

    def step() -> None:
        chosen = torch.randint(0, held, (batch,), device=device)
        with autocast(device, precision):
            logits = module.forward_train({"obs": columns["obs"][chosen]})["action_dist_inputs"]
            loss = nn.functional.cross_entropy(logits, columns["actions"][chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def operations(width: int, hidden: Sequence[int], *, outputs: int = 2) -> int:
    """Floating-point operations that one sample costs an MLP: forward, and back to weights and to all inputs but the first."""
    products = [one * other for one, other in itertools.pairwise([width, *hidden, outputs])]
    return 2 * (3 * sum(products) - products[0])
