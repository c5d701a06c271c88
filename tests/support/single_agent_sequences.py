"""Random sequences of operations that an episode of one agent is told, in which RLlib meets none of its known faults.

Spaces, infos and extra outputs vary; steps, getters, setters, slices, cuts, joins, states and arrays follow in any order.
"""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from rllib_answers import Trail, brief, brief_error

__all__ = ["played"]

SPACES: list[gym.Space[Any]] = [
    gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
    gym.spaces.Box(0, 255, (2, 3, 1), np.uint8),
    gym.spaces.Discrete(4),
    gym.spaces.MultiDiscrete([3, 2, 4]),
    gym.spaces.Dict({"a": gym.spaces.Box(-1.0, 1.0, (2,)), "b": gym.spaces.Discrete(3)}),
    gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0.0, 1.0, (1, 2))]),
]
OPERATIONS = ["add"] * 4 + ["get"] * 8 + ["set"] * 2 + ["cut", "slice", "concat", "state"]


class Sequence:
    """Operations on one episode of the class given; `trail` keeps what it answered."""

    def __init__(self, cls: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.obs_space, self.action_space = (copy.deepcopy(self.rng.choice(SPACES)) for _ in range(2))
        self.obs_space.seed(seed), self.action_space.seed(seed + 1)
        self.extras, self.infos = self.rng.random() < 0.6, self.rng.random() < 0.5
        self.arrays = self.rng.random() < 0.4  # whether it ends as arrays: RLlib's then go wrong in many ways
        self.episode = cls("e", observation_space=self.obs_space, action_space=self.action_space)
        self.before: Any = None  # the chunk that the episode continues
        self.trail: Trail = []

    def play(self, operations: int) -> Trail:
        self.episode.add_env_reset(self.obs_space.sample(), self.info())
        for _ in range(operations):
            name = self.rng.choice(OPERATIONS)
            getattr(self, name)()
            self.note(f"after {name}", whole(self.episode))
        if self.arrays:
            self.episode.to_numpy()
            self.note("arrays", whole(self.episode))
            for indices in (0, -1, slice(0, 2), [0, -1]):
                self.ask("observations", indices)
        return self.trail

    def note(self, call: str, answer: Any) -> None:
        self.trail.append((call, brief(answer)))

    def info(self) -> dict[str, Any] | None:
        return {"k": self.rng.randint(0, 9)} if self.infos else None

    def add(self) -> None:
        outputs = {"logits": np.full(2, self.rng.random(), np.float32), "logp": np.float32(self.rng.random())}
        self.episode.add_env_step(
            self.obs_space.sample(),
            self.action_space.sample(),
            self.rng.uniform(-2, 2),
            self.info(),
            extra_model_outputs=outputs if self.extras else None,
        )

    def get(self) -> None:
        index = self.rng.randint(-6, 6)
        self.ask(
            self.rng.choice(["observations", "actions", "rewards", "infos"]),
            self.rng.choice([None, index, [index, 0], slice(index, None), slice(0, max(index, 1))]),
            neg_index_as_lookback=self.rng.random() < 0.4,
            **({"fill": 0} if self.rng.random() < 0.3 and not isinstance(index, slice) else {}),
        )

    def ask(self, kind: str, indices: Any, **options: Any) -> None:
        if kind == "infos":
            options.pop("fill", None)
        call = f"get_{kind}({indices}, {options})"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # RLlib lets gymnasium warn of every cast
                self.note(call, getattr(self.episode, f"get_{kind}")(indices, **options))
        except (IndexError, KeyError) as err:  # callers may catch these
            self.trail.append((call, brief_error(err, kind_matters=True)))

    def set(self) -> None:
        if len(self.episode):
            self.episode.set_rewards(new_data=self.rng.uniform(-2, 2), at_indices=self.rng.randrange(len(self.episode)))
            self.episode.set_actions(new_data=self.action_space.sample(), at_indices=-1)

    def cut(self) -> None:
        self.before = copy.deepcopy(self.episode)
        self.episode = self.episode.cut(self.rng.randint(0, 4))

    def slice(self) -> None:
        bounds = sorted(self.rng.choices(range(len(self.episode) + 1), k=2))
        part = self.episode.slice(slice(*bounds), len_lookback_buffer=self.rng.choice([None, 0, 1]))
        self.note(f"slice({bounds})", whole(part))

    def concat(self) -> None:
        if self.before is not None and len(self.episode):
            self.before.concat_episode(self.episode)
            self.episode, self.before = self.before, None

    def state(self) -> None:
        if not any(not len(buffer) for buffer in self.episode.extra_model_outputs.values()):
            self.episode = type(self.episode).from_state(copy.deepcopy(self.episode.get_state()))


def whole(episode: Any) -> dict[str, Any]:
    """Everything an episode holds, clocks and spaces left out."""
    kinds = {name: getattr(episode, name) for name in ("observations", "actions", "rewards", "infos")}
    buffers = {**kinds, **{name: buffer for name, buffer in episode.extra_model_outputs.items() if buffer.len_incl_lookback()}}
    return {
        **{name: [buffer.data, buffer.lookback, buffer.finalized] for name, buffer in buffers.items()},
        "flags": [bool(episode.is_terminated), bool(episode.is_truncated), episode.is_numpy, episode.is_reset],
        "t": [episode.t_started, episode.t, len(episode), episode.env_steps(), episode.id_],
    }


def played(cls: Any, seed: int) -> Trail:
    """What an episode of this class answers in the sequence of this seed."""
    return Sequence(cls, seed).play(25)
