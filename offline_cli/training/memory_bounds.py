"""How a memory limit is shared out in training, and whether it will do: an error comes before the limit is broken.

What a run holds follows from the limit and from constants, never from what happens to be free: a resumed run has pools of the
same size, and so the same batches. What is measured only decides between going on and an error that says how much is needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from offline_cli.episodes.batch import EpisodeBatch
from offline_cli.errors import BadConfig
from offline_cli.formats.memory import give_back
from offline_cli.formats.tables.options import LEAST_MEMORY
from offline_cli.modules.network import checking_features
from offline_cli.modules.rl_module import evaluating
from offline_cli.spaces import Space, leaf_spaces
from offline_cli.storage.prefetch import WINDOW
from offline_cli.training.learner import Learner
from offline_cli.training.loader import WEIGHTS
from offline_cli.training.stores import Store
from offline_cli.training.updates import unchanged
from offline_cli.trees import leaves

__all__ = ["InMemory", "Shares", "check_training_fits"]

MiB: Final = 1 << 20
PROGRAM: Final = {"cpu": 352 * MiB, "cuda": 2560 * MiB}  # torch and the other libraries, on a GPU with its context
DEFAULT: Final = {"cpu": 1024 * MiB, "cuda": 4096 * MiB}  # limits for streaming
LEAST_ROOM: Final = 160 * MiB  # beside the program
READING: Final = 96 * MiB  # files that are being read, and what is made of them
CLIENT: Final = 32 * MiB  # of an object store
OPTION: Final = "--memory-limit"
COPIES: Final = 5  # of the steps while they are put together in memory: 515 MB of episodes were seen to take 2.3 GB
WEIGHT_COPIES: Final = 14  # weights, gradients, moments, scratch, the best policy; and all of them again in a checkpoint
PASSING: Final = 6  # numbers per row of a batch and unit of the widest layer with weights, on the way forward and back
BATCHES: Final = 4  # records and columns of a batch, of the held-out steps too
ENDING: Final = 32 * MiB  # the curve, and what draws it


@dataclass(frozen=True, slots=True)
class Shares:
    """What streaming may hold, in bytes."""

    limit: int
    window: int  # steps that are shuffled before they are written
    pool: int  # steps that are learned from; there are two
    tables: int  # the whole process, as a reader of tables counts it, whose program is smaller by torch
    episode: int  # the arrays of one episode

    @classmethod
    def of(cls, limit: int | None, device: str) -> Shares:
        """The shares of `limit`; None: the default. Raises BadConfig where it is too small for the program itself."""
        limit = DEFAULT[device] if limit is None else limit
        room = limit - PROGRAM[device]
        if room < LEAST_ROOM:
            least = PROGRAM[device] + LEAST_ROOM
            what = f"--memory-limit {_mib(limit)} is too small: torch alone needs {_mib(PROGRAM[device])} on this device"
            raise BadConfig(what, where=OPTION, fix=f"give at least {_mib(least)}")
        return cls(limit, room // 4, room * 3 // 10, LEAST_MEMORY + room // 4, room // COPIES)

    def check_start(self, *, fetched: bool) -> None:
        """Raise BadConfig where the program takes so much already that reading would break the limit. `fetched`: ahead, from an
        object store, whose client is there already.
        """
        _check(self.limit, self.window + READING + (WINDOW if fetched else 0), "reading")


def check_training_fits(limit: int | None, device: str, learner: Learner, store: Store, rows: int) -> None:
    """Raise BadConfig where two pools of a streaming run, and updates with batches of `rows` steps, would break the limit."""
    shares = Shares.of(limit, device)
    network = _network_bytes(learner, store, rows) if device == "cpu" else 0
    _check(shares.limit, 2 * shares.pool + network + ENDING, "training this network")


def _network_bytes(learner: Learner, store: Store, rows: int) -> int:
    """Found by sending one step through: what a layer makes does not follow from its weights alone. The modules stay as they
    are, and so does chance; layers that want several rows to learn from get by with one in evaluation mode.
    """
    taken, made, learned = [0], [0], [0]  # numbers that layers take, that they make, and that those with weights make

    def see(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        taken.append(_numbers(given))
        made.append(_numbers(output))
        if next(layer.parameters(), None) is not None:
            learned.append(made[-1])

    layers = [part for part in learner.whole.modules() if not list(part.children())]
    hooks = [part.register_forward_hook(see) for part in layers]
    step = {**store.first(), WEIGHTS: torch.ones(1)}
    try:
        with (
            unchanged([*learner.others().values()]),
            evaluating(learner.whole),
            checking_features(learner.whole),
            torch.random.fork_rng(devices=[]),
        ):
            for group in learner.groups:
                group.loss(step)
    finally:
        for hook in hooks:
            hook.remove()
    weights = sum(parameter.numel() for parameter in learner.whole.parameters())
    passing = max(taken) + sum(made) + PASSING * max(learned)
    return 4 * (WEIGHT_COPIES * weights + passing * rows) + BATCHES * rows * store.record.nbytes


def _numbers(tree: Any) -> int:
    return sum(leaf.numel() for leaf in leaves(tree) if isinstance(leaf, Tensor))


def _check(limit: int, more: int, doing: str) -> None:
    give_back()  # what is free, and not yet the system's again, is not taken
    taken = _resident()
    if taken is not None and taken + more > limit:
        what = f"the process takes {_mib(taken)} already, and {doing} takes {_mib(more)} more: over {_mib(limit)}"
        raise BadConfig(what, where=OPTION, fix=f"give about {_mib((taken + more) * 5 // 4)}, or a smaller network or batch")


@dataclass(frozen=True, slots=True)
class InMemory:
    """A limit on episodes that are all in memory."""

    limit: int
    device: str
    announced: tuple[Space, Space]  # after the learner pipeline
    fetched: bool = False  # ahead, from an object store

    def checked(self, batches: Iterable[EpisodeBatch], *, where: str) -> Iterator[EpisodeBatch]:
        """`batches`; raises BadConfig, naming --streaming, as soon as all so far will not fit."""
        size = steps = 0
        program = PROGRAM[self.device] + (CLIENT + WINDOW if self.fetched else 0)
        learned = sum(_bytes_of(leaf) for space in self.announced for leaf in leaf_spaces(space).values())
        for batch in batches:
            size, steps = size + batch.nbytes, steps + batch.num_steps
            needed = program + COPIES * max(size, steps * learned)
            if needed > self.limit:
                what = f"the first {steps:,} steps alone would take {_mib(needed)} in memory, of {_mib(self.limit)} allowed"
                raise BadConfig(what, where=where, fix=f"--streaming, which keeps them on disk; or a larger {OPTION}")
            yield batch


def _bytes_of(leaf: Any) -> int:
    return math.prod(leaf.shape or ()) * int(np.dtype(leaf.dtype or np.int64).itemsize)


def _resident() -> int | None:
    """Bytes of this process in memory; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _mib(size: int) -> str:
    return f"{-(-size // MiB):,} MiB"
