"""Train the experts in sample_data/experts/ again and write down how well they play; refuses to keep one that plays badly.

    python sample_data/train_experts.py [NAME ...]

Needs stable-baselines3 (`pip install 'offline-cli[sb3]'`). One thread, fixed seeds, four minutes for all that need no MuJoCo;
hopper and halfcheetah (`pip install mujoco`, half an hour each) are trained when they are named.

What is kept of a model is what `offline-cli record` needs, its actor: stable-baselines3 cannot load a model without optimizers
and critics, so the file has these untrained and as small as they get. Schedules, counters and buffers, whose pickles depend on
the versions of Python and stable-baselines3, are left out. What is pickled still is the name of the policy's class and the two
spaces.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

from offline_cli.recording.record import record

FOLDER = Path(__file__).resolve().parent / "experts"
SCORES = FOLDER / "scores.json"
EPISODES = 100
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")
KEPT = {  # everything else follows from these, or belongs to training
    "policy_class",
    "policy_kwargs",
    "observation_space",
    "action_space",
    "n_envs",
    "target_entropy",
    "use_sde",
    "verbose",
    "seed",
    "learning_rate",
    "gamma",
    "ent_coef",
    "n_steps",
    "batch_size",
    "buffer_size",
    "_vec_normalize_env",
}
LEAST = {
    "PPO": {"learning_rate": 0.0, "n_steps": 2, "batch_size": 2},
    "SAC": {"learning_rate": 0.0, "buffer_size": 1, "ent_coef": 0.0},
}


@dataclass(frozen=True)
class Recipe:
    """How an expert is made, and the mean return below which it is none."""

    env: str
    algorithm: str
    steps: int
    wanted: float
    copies: int
    hidden: tuple[int, ...] = (64, 64)
    options: dict[str, Any] = field(default_factory=dict)
    extra: str = ""  # a package that the environment needs


MUJOCO: dict[str, Any] = {"learning_rate": 1e-3, "learning_starts": 5000, "buffer_size": 200_000}
RECIPES = {
    "cartpole": Recipe(
        "CartPole-v1",
        "PPO",
        100_000,
        wanted=495,
        copies=8,
        options={
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "learning_rate": lambda left: 1e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
    ),
    "pendulum": Recipe(
        "Pendulum-v1",
        "SAC",
        15_000,
        wanted=-165,
        copies=1,
        options={"learning_rate": lambda left: 1e-3 * max(left, 0.1), "learning_starts": 500, "buffer_size": 20_000},
    ),
    "pendulum_medium": Recipe(  # half of the way, for recordings that can be improved on
        "Pendulum-v1",
        "SAC",
        5_000,
        wanted=-600,
        copies=1,
        options={"learning_rate": lambda left: 1e-3 * max(left, 0.1), "learning_starts": 500, "buffer_size": 20_000},
    ),
    "acrobot": Recipe(
        "Acrobot-v1",
        "PPO",
        400_000,
        wanted=-90,
        copies=16,
        options={
            "n_steps": 256,
            "batch_size": 256,
            "n_epochs": 4,
            "gae_lambda": 0.94,
            "learning_rate": lambda left: 1e-3 * left,
        },
    ),
    "hopper": Recipe("Hopper-v5", "SAC", 200_000, wanted=3000, copies=1, options=MUJOCO, extra="mujoco"),
    "halfcheetah": Recipe("HalfCheetah-v5", "SAC", 200_000, wanted=6000, copies=1, options=MUJOCO, extra="mujoco"),
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(RECIPES)
    if unknown:
        sys.exit(f"error: no expert is called {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    for name in names or [name for name, recipe in RECIPES.items() if not recipe.extra]:
        recipe, started = RECIPES[name], time.monotonic()
        path = FOLDER / f"{name}.zip"
        save(trained(recipe), recipe, path)
        print(f"{path}: {path.stat().st_size} bytes, {time.monotonic() - started:.0f} s")
        told = score(recipe, path)
        note(name, told)
        if told["return_mean"] < recipe.wanted:
            sys.exit(f"error: {name} has a mean return of {told['return_mean']:.1f}, {recipe.wanted:g} wanted")


def trained(recipe: Recipe, seed: int = 0) -> Any:
    """A model that has learned for the recipe's steps."""
    env = make_vec_env(recipe.env, recipe.copies, seed=seed)
    return new_model(recipe, env, recipe.hidden, seed=seed, **recipe.options).learn(recipe.steps)


def new_model(recipe: Recipe, env: Any, critic: tuple[int, ...], **options: Any) -> Any:
    layers = {"pi": list(recipe.hidden), ("qf" if recipe.algorithm == "SAC" else "vf"): list(critic)}
    maker = getattr(stable_baselines3, recipe.algorithm)
    return maker("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": layers}, **options)


def save(model: Any, recipe: Recipe, path: Path) -> None:
    """The actor of `model` in a model that is new and least otherwise."""
    small = new_model(recipe, gym.make(recipe.env), (), **LEAST[recipe.algorithm])
    weights = {name: tensor for name, tensor in model.policy.state_dict().items() if is_of_actor(name)}
    left = small.policy.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys, left
    assert not any(map(is_of_actor, left.missing_keys)), left
    small.save(path, exclude=sorted(set(vars(small)) - KEPT))


def is_of_actor(name: str) -> bool:
    """Whether a weight of that name has a part in choosing actions."""
    return not name.startswith(("critic", "value_net", "mlp_extractor.value_net"))


def score(recipe: Recipe, path: Path) -> dict[str, Any]:
    """How the saved expert plays, as `offline-cli record` plays it."""
    with tempfile.TemporaryDirectory() as folder:
        result = record(recipe.env, f"{folder}/D", policy=f"sb3:{path}", episodes=EPISODES, vectorize="sync", device="cpu")
    packages = [*PACKAGES, recipe.extra] if recipe.extra else PACKAGES
    return {
        "env": recipe.env,
        "algorithm": recipe.algorithm,
        "training_steps": recipe.steps,
        "episodes": result.episodes,
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "length_mean": result.length_mean,
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
    }


def note(name: str, told: dict[str, Any]) -> None:
    known = json.loads(SCORES.read_text(encoding="utf-8")) if SCORES.exists() else {}
    SCORES.write_text(json.dumps(dict(sorted({**known, name: told}.items())), indent=2) + "\n", encoding="utf-8")
    print(f"{name}: {told['return_mean']:.2f} ± {told['return_std']:.2f} in {told['episodes']} episodes")


if __name__ == "__main__":
    main(sys.argv[1:])
