"""Runs of every kind of network, trained for thirty updates, and their exports; made once for a test module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from gymnasium import spaces

from offline_cli import export, write_dataset
from offline_cli.training.train import train_bc

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
DOUBLES = spaces.Box(-np.inf, np.inf, (5,), np.float64)
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
NESTED = spaces.Dict({"pad": spaces.Discrete(4, start=2), "arm": spaces.Tuple([VECTOR, spaces.MultiBinary(3)])})
CHOICES = spaces.Discrete(3)
PULLS = spaces.Box(np.array([-2.0, 0.5], np.float32), np.array([3.0, 1.5], np.float32))
FREE = spaces.Box(-np.inf, np.inf, (2,), np.float64)
SEVERAL = spaces.Dict(
    {"turn": spaces.MultiDiscrete([3, 2]), "gears": spaces.Box(0, 9, (2,), np.int16), "lamps": spaces.MultiBinary(2)}
)
FILTER = {"name": "mean_std_filter"}
STACK = {"name": "frame_stacking", "num_frames": 4}
FLAT = {"name": "flatten_observations"}
ONE_HOT = {"name": "one_hot"}
PREVIOUS = {"name": "prev_actions_prev_rewards", "n_prev_actions": 2, "n_prev_rewards": 3}
MEMORY = {"memory": "lstm", "memory_size": 16, "max_seq_len": 8}


@dataclass(frozen=True)
class Kind:
    """What a run learns from, through, and by."""

    observations: Any
    actions: Any
    pieces: tuple[dict[str, Any], ...] = ()
    network: dict[str, Any] = field(default_factory=dict)
    scale: str = "env"
    hidden: tuple[int, ...] = (32, 32)
    lr: float = 0.01


KINDS: dict[str, Kind] = {
    "mlp": Kind(VECTOR, CHOICES, network={"activation": "tanh"}),
    "filtered and stacked": Kind(DOUBLES, PULLS, (FILTER, STACK)),
    "lstm": Kind(VECTOR, PULLS, (FILTER,), MEMORY),
    "lstm alone": Kind(VECTOR, CHOICES, network=MEMORY),
    "gru stacked": Kind(VECTOR, CHOICES, (STACK,), {**MEMORY, "memory": "gru", "memory_layers": 2}),
    "cnn": Kind(IMAGE, PULLS, lr=1e-3),
    "nested": Kind(NESTED, SEVERAL),
    "flat": Kind(NESTED, FREE, (FLAT, FILTER)),
    "one hot": Kind(spaces.MultiDiscrete([3, 4]), CHOICES, (ONE_HOT,)),
    "previous": Kind(VECTOR, PULLS, (FILTER, PREVIOUS, FLAT)),
    "continuous": Kind(VECTOR, PULLS, scale="normalized"),
    "several": Kind(VECTOR, spaces.MultiDiscrete([3, 2]), network={"activation": "linear"}),
    "cnn to choices": Kind(IMAGE, CHOICES, network={"activation": "tanh"}, hidden=(24, 16), lr=1e-3),
}


@dataclass
class Exports:
    """Runs and ONNX files by the name of their kind, each made when it is first asked for."""

    folder: Path
    random_batch: Callable[..., Any]
    notes: dict[str, list[str]] = field(default_factory=dict)  # of the training of each run

    def run(self, name: str) -> Path:
        place = self.folder / name.replace(" ", "-")
        run = place / "run"
        if not run.exists():
            place.mkdir(parents=True)
            kind = KINDS[name]
            batch = self.random_batch(kind.observations, kind.actions, (30, 50, 40), seed=3)
            if kind.observations is IMAGE:  # noise alone looks the same to a small network: brightness says what to do
                obs, level = lit(batch.obs)
                acted = level[np.arange(batch.num_steps) + np.repeat(np.arange(len(batch)), batch.lengths)]
                told = (acted * 3).astype(np.int64) if kind.actions is CHOICES else batch.actions
                batch = replace(batch, obs=obs, actions=told)
            written(place / "data", batch, kind.scale)
            config, pieces = place / "config.toml", place / "pieces.toml"
            config.write_bytes(tomli_w.dumps({"network": {"name": "mlp", **kind.network}}).encode())
            pieces.write_bytes(tomli_w.dumps({"kind": "learner", "pieces": list(kind.pieces)}).encode())
            given = {"pipeline": str(pieces)} if kind.pieces else {}
            sizes = {"updates": 30, "lr": kind.lr, "batch_size": 32, "hidden": kind.hidden, "device": "cpu"}
            result = train_bc(str(place / "data"), run, config=str(config), **sizes, **given)
            self.notes[name] = list(result.notes)
        return run

    def onnx(self, name: str) -> Path:
        file = self.folder / name.replace(" ", "-") / "policy.onnx"
        if not file.exists():
            export(self.run(name), file, to="onnx")
        return file


def lit(images: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images (N, H, W, C) darkened each to another level, and these levels (N,) in [0, 1)."""
    level = np.random.default_rng(len(images)).random(len(images))
    return (images * level[:, None, None, None]).astype(np.uint8), level


def written(folder: Path, batch: Any, scale: str) -> None:
    """The batch as a dataset of ours."""
    known = {"observation_space": batch.observation_space, "action_space": batch.action_space, "action_scale": scale}
    write_dataset(batch, folder, format="episodes", **known)
