"""Environments that do not come back: at one step or reset of one episode, or when they are made or closed."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 5  # steps of every episode


def hang(how, mark=None):
    """Never come back. `mark`: a file that is there from then on."""
    if mark is not None:
        Path(mark).touch()
    if how == "sleep":
        time.sleep(1e6)
    elif how == "loop":
        while True:
            pass
    elif how == "swallow":  # whatever is raised
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1e6)
    elif how == "left":  # a C call that lets Python run, and minds no signal
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    elif how == "held":  # a C call that holds the interpreter
        collections.deque(itertools.repeat(0), maxlen=0)
    else:
        raise AssertionError(how)


class Hangs(gym.Env):
    """LENGTH steps each. `how`: see `hang`; `at`: "step" (the third), "reset", "close", "init"; `seed`: of the episode."""

    def __init__(self, how="sleep", at="step", seed=None, mark=None, pace=0.0, nbytes=0, marks=False):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.how, self.at, self.hanging, self.mark, self.pace, self.nbytes = how, at, seed, mark, pace, nbytes
        if marks:
            Path(mark).touch()
        if at == "init":
            hang(how, mark)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.seed = seed
        if self.at == "reset" and self.seed == self.hanging:
            hang(self.how, self.mark)
        return self._seen(), self._info()

    def step(self, action):
        self.t += 1
        time.sleep(self.pace)
        if self.at == "step" and self.seed == self.hanging and self.t == 3:
            hang(self.how, self.mark)
        return self._seen(), 1.0, self.t == LENGTH, False, self._info()

    def close(self):
        if self.at == "close":
            hang(self.how, self.mark)

    def _seen(self):
        return np.array([self.t, 0], np.float32)

    def _info(self):
        return {"big": np.random.default_rng(self.t).random(self.nbytes // 8)} if self.nbytes else {}


gym.register("Hangs-v0", Hangs)


class Forks(Hangs):
    """Forks a process of its own at every reset, and tells it to end."""

    def reset(self, *, seed=None, options=None):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1e6,))
        child.start()
        time.sleep(0.1)
        child.terminate()
        child.join()
        print("ended with", child.exitcode)
        return super().reset(seed=seed)


gym.register("Forks-v0", Forks)


class OwnHangs(VectorEnv):
    """A vector class whose first reset hangs."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs, how="sleep"):
        self.num_envs, self.how, one = num_envs, how, Hangs()
        self.single_observation_space, self.single_action_space = one.observation_space, one.action_space
        self.observation_space = batch_space(one.observation_space, num_envs)
        self.action_space = batch_space(one.action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        hang(self.how)


gym.register("OwnHangs-v0", Hangs, vector_entry_point=OwnHangs)


class Told(Hangs):
    """Hangs in the third step of every episode once the variable HANGS says how, and where the mark is."""

    def __init__(self):
        how, _, mark = os.environ.get("HANGS", "").partition(" ")
        super().__init__(how, seed=None if how else -1, mark=mark)

    def reset(self, *, seed=None, options=None):
        seen = super().reset(seed=seed)
        self.seed = None
        return seen


gym.register("Told-v0", Told)
