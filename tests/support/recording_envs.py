"""Environments and policies whose episodes are known; a module of its own, so that runner processes find it too."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Count(gym.Env):
    """Counts its steps; length, 1 to 30, and the numbers beside the count follow from the seed. Infos at every other step."""

    def __init__(self, fail_at=None, shift=0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.fail_at, self.shift = fail_at, shift

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 31))
        self.t = 0
        return self._seen(), {"seed": seed}

    def _seen(self):
        return np.array([self.t + self.shift, self.length, self.np_random.normal()], np.float32)

    def step(self, action):
        assert self.t < self.length, "stepped after its end"
        if self.fail_at is not None and self.length == self.fail_at and self.t == 2:
            raise RuntimeError("the motor is on fire")
        self.t += 1
        over = self.t == self.length
        info = {"t": self.t, "over": over} if self.t % 2 else {}
        return (
            self._seen(),
            float(self.t) + 0.1 * int(action),
            over and self.length % 2 == 0,
            over and self.length % 2 == 1,
            info,
        )


class Aim(Count):
    """Box actions within [-2, 3]."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-2.0, 3.0, (2,), np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        return super().step(0)


class Nested(Count):
    """Dict observations with a Tuple inside, and a Tuple of actions."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            {"pair": spaces.Tuple([spaces.Discrete(31), spaces.Box(-9, 9, (2,), np.float64)]), "bits": spaces.MultiBinary(2)}
        )
        self.action_space = spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(0.0, np.inf, (1,), np.float32)])

    def _seen(self):
        return {"bits": np.array([self.t % 2, 1], np.int8), "pair": (self.t, self.np_random.uniform(size=2))}

    def step(self, action):
        assert self.action_space.contains(tuple(action)), action
        return super().step(action[0] - 5)


class Spoiled(Count):
    """One episode of 20 steps goes wrong, in one of the ways that environments do."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.length != 20 or self.t != 4:
            return observation, reward, terminated, truncated, info
        match self.how:
            case "exits":
                raise SystemExit(5)
            case "shape":
                return observation[:2], reward, terminated, truncated, info
            case "hangs":
                time.sleep(60)
            case "dies":
                os._exit(9)
        return observation, reward, terminated, truncated


class Bytes(Count):
    """Says uint8 and gives floats: whole numbers, or halves."""

    def __init__(self, step=1.0):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (3,), np.uint8)
        self.size = step

    def _seen(self):
        return np.full(3, self.t * self.size)


class Reusing(Count):
    """Fills the same arrays at every step."""

    def reset(self, **options):
        self.seen, self.info = np.zeros(3, np.float32), {"place": np.zeros(2), "nested": {"t": 0}}
        self.seen[:], _ = super().reset(**options)
        return self.seen, self._told()

    def _told(self):
        self.info["place"][:] = self.info["nested"]["t"] = self.t
        return self.info

    def step(self, action):
        self.seen[:], *others = super().step(action)
        return self.seen, *others[:3], self._told()


class Slow(Count):
    """Takes 2 ms for a step, so that there is time to interrupt it."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


class Noting(Count):
    """Keeps what it gave; made with a config, as RLlib has it."""

    given: ClassVar[list[Any]] = []

    def __init__(self, config=None):
        super().__init__()
        self.given.clear()

    def _seen(self):
        seen = super()._seen()
        self.given.append(seen)
        return seen


class Replay(Count):
    """Gives the observations of `episodes`, one episode after the other."""

    episodes: ClassVar[list[Any]] = []

    def __init__(self):
        super().__init__()
        self.played = -1

    def reset(self, *, seed=None, options=None):
        self.played += 1
        self.t, self.length = 0, len(self.episodes[self.played]) - 1
        return self.episodes[self.played][0], {}

    def _seen(self):
        return self.episodes[self.played][self.t]


class Odd(Count):
    """At the third step it gives what it is told to: reward, flags, a part of the observation; `last`: at its end."""

    def __init__(self, reward=1.0, terminated=False, truncated=False, seen=0.0, last=None, fail_after=None):
        super().__init__()
        self.reward = float(reward) if reward == "nan" else reward
        self.flags, self.seen, self.last = (terminated, truncated), float(seen), last
        self.fail_after, self.steps = fail_after, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.fail_after:
            raise RuntimeError("enough")
        observation, reward, terminated, truncated, _ = super().step(action)
        if self.last is not None and (terminated or truncated):
            observation[1] = float(self.last)
        if self.t != 3 or terminated or truncated:
            return observation, reward, terminated, truncated, {}
        observation[2] = self.seen
        return observation, self.reward, *self.flags, {}


class Telling(Count):
    """Its infos hold what can be stored, and at every step a thing that cannot."""

    def step(self, action):
        answer = super().step(action)
        return *answer[:4], {"t": self.t, "motor": {"heat": 0.5, "handle": self}, "engine": self}


class Pictures(Count):
    """Observations with an image beside a vector."""

    def __init__(self):
        super().__init__()
        image = spaces.Box(0, 255, (6, 5, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "count": spaces.Box(-np.inf, np.inf, (3,), np.float32)})

    def _seen(self):
        return {"image": np.full((6, 5, 3), self.t, np.uint8), "count": super()._seen()}


class Guarded(Odd):
    """Takes a secret and a label."""

    def __init__(self, api_key="", label="", fail_after=None):
        super().__init__(fail_after=fail_after)


gym.register("Guarded-v0", Guarded)
gym.register("Odd-v0", Odd)
gym.register("Telling-v0", Telling)
gym.register("Pictures-v0", Pictures)
gym.register("Count-v0", Count)
gym.register("Slow-v0", Slow)
gym.register("Aim-v0", Aim)
gym.register("Spoiled-v0", Spoiled)
gym.register("Bytes-v0", Bytes)
gym.register("Reusing-v0", Reusing)
gym.register("Nested-v0", Nested)


def make_count(**kwargs: Any) -> Count:
    """For `python:recording_envs:make_count`."""
    return Count(**kwargs)


class Doubled(gym.ObservationWrapper[Any, Any, Any]):
    """Twice every observation."""

    def observation(self, observation: Any) -> Any:
        return 2 * observation


class Keyed(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that is given a secret."""

    def __init__(self, env: Any, api_key: str) -> None:
        super().__init__(env)
        self.api_key = api_key


def one_at_a_time(observation: Any) -> int:
    """A policy of single observations."""
    return int(observation[0]) % 3


def batched(observations: Any) -> Any:
    """The same, of batches; with an extra model output."""
    choice = observations[:, 0].astype(int) % 3
    return {"actions": choice, "guess": np.stack([choice, -choice], 1).astype(np.float32)}


def by_chance(observation: Any, rng: Any, explore: bool) -> int:
    """Draws where it explores."""
    return int(rng.integers(3)) if explore else 0


def failing(observation: Any) -> int:
    """Raises at the third step of every episode of 20 steps."""
    if observation[0] == 2 and observation[1] == 20:
        raise ValueError("no idea")
    return 1


def leaving(observation: Any) -> int:
    """Calls exit in the third step of every episode of 20 steps."""
    if observation[0] == 2 and observation[1] == 20:
        raise SystemExit(1)
    return 1


def too_many(observations: Any) -> Any:
    """Two numbers where the space takes one choice."""
    return np.zeros((len(observations), 2), int)


class Teacher:
    """With `predict`, as models of stable-baselines3 have; a class is made."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def predict(self, observations: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Always 2, or anything."""
        import torch

        drawn = torch.randint(0, 3, (len(observations),)).numpy()
        return (np.full(len(observations), 2) if deterministic else drawn), None


class Viewer(Teacher):
    """Was trained with the images of Pictures turned, channels first, as stable-baselines3 turns them."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (3, 6, 5), np.uint8), "count": spaces.Box(-np.inf, np.inf, (3,), np.float32)}
    )

    def predict(self, observations: Any, deterministic: bool = True) -> tuple[Any, None]:
        """The count, of which the image is made."""
        return observations["image"][:, 0, 0, 0].astype(int) % 3, None


class Stranger(Teacher):
    """For an environment with other spaces."""

    action_space = spaces.Discrete(4)


def exits() -> Spoiled:
    """Calls exit in an episode of 20 steps."""
    return Spoiled("exits")
