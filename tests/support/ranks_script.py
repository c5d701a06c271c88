"""Makes 1,000 updates in float64, alone or as the ranks that torchrun starts; rank 0 writes what came out."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from small_runs import _make_batch, filmed

from offline_cli.connectors import FrameStacking
from offline_cli.datasets.write_dataset import write_dataset
from offline_cli.engines.ranks import Ranks, joined
from offline_cli.modules.network import Mlp
from offline_cli.progress import no_progress
from offline_cli.training.algorithms.algorithm import Task, own_algorithms
from offline_cli.training.config import resolve_config
from offline_cli.training.learner import Learner, Update
from offline_cli.training.steps import Batches, Steps
from offline_cli.training.training_data import load_data
from offline_cli.trees import map_leaves

OBS, BOX = spaces.Box(-9.0, 9.0, (3,)), spaces.Box(-4.0, 4.0, (2,))
OPTIONS = {"td3-bc": {"policy_noise": 0.0}, "marwil": {"moving_average_sqd_adv_norm_update_rate": 0.1}}
ROWS, BATCH, UPDATES = 515, 100, 1000


def columns() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(ROWS, *shape, generator=g).double() for name, shape in (("obs", (3,)), ("new_obs", (3,)))}
    drawn |= {name: torch.randn(ROWS, generator=g).double() for name in ("rewards", "value_targets")}
    return {
        **drawn,
        "actions": torch.rand(ROWS, 2, generator=g).double() * 2 - 1,
        "terminateds": torch.rand(ROWS, generator=g) < 0.3,
        "is_followed": torch.rand(ROWS, generator=g) < 0.9,
        "next_actions": torch.rand(ROWS, 2, generator=g).double() * 2 - 1,
    }


def of_columns(name: str) -> tuple[Learner, Steps]:
    """An algorithm that learns from single steps, by its name, and the steps."""
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema.get("properties", {}).items() if "default" in one}
    learner = Learner.of(
        kind({**defaults, **OPTIONS.get(name, {})}), Task(OBS, BOX, "env", Mlp({"hidden": [16, 16], "activation": "tanh"}))
    )
    return learner, Steps(columns())


OWN = """
from torch import nn

def build(observation_space, action_space, options):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
"""
CONFIGS = {  # with a limit on the log deviation, because one that goes on falling makes differences of rounding grow
    "lstm": "hidden = [16]\nlog_std_min = 0.0\n[network]\nmemory = 'lstm'\nmemory_size = 8\nmax_seq_len = 7",
    "stacks": "hidden = [16]\nlog_std_min = 0.0",
    "own": "",
}


def of_data(kind: str) -> tuple[Learner, Steps]:
    """BC from a dataset: of sequences, of stacks of frames, or by a network of the user's own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("c.toml", CONFIGS[kind]), ("own.py", OWN)):
            Path(folder, name).write_text(text)
        batch = filmed((35, 20, 15)) if kind == "stacks" else _make_batch(continuous=True)
        write_dataset([batch], folder + "/D", action_scale="env")
        network = f"python:{folder}/own.py:build" if kind == "own" else None
        config = resolve_config({}, file=folder + "/c.toml", network=network)
        pieces: Any = None
        if kind == "stacks":
            pieces = lambda o, a: [FrameStacking(num_frames=2, add_channel_axis=True, as_learner_connector=True)]  # noqa: E731
        data = load_data(folder + "/D", config, pipeline=pieces, on_progress=no_progress)
    exact = {name: map_leaves(_exact, tree) for name, tree in data.train.columns.items()}
    return data.learner, Steps(exact)


def _exact(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def learned(name: str, ranks: Ranks) -> dict[str, np.ndarray]:
    """Every tensor, and the losses of each update."""
    torch.manual_seed(0)
    learner, store = of_data(name) if name in CONFIGS else of_columns(name)
    learner.whole.double()
    before: Any = {name: map_leaves(np.double, tree) for name, tree in learner.before_sequences().items()}
    size = BATCH if name != "stacks" else 15
    loader = Batches(store, batch_size=size, seed=3, device=torch.device("cpu"), ranks=ranks, before=before)
    loader.batch["weights"] = loader.batch["weights"].double()
    update = Update(learner, loader.batch, lr=1e-3, clip_norm=1.0, ranks=ranks)
    losses = []
    for number in range(UPDATES):
        loader.fill(number)
        update(number)
        losses.append(list(update.means(number + 1, 1).values()))
        update.forget_losses()
    every = {key: tensor.detach().numpy() for key, tensor in learner.state().items()}
    return {**every, "losses": np.array([row for row in losses if len(row) == len(losses[-1])])}


def main(out: str, *names: str) -> None:
    with joined(lambda: "cpu") as ranks:
        for name in names:
            found = learned(name, ranks)
            if ranks.rank == 0:
                np.savez(Path(out) / f"{name}.npz", **found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.Tensor.float = torch.Tensor.double  # encoders make float32 of what they get
    main(*sys.argv[1:])
