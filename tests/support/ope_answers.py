"""Off-policy estimates as SCOPE-RL 0.2.1 and d3rlpy 2.8.1 compute them: fixed questions, and a script that has them answer.

A question follows from a seed. The packages cannot be installed beside us, so the script runs in an environment of its own
(`PYTHON ope_answers.py FOLDER`) and knows numpy, torch and them alone; the answers are in tests/testdata/ope_answers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

NAMES = ("scope_rl", "continuous", "discrete")
Arrays = dict[str, Any]

# ---- SCOPE-RL's estimators: 40 episodes of 6 steps ----
EPISODES, STEPS, CHOICES, GAMMAS = 40, 6, 3, (0.9, 1.0)
ESTIMATORS = {  # ours: theirs
    "is": "TrajectoryWiseImportanceSampling",
    "wis": "SelfNormalizedTIS",
    "pdis": "PerDecisionImportanceSampling",
    "wpdis": "SelfNormalizedPDIS",
    "dm": "DirectMethod",
    "dr": "DoublyRobust",
    "wdr": "SelfNormalizedDR",
}


def recordings() -> Arrays:
    """240 steps by SCOPE-RL's names: actions, rewards, probabilities of both policies, and Q of each action."""
    rng = np.random.default_rng(0)
    played, wanted = (rng.dirichlet(np.full(CHOICES, 3.0), EPISODES * STEPS) for _ in range(2))
    action = (rng.random((EPISODES * STEPS, 1)) > played.cumsum(1)).sum(1)
    return {
        "action": action,
        "reward": rng.normal(0.5, 1, EPISODES * STEPS),
        "pscore": played[np.arange(len(action)), action],
        "evaluation_policy_action_dist": wanted,
        "state_action_value_prediction": rng.normal(1, 1, (EPISODES * STEPS, CHOICES)),
    }


def one_each(reward: float = 1.0, ratio: float | None = None) -> Arrays:
    """The same, where each episode has the return `reward`; `ratio`: of both policies' probabilities, the same everywhere."""
    found = recordings() | {"reward": np.tile(np.append(np.zeros(STEPS - 1), reward), EPISODES)}
    if ratio is None:
        return found
    wanted = np.full((EPISODES * STEPS, CHOICES), (1 - ratio / 2) / (CHOICES - 1))
    wanted[np.arange(EPISODES * STEPS), found["action"]] = ratio / 2
    return found | {"pscore": np.full(EPISODES * STEPS, 0.5), "evaluation_policy_action_dist": wanted}


def _scope_rl() -> Arrays:
    import scope_rl.ope.discrete as theirs

    found: Arrays = {}
    for name, kind in ESTIMATORS.items():
        for gamma in GAMMAS:
            estimator = getattr(theirs, kind)()
            found[f"{name} {gamma}"] = estimator.estimate_policy_value(STEPS, gamma=gamma, **recordings())
    wis = theirs.SelfNormalizedTIS()
    interval = wis.estimate_interval(STEPS, **one_each(), ci="bootstrap", n_bootstrap_samples=1000, random_state=0)
    found["wis of returns that are all 1"] = [interval["95.0% CI (lower)"], interval["95.0% CI (upper)"]]
    interval = theirs.TrajectoryWiseImportanceSampling().estimate_interval(STEPS, **one_each(), ci="bernstein", alpha=0.025)
    found["lower end of Bernstein's interval of weights at 2.5 %"] = interval["97.5% CI (lower)"]
    interval = wis.estimate_interval(STEPS, **one_each(-1.0, ratio=1.0), ci="bernstein")
    found["bernstein of returns that are all -1"] = [interval["95.0% CI (lower)"], interval["95.0% CI (upper)"]]
    found["wis of weights that are all 1e-12"] = wis.estimate_policy_value(STEPS, **one_each(ratio=0.01))
    return found


# ---- d3rlpy's fitted Q evaluation: one critic, whose copy follows at once ----
OBS, ACTIONS, HIDDEN, ROWS, GAMMA, LR, UPDATES = 3, 2, 8, 24, 0.97, 1e-3, 4


def fqe(name: str) -> tuple[dict[str, Arrays], Arrays]:
    """Weights of critic and target by layer, float32; and a batch by d3rlpy's columns with the policy's next actions.

    Discrete actions are 0 to ACTIONS; there all temporal differences are below 1, where d3rlpy's loss is half a square.
    """
    rng, discrete = np.random.default_rng(NAMES.index(name)), name == "discrete"
    ends = (OBS, ACTIONS + 1) if discrete else (OBS + ACTIONS, 1)
    sizes = [(HIDDEN, ends[0]), (HIDDEN, HIDDEN), (ends[1], HIDDEN)]
    weights = {}
    for network in ("critic", "target"):
        layers = [(rng.normal(size=size) / 2 / np.sqrt(size[1]), rng.normal(size=size[0]) / 8) for size in sizes]
        parts = {
            f"{number}.{kind}": layer[at] for number, layer in enumerate(layers) for at, kind in enumerate(("weight", "bias"))
        }
        weights[network] = {part: values.astype(np.float32) for part, values in parts.items()}
    acted, then = (
        rng.integers(0, ACTIONS + 1, (ROWS, 1)) if discrete else rng.uniform(-1, 1, (ROWS, ACTIONS)) for _ in range(2)
    )
    batch = {
        "observations": rng.normal(size=(ROWS, OBS)),
        "actions": acted,
        "rewards": rng.normal(0, 0.1, (ROWS, 1)),
        "next_observations": rng.normal(size=(ROWS, OBS)),
        "next_actions": then,
        "terminals": rng.random((ROWS, 1)) < 0.3,
    }
    return weights, {column: values.astype(np.float32) for column, values in batch.items()}


def lottery() -> Arrays:
    """A batch of one state: 10 is won once in 10 times, so that its value is 1."""
    batch = {column: np.zeros_like(values[:1].repeat(10, 0)) for column, values in fqe("discrete")[1].items()}
    return batch | {"rewards": np.array([[0]] * 9 + [[10]], np.float32), "terminals": np.ones((10, 1), np.float32)}


def _fqe(name: str) -> Arrays:
    import torch
    from d3rlpy.torch_utility import TorchMiniBatch

    def batch_of(columns: Arrays) -> Any:
        tensors = {column: torch.from_numpy(values) for column, values in columns.items()}
        more = {"returns_to_go": tensors["rewards"], "intervals": torch.ones(len(tensors["rewards"]), 1)}
        return TorchMiniBatch(**tensors, **more, device="cpu")

    batch, impl = batch_of(fqe(name)[1]), _impl(name)
    found: Arrays = {"next_values": impl.compute_target(batch, batch.next_actions)[:, 0].numpy()}
    found["loss"] = impl.compute_loss(batch, impl.compute_target(batch, batch.next_actions)).detach().numpy()
    for number in range(UPDATES):
        impl.inner_update(batch, number + 1)
    for part, parameter in _layers(impl._modules.q_funcs[0]).items():
        found[f"after {part}"] = parameter.detach().numpy().copy()
    if name == "discrete":
        batch, impl = batch_of(lottery()), _impl(name, lr=0.01)
        for number in range(1000):
            impl.inner_update(batch, number + 1)
        found["value of the lottery"] = impl.compute_target(batch, batch.next_actions)[0, 0].numpy()
    return found


def _impl(name: str, lr: float = LR) -> Any:
    """d3rlpy's implementation, with the question's weights, and a policy that takes the batch's next actions."""
    import torch
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.ope import FQE, DiscreteFQE, FQEConfig

    encoder, discrete = VectorEncoderFactory([HIDDEN, HIDDEN]), name == "discrete"
    config = FQEConfig(learning_rate=lr, gamma=GAMMA, encoder_factory=encoder, target_update_interval=1)
    batch = fqe(name)[1]
    actions = torch.from_numpy(batch["next_actions"])
    policy: Any = SimpleNamespace(impl=SimpleNamespace(predict_best_action=lambda rows: actions[: len(rows)]))
    made = (DiscreteFQE if discrete else FQE)(policy, config)
    made.create_impl((OBS,), ACTIONS + discrete)
    impl: Any = made.impl
    networks = {"critic": impl._modules.q_funcs[0], "target": impl._modules.targ_q_funcs[0]}
    with torch.no_grad():
        for network, module in networks.items():
            for part, parameter in _layers(module).items():
                parameter.copy_(torch.from_numpy(fqe(name)[0][network][part]))
    return impl


def _layers(module: Any) -> Arrays:
    layers = (module._encoder._layers[0], module._encoder._layers[2], module._fc)
    return {f"{number}.{kind}": getattr(one, kind) for number, one in enumerate(layers) for kind in ("weight", "bias")}


def answered(name: str) -> Arrays:
    """What the package computes, by name."""
    return _scope_rl() if name == "scope_rl" else _fqe(name)


if __name__ == "__main__":
    for which in NAMES:
        np.savez_compressed(Path(sys.argv[1]) / f"{which}.npz", **answered(which))
