"""Plan: what determines the episodes of a recording or an evaluation, as one value that is sent to processes.

Episode i, counted from 0, is the i-th that begins. It is reset with `reset_seed(seed, i)`, and plays to its own end: "the first
N to finish" would favour short ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_cli.environments import EnvironmentSpec
from offline_cli.policies.play_spec import PlaySpec
from offline_cli.policies.seeds import Purpose, chance_key, reset_seed

__all__ = ["Plan"]

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that determines the episodes, and where they are played."""

    environment: EnvironmentSpec
    policies: tuple[str, ...] = ()  # one for all, or AGENT=POLICY for several agents
    explore: bool = False
    seed: int = 0
    purpose: Purpose = Purpose.RECORD
    round_: int = 0  # tells the checks of one run apart
    first: int = 0  # index of the first episode to play
    episodes: int | None = None  # how many to play from there; None: see steps
    steps: int | None = None  # play the fewest episodes that have so many
    infos: str = "plain"  # "all" | "plain" | "none": see `infos.py`
    pieces: PlaySpec = field(default_factory=PlaySpec)  # pipelines that the user gave
    device: str = "cpu"  # "cpu" | "cuda"
    vectorize: str = "sync"  # "sync" | "async"
    num_envs: int = 16  # copies of the environment, in each process that plays
    step_timeout: float | None = None  # seconds for a step of an `async` copy; None: any time
    threads: int | None = 1  # of torch; None: as many as there are
    plugins: tuple[str, ...] = ()  # packages whose code the policy's run folder may name
    trust_pickle: bool = False  # run what is pickled in the policy's checkpoint
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)  # for the files of policies

    @property
    def slots(self) -> int:
        """Copies that play side by side: no more than there are episodes."""
        return self.num_envs if self.episodes is None else max(1, min(self.num_envs, self.episodes))

    @property
    def chance_key(self) -> int:
        """What the random numbers of its policies follow from."""
        return chance_key(self.seed, self.purpose, self.round_)

    def reset_seed(self, episode: int) -> int:
        """What episode `episode` is reset with."""
        return reset_seed(self.seed, episode, self.purpose, self.round_)

    def ids(self, fingerprint: str, episodes: Index) -> tuple[str, ...]:
        """An id for each episode: 32 hex digits that follow from policy, environment, seed and index."""
        base = hashlib.blake2b(json.dumps(self.identity(fingerprint)).encode(), digest_size=16)
        return tuple(_extended(base, index) for index in episodes.tolist())

    def identity(self, fingerprint: str) -> dict[str, Any]:
        """What episodes follow from, by option; `fingerprint`: the policy's. Texts and numbers."""
        given = self.pieces.described()
        pieces = {f"--{name.replace('_', '-')}": given.get(name) for name in ("env_to_module", "module_to_env", "lookback")}
        spec = self.environment
        known = {"ENV": spec.id, "--env-kwargs": dict(spec.kwargs), "--wrapper": spec.wrappers, **pieces}
        texts = {name: json.dumps(value, sort_keys=True) for name, value in known.items()}
        return {**texts, "--policy": fingerprint, "--explore": self.explore, "--seed": self.seed, "--infos": self.infos}


def _extended(base: Any, index: int) -> str:
    digest = base.copy()
    digest.update(index.to_bytes(8, "little"))
    text: str = digest.hexdigest()
    return text
