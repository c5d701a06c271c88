"""One process per slot: copies of an environment that play at the same time; a copy that died is an error, not a wait.

Observations travel through shared memory (gymnasium's utilities), the rest through pipes. A worker ends with its pipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory
from numpy.typing import NDArray

from offline_cli.engines.processes import WorkerContext, safely_started
from offline_cli.environments import open_environment
from offline_cli.episodes.episode_spaces import zero_rows
from offline_cli.errors import OfflineCliError
from offline_cli.import_path import guard_hint
from offline_cli.playing.slots import RAISED, Index, SlotFailure, Slots, owned
from offline_cli.policies.policy import row_writer, rows_of
from offline_cli.spaces import Space
from offline_cli.step_values import flag_of, reward_of
from offline_cli.trees import Tree, map_leaves

__all__ = ["AsyncSlots"]

Answer = tuple[float, bool, bool, Mapping[str, Any] | None]
GRACE = 5.0  # seconds for the environments to close


class AsyncSlots(Slots):
    """See Slots. Raises what `open_environment` raises in a worker."""

    def __init__(
        self, name: str, kwargs: Mapping[str, Any], wrappers: Sequence[str], count: int, observation_space: Space, padded: int
    ) -> None:
        context = WorkerContext()
        with safely_started():
            memory = create_shared_memory(observation_space, n=count, ctx=context)
        self._shared: Tree = read_from_shared_memory(observation_space, memory, n=count)
        super().__init__(count, zero_rows(observation_space, padded))
        self._pipes: list[Connection] = []
        self._workers: list[Any] = []
        try:
            with safely_started():
                for slot in range(count):
                    ours, theirs = context.Pipe()
                    args = (name, dict(kwargs), tuple(wrappers), slot, count, observation_space, memory, theirs)
                    self._pipes.append(ours)
                    worker = context.Process(target=_work, args=args, daemon=True, name=f"environment-{slot}")
                    worker.start()
                    self._workers.append(worker)
                    theirs.close()
            for slot in range(count):
                self._answer(slot, "making it")
        except BaseException:
            self.close()
            raise

    def begin(self, slots: Index, seeds: list[int]) -> None:
        """See Slots."""
        for slot, seed in zip(slots.tolist(), seeds, strict=True):
            self._send(slot, "reset", seed)
        for slot in slots.tolist():
            self.keep(slot, self._answer(slot, "reset")[3])
        self._take(slots)
        super().begin(slots, seeds)

    def step(self, actions: Tree, live: NDArray[np.bool_]) -> None:
        """See Slots."""
        slots = np.flatnonzero(live)
        for slot in slots.tolist():
            self._send(slot, "step", rows_of(actions, slot))
        for slot in slots.tolist():
            self.rewards[slot], self.terminated[slot], self.truncated[slot], info = self._answer(slot, "step")
            self.keep(slot, info)
        self._take(slots)
        super().step(actions, live)

    def _send(self, slot: int, doing: str, given: Any) -> None:
        with suppress(BrokenPipeError):  # it has died; `_answer` says so
            self._pipes[slot].send((doing, given))

    def _answer(self, slot: int, doing: str) -> Answer:
        try:
            found, value = self._pipes[slot].recv()
        except (EOFError, OSError) as err:  # the latter in the middle of a message
            self._workers[slot].join(GRACE)
            code = self._workers[slot].exitcode
            raise SlotFailure(slot, doing, f"the end of its process, with exit code {code}{guard_hint()}") from err
        if isinstance(value, OfflineCliError):
            raise value
        if not found:
            raise SlotFailure(slot, doing, str(value))
        answer: Answer = value
        return answer

    def _take(self, slots: Index) -> None:
        map_leaves(lambda target, leaf: target.__setitem__(slots, leaf[slots]), self.obs, self._shared)

    def close(self) -> None:
        """Have each worker close its copy; kill those that do not answer."""
        for pipe in self._pipes:
            pipe.close()
        until = time.monotonic() + GRACE
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
            worker.kill()
            worker.join()


def _work(
    name: str,
    kwargs: Mapping[str, Any],
    wrappers: Sequence[str],
    slot: int,
    count: int,
    space: Space,
    memory: Any,
    pipe: Connection,
) -> None:
    """A worker: one copy, which answers until the pipe ends."""
    write = row_writer(read_from_shared_memory(space, memory, n=count))
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            environment = open_environment(name, kwargs, wrappers)
        except OfflineCliError as err:
            pipe.send((False, err))
            return
        pipe.send((True, (0.0, False, False, None)))
        with environment:
            env = environment.singles(1)[0]
            while True:
                doing, given = pipe.recv()
                pipe.send(_done(env, doing, given, partial(write, slot)))


def _done(env: Any, doing: str, given: Any, write: Callable[[Tree], None]) -> tuple[bool, Any]:
    try:
        if doing == "reset":
            observation, info = env.reset(seed=given)
            reward, terminated, truncated = 0.0, False, False
        else:
            observation, reward, terminated, truncated, info = env.step(given)
        write(observation)
        return True, (reward_of(reward), flag_of(terminated), flag_of(truncated), owned(info) or None)
    except RAISED as err:  # it may not travel itself
        return False, repr(err)
