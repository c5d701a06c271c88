"""Devices, threads, generators and precision: where a network runs. A device that this machine lacks raises MissingDevice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offline_cli.errors import MissingDevice

__all__ = ["autocast", "choose_device", "choose_threads", "fits_on", "seed_generators", "use_threads"]

WORK_PER_THREAD = 2e8  # weights x rows of a batch below which one thread is fastest, and safe on a busy machine
MAX_THREADS = 8


def choose_device(name: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`. Raises MissingDevice for `cuda` without a usable GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        built = "this torch has no CUDA support" if torch.version.cuda is None else "torch finds no usable GPU"
        fix = "--device cpu, or --device auto; for a GPU: a driver, and the CUDA build of torch (pytorch.org)"
        raise MissingDevice(f"no CUDA device: {built}", where="--device cuda", fix=fix)
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_threads(module: nn.Module, rows: int, processes: int = 1) -> int:
    """One thread unless an update is heavy; then one per core that it may use, or its share of those of `processes` here."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    if weights * rows < WORK_PER_THREAD * processes:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")  # a container's, which torch does not look at
    limit, period = quota.read_text().split()[:2] if quota.is_file() else ("max", "1")
    allowed = cores if limit == "max" else min(cores, int(limit) // int(period))
    return min(max(1, allowed // processes), MAX_THREADS)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Run torch with `count` threads inside, with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_generators(seed: int) -> None:
    """As `torch.manual_seed`, which formats the caller's whole stack for a GPU that is not in use yet: 1 ms each time."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch types only half of itself
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The context for a forward pass: bfloat16 arithmetic for `bf16`, none for `fp32` and `auto`."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)  # each weight is used once a step


def fits_on(device: torch.device, nbytes: int) -> bool:
    """Whether data of `nbytes` may live on `device`: always on the CPU, else within half of what is free."""
    return device.type == "cpu" or nbytes < torch.cuda.mem_get_info(device)[0] // 2
