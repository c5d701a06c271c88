"""How well do policies play that were learned from mixed recordings? Rivals: cloning, and d3rlpy on the same steps and updates.

Five seeds of each, as means with standard errors over the seeds. CartPole: half of the steps random, half an expert's, actions
drawn from the policy (`--explore`), 100 episodes. Pendulum: recorded from a policy that is half of the way. Hopper and
HalfCheetah: an expert's episodes and as many steps of random play. All learn with batches of 256 and two layers of 256.

The figure is how many standard errors of the difference ours is above the other; returns stand in the last words of a row.
"""

from __future__ import annotations

import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.harness import Missing, Row, missing
from benchmarks.recordings import REPOSITORY
from benchmarks.rival_process import Rival
from benchmarks.targets import NO_TARGET, Target
from offline_cli import evaluate, open_dataset, record, train

EXPERTS: Final = REPOSITORY / "sample_data" / "experts"
SEEDS: Final = int(os.environ.get("OFFLINE_CLI_BENCH_SEEDS", "5"))
BATCH, HIDDEN, LR = 256, (256, 256), 3e-4
ABOVE = Target(2.0, of="ours", words=">= 2 standard errors above")
NOT_BELOW = Target(-2.0, of="ours", words="not more than 2 standard errors below")
UNIT: Final = "standard errors"
MIXED: Final = 20_000  # steps of each kind in CartPole


def rows() -> list[Row]:
    return [
        *cartpole(),
        *compared("Pendulum-v1", 10_000, 100),
        *mujoco("Hopper-v5", "hopper"),
        *mujoco("HalfCheetah-v5", "halfcheetah"),
    ]


# ---- data ----


@contextmanager
def recorded(env: str, *parts: tuple[str, bool, int]) -> Iterator[list[Path]]:
    """Datasets of so many steps of each policy, with drawn actions or not."""
    with tempfile.TemporaryDirectory() as folder:
        made = [Path(folder, f"part{number}") for number in range(len(parts))]
        for number, (part, (policy, explore, steps)) in enumerate(zip(made, parts, strict=True)):
            record(env, part, policy=policy, explore=explore, steps=steps, seed=number, device="cpu")
        yield made


def expert(name: str) -> str:
    return f"sb3:{EXPERTS / name}.zip"


def stored(parts: Sequence[Path], file: Path) -> Path:
    """The steps of the datasets as arrays, for d3rlpy."""
    batches = [batch for part in parts for batch in open_dataset(part).batches()]
    flags = [batch.step_flags() for batch in batches]
    columns = {
        "obs": np.concatenate([batch.acted_obs() for batch in batches]),
        "actions": np.concatenate([batch.actions for batch in batches]),
        "rewards": np.concatenate([batch.rewards for batch in batches]).astype(np.float32),
        "terminateds": np.concatenate([one for one, _ in flags]).astype(np.float32),
        "truncateds": np.concatenate([other for _, other in flags]).astype(np.float32),
    }
    np.savez(file, allow_pickle=False, **columns)
    return file


# ---- scores ----


def learned(parts: Sequence[Path], folder: Path, algorithm: str, updates: int, **options: Any) -> list[Path]:
    """A run for each seed."""
    config = folder / "config.toml"
    config.write_text(f"hidden = {list(HIDDEN)}\nbatch_size = {BATCH}\nlr = {LR}\nthreads = 1\n")
    runs = [folder / f"{algorithm}-{seed}" for seed in range(SEEDS)]
    for seed, run in enumerate(runs):
        train(parts, run, algorithm=algorithm, config=config, updates=updates, seed=seed, set=options, device="cpu")
    return runs


def returns(runs: Sequence[Path], env: str, episodes: int, *, explore: bool = False) -> np.ndarray[Any, Any]:
    """(S,) the mean return of each."""
    how: dict[str, Any] = {"env": env, "episodes": episodes, "explore": explore, "seed": 10_000, "device": "cpu"}
    return np.array([evaluate(run, **how).return_mean for run in runs])


def row(question: str, ours: Any, other: Any, against: str, target: Target = NO_TARGET, more: str = "") -> Row:
    """How far `ours` (S,) is above `other` (S,)."""
    apart = float((ours.mean() - other.mean()) / max(math.hypot(error(ours), error(other)), 1e-9))
    words = f"{told(ours)} against {told(other)}, {len(ours)} seeds{more}"
    return Row(question, UNIT, apart, None, None, against, words, len(ours), target=target)


def told(found: Any) -> str:
    return f"{found.mean():,.1f} ± {error(found):,.1f}"


def error(found: Any) -> float:
    """The standard error of a mean over seeds."""
    return float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else 0.0


def cartpole() -> list[Row]:
    """2,000 updates; as they are drawn and greedily."""
    env, found, greedy = "CartPole-v1", {}, {}
    with recorded(env, ("random", False, MIXED), (expert("cartpole"), False, MIXED)) as parts:
        for name in ("bc", "marwil", "iql"):
            runs = learned(parts, parts[0].parent, name, 2_000)
            found[name] = returns(runs, env, 100, explore=True)
            greedy[name] = returns(runs, env, 100)
    asked = (("marwil", "bc", ABOVE), ("iql", "marwil", NOT_BELOW))
    return [
        row(
            f"CartPole, {ours} against {other}, 2,000 updates, drawn actions",
            found[ours],
            found[other],
            f"our {other}",
            target,
            f"; greedily {told(greedy[ours])} against {told(greedy[other])}",
        )
        for ours, other, target in asked
    ]


def compared(env: str, updates: int, episodes: int, parts: Any = None, target: Target = NOT_BELOW) -> list[Row]:
    """IQL and TD3+BC beside d3rlpy's."""
    asked = parts or ((expert("pendulum_medium"), True, 20_000),)
    found = []
    with recorded(env, *asked) as made:
        steps = stored(made, made[0].parent / "steps.npz")
        for name in ("iql", "td3-bc"):
            question = f"{env}, {name} against d3rlpy's, {updates:,} updates"
            given: dict[str, Any] = {"hidden": list(HIDDEN), "batch": BATCH, "lr": LR, "options": {}}
            given |= {"steps": str(steps), "env": env, "algorithm": name, "updates": updates, "episodes": episodes}
            try:
                with Rival("d3rlpy_scores.py", "d3rlpy", **given) as rival:
                    theirs = np.array([rival.amount() for _ in range(SEEDS)])
                    against = rival.versions
            except Missing as reason:
                found.append(missing(question, reason, unit=UNIT, rival_name="d3rlpy", target=target))
                continue
            ours = returns(learned(made, made[0].parent, name, updates), env, episodes)
            found.append(row(question, ours, theirs, against, target))
    return found


def mujoco(env: str, name: str) -> list[Row]:
    """The same of an expert's steps and random ones."""
    if importlib.util.find_spec("mujoco") is None:
        reason = "mujoco is not installed (pip install mujoco)"
        names = ("iql", "td3-bc")
        return [missing(f"{env}, {kind} against d3rlpy's", reason, unit=UNIT, rival_name="d3rlpy") for kind in names]
    return compared(env, 5_000, 10, ((expert(name), True, 20_000), ("random", False, 20_000)), NO_TARGET)
