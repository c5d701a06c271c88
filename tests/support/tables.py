"""Decision problems as tables, whose policies have exact values; recordings of policies, and runs of the same policies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from offline_cli import EpisodeBatch, train_bc, write_dataset

Array = NDArray[np.float64]
NEVER = -60.0  # log of a probability that is 0


@dataclass(frozen=True)
class Table:
    """S states, of which those from `living` on end the episode, and A actions."""

    moves: Array  # (S, A, S) probabilities
    rewards: Array  # (S, A, S)
    first: Array  # (S,) probabilities
    living: int

    @cached_property
    def _reached(self) -> Array:
        return self.moves.cumsum(-1)

    def q(self, policy: Array) -> Array:
        """(S, A) at gamma 1, by linear solve; `policy`: (S, A) probabilities."""
        gains, alive = (self.moves * self.rewards).sum(-1), slice(self.living)
        chances = np.einsum("sa,sat->st", policy, self.moves)[alive, alive]
        value = np.zeros(len(gains))
        value[alive] = np.linalg.solve(np.eye(self.living) - chances, (policy * gains).sum(1)[alive])
        found: Array = (gains + self.moves @ value) * (np.arange(len(gains)) < self.living)[:, None]
        return found

    def value(self, policy: Array) -> float:
        """Of the first state."""
        return float(self.first @ (policy * self.q(policy)).sum(1))

    def optimal(self) -> Array:
        """(S, A)."""
        policy = np.full(self.moves.shape[:2], 1 / self.moves.shape[1])
        while (better := np.eye(policy.shape[1])[(self.q(policy) + 1e-9 * policy).argmax(1)]).tolist() != policy.tolist():
            policy = better
        return policy

    def recorded(self, policy: Array, count: int, seed: int) -> EpisodeBatch:
        """Episodes of the policy, with `action_logp`."""
        chance, rows = np.random.default_rng(seed), []
        state, who = chance.choice(len(self.first), count, p=self.first), np.arange(count)
        while len(state):
            action = (chance.random((len(state), 1)) > policy[state].cumsum(1)).sum(1).clip(max=policy.shape[1] - 1)
            after = (chance.random((len(state), 1)) > self._reached[state, action]).sum(1).clip(max=len(self.first) - 1)
            rows.append(np.stack([who, state, action, after], 1))
            state, who = after[after < self.living], who[after < self.living]
        steps = np.concatenate(rows)
        who, state, action, after = steps[np.argsort(steps[:, 0], kind="stable")].T
        ends = np.cumsum(np.bincount(who))
        return EpisodeBatch(
            ids=tuple(f"{seed}-{number}" for number in range(count)),
            starts=np.append(0, ends),
            obs=np.insert(state, ends, after[ends - 1]),
            actions=action,
            rewards=self.rewards[state, action, after],
            terminated=np.ones(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            extra={"action_logp": np.log(policy[state, action]).astype(np.float32)},
            observation_space=spaces.Discrete(len(self.first)),
            action_space=spaces.Discrete(policy.shape[1]),
        )


def intensive_care() -> tuple[Table, Array]:
    """ICU-Sepsis, and the policy (S, A) of its clinicians; states that no patient was in have all doses."""
    sepsis = pytest.importorskip("icu_sepsis.envs.sepsis").ICUSepsisEnv()
    known = sepsis._expert_policy
    clinicians = np.where(known.sum(1, keepdims=True) == 0, 1 / known.shape[1], known)
    return Table(sepsis._tx_mat, sepsis._r_mat, sepsis._d_0, living=713), clinicians


def run_of(policy: Array, episodes: EpisodeBatch, folder: Path) -> Path:
    """A run folder whose policy (S, A) is that one; `episodes`: any of its spaces."""
    write_dataset(episodes.select(np.arange(2)), folder / "any")
    train_bc(folder / "any", folder / "run", hidden=[], updates=1)
    logits = np.log(policy, out=np.full_like(policy, NEVER), where=policy > 0).T
    weights: dict[str, Any] = {"network.0.weight": logits, "network.0.bias": np.zeros(len(logits))}
    path = folder / "run/policy.safetensors"
    assert weights.keys() == load_file(path).keys()
    save_file({name: np.ascontiguousarray(one, np.float32) for name, one in weights.items()}, path)
    return folder / "run"
