"""Makes 1,000 updates of an algorithm in float64, alone or as the ranks that torchrun starts; rank 0 writes what came out."""

from __future__ import annotations

import sys

import numpy as np
import torch
from gymnasium import spaces

from offline_cli.engines.ranks import joined
from offline_cli.modules.network import Mlp
from offline_cli.training.algorithms.algorithm import Task, own_algorithms
from offline_cli.training.learner import Learner
from offline_cli.training.loader import StepLoader
from offline_cli.training.memory_store import MemoryStore
from offline_cli.training.updates import Update

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


def main(name: str, out: str) -> None:
    kind = own_algorithms(name)[name]
    defaults = {key: one["default"] for key, one in kind.schema.get("properties", {}).items() if "default" in one}
    learner = Learner.of(kind({**defaults, **OPTIONS.get(name, {})}), Task(OBS, BOX, "env", Mlp({"hidden": [16, 16], "activation": "tanh"})))
    learner.whole.double()
    with joined(lambda: "cpu") as ranks:
        loader = StepLoader(MemoryStore(columns()), batch_size=BATCH, seed=3, device=torch.device("cpu"), ranks=ranks)
        loader.batch["weights"] = loader.batch["weights"].double()
        update = Update(learner, loader.batch, lr=1e-3, clip_norm=1.0, ranks=ranks)
        losses = []
        for number in range(UPDATES):
            loader.fill(number)
            update(number)
            losses.append(list(update.means(number + 1, 1).values()))
            update.forget_losses()
        if ranks.is_first:
            every = {key: tensor.detach().numpy() for key, tensor in learner.state().items()}
            np.savez(out, **every, losses=np.array([row for row in losses if len(row) == len(losses[-1])]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.Tensor.float = torch.Tensor.double  # encoders make float32 of what they get
    main(*sys.argv[1:])
