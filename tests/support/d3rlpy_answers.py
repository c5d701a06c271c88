"""IQL and TD3+BC as d3rlpy 2.8.1 computes them: fixed questions, and a script that has d3rlpy answer them.

A question is weights and a batch, which follow from a seed: `question`. An answer is losses, `next_values` (before gamma and
the reward), gradients, and the weights after four updates. d3rlpy cannot be installed beside us, so the script runs in an
environment of its own (`PYTHON d3rlpy_answers.py FOLDER`) and knows numpy, torch and d3rlpy alone; what it answered is in
tests/testdata/d3rlpy_answers. Weights have our names and layout: `NETWORK.NUMBER.weight` is of the NUMBERth linear layer; the
policy's last one has the means first, and the log standard deviations after them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

OBS, ACTIONS, HIDDEN, ROWS = 3, 2, 32, 24
GAMMA, TAU, LR, UPDATES, SEED = 0.97, 0.05, 1e-3, 4, 7
IQL = {"expectile": 0.8, "temperature": 2.5, "max_weight": 3.0}  # some weights are clipped
TD3_BC = {"alpha": 1.7, "policy_noise": 0.3, "noise_clip": 0.25}  # much noise is
NAMES = ("iql", "td3_bc")
Arrays = dict[str, Any]


def question(name: str) -> tuple[dict[str, Arrays], Arrays]:
    """Weights by network and name, float32; and a batch by d3rlpy's columns, (24, ...) float32."""
    rng = np.random.default_rng(NAMES.index(name))

    def network(inputs: int, outputs: int) -> Arrays:
        sizes = [(HIDDEN, inputs), (HIDDEN, HIDDEN), (outputs, HIDDEN)]
        layers = [(rng.normal(size=size) / np.sqrt(size[1]), rng.normal(size=size[0]) / 4) for size in sizes]
        named = {"weight": 0, "bias": 1}
        return {
            f"{number}.{kind}": pair[at].astype(np.float32) for number, pair in enumerate(layers) for kind, at in named.items()
        }

    weights = {"policy": network(OBS, 2 * ACTIONS)}
    weights |= {f"{kind}{number}": network(OBS + ACTIONS, 1) for kind in ("critic", "target_critic") for number in range(2)}
    weights["value" if name == "iql" else "target_policy"] = network(OBS, 1 if name == "iql" else 2 * ACTIONS)
    batch = {
        "observations": rng.normal(size=(ROWS, OBS)),
        "actions": rng.uniform(-1, 1, (ROWS, ACTIONS)),
        "rewards": rng.normal(size=(ROWS, 1)),
        "next_observations": rng.normal(size=(ROWS, OBS)),
        "terminals": rng.random((ROWS, 1)) < 0.3,
    }
    return weights, {column: values.astype(np.float32) for column, values in batch.items()}


def answered(name: str) -> Arrays:
    """What d3rlpy computes: numbers by name, and `gradient.NETWORK.NAME`, `after.NETWORK.NAME`."""
    import torch

    impl, batch = _impl(name), _batch(name)
    found: Arrays = {}
    torch.manual_seed(SEED)
    with torch.no_grad():
        found["next_values"] = impl.compute_target(batch)[:, 0].numpy()
    torch.manual_seed(SEED)
    critics = impl.compute_critic_grad(batch)
    parts = ("v_loss", "q_loss") if name == "iql" else ("critic_loss",)
    found |= {part: getattr(critics, part).detach().numpy() for part in parts}
    found |= _gradients(impl, lambda network: not network.endswith("policy"))
    policy = impl.compute_actor_grad(batch)
    parts = ("actor_loss",) if name == "iql" else ("actor_loss", "bc_loss")
    found |= {part: getattr(policy, part).detach().numpy() for part in parts}
    found |= _gradients(impl, lambda network: network == "policy")
    impl = _impl(name)
    torch.manual_seed(SEED)
    for number in range(UPDATES):
        impl.inner_update(batch, number + 1)
    for network, layers in _layers(impl).items():
        for layer, parameter in layers.items():
            found[f"after.{network}.{layer}"] = parameter.detach().numpy().copy()
    return found


def _batch(name: str) -> Any:
    import torch
    from d3rlpy.torch_utility import TorchMiniBatch

    columns = {column: torch.from_numpy(values) for column, values in question(name)[1].items()}
    unused = {"next_actions": columns["actions"], "returns_to_go": columns["rewards"]}
    return TorchMiniBatch(**columns, **unused, intervals=torch.ones(ROWS, 1), device="cpu")


def _impl(name: str) -> Any:
    """d3rlpy's implementation, with the question's weights."""
    import dataclasses

    import d3rlpy
    import torch
    from d3rlpy.models.builders import create_normal_policy

    encoder = d3rlpy.models.encoders.VectorEncoderFactory([HIDDEN, HIDDEN])
    encoders = {"actor_encoder_factory": encoder, "critic_encoder_factory": encoder}
    common = {"gamma": GAMMA, "tau": TAU, "actor_learning_rate": LR, "critic_learning_rate": LR, **encoders}
    if name == "iql":
        options = {"expectile": IQL["expectile"], "weight_temp": IQL["temperature"], "max_weight": IQL["max_weight"]}
        algorithm = d3rlpy.algos.IQLConfig(**common, **options, value_encoder_factory=encoder).create()
    else:
        noise = {"target_smoothing_sigma": TD3_BC["policy_noise"], "target_smoothing_clip": TD3_BC["noise_clip"]}
        algorithm = d3rlpy.algos.TD3PlusBCConfig(**common, **noise, alpha=TD3_BC["alpha"]).create()
    algorithm.create_impl((OBS,), ACTIONS)
    impl = algorithm.impl
    if name == "iql":  # a spread that depends on the state, as ours: d3rlpy's own class, which its IQL makes without
        limits = {"min_logstd": -5.0, "max_logstd": 2.0, "use_std_parameter": False}
        policy = create_normal_policy((OBS,), ACTIONS, encoder, device="cpu", enable_ddp=False, **limits)
        optimizer = algorithm.config.actor_optim_factory.create(policy.named_modules(), lr=LR, compiled=False)
        impl._modules = dataclasses.replace(impl._modules, policy=policy, actor_optim=optimizer)
    weights = question(name)[0]
    with torch.no_grad():
        for network, layers in _layers(impl).items():
            for layer, parameter in layers.items():
                values = weights[network][layer.split("/")[0]]
                rows = (
                    {"mean": slice(0, ACTIONS), "log_std": slice(ACTIONS, None)}[layer.split("/")[1]] if "/" in layer else ...
                )
                parameter.copy_(torch.from_numpy(values[rows]))
    return impl


def _layers(impl: Any) -> dict[str, dict[str, Any]]:
    """d3rlpy's parameters by our names; a policy's last layer is in parts: `2.weight/mean` and `2.weight/log_std`."""
    held = impl._modules
    networks = {"policy": held.policy}
    networks |= {f"critic{number}": one for number, one in enumerate(held.q_funcs)}
    networks |= {f"target_critic{number}": one for number, one in enumerate(held.targ_q_funcs)}
    networks |= {"value": held.value_func} if hasattr(held, "value_func") else {"target_policy": held.targ_policy}
    return {network: dict(_of_network(network, module)) for network, module in networks.items()}


def _of_network(network: str, module: Any) -> Iterator[tuple[str, Any]]:
    layers = [("0", module._encoder._layers[0]), ("1", module._encoder._layers[2])]
    if hasattr(module, "_mu"):
        ends = [("2", module._mu, "/mean"), ("2", module._logstd, "/log_std")]
    else:
        ends = [("2", module._fc, "/mean" if network.endswith("policy") else "")]
    for number, layer, part in [*((number, layer, "") for number, layer in layers), *ends]:
        yield f"{number}.weight{part}", layer.weight
        yield f"{number}.bias{part}", layer.bias


def _gradients(impl: Any, is_wanted: Callable[[str], bool]) -> Arrays:
    return {
        f"gradient.{network}.{layer}": parameter.grad.numpy().copy()
        for network, layers in _layers(impl).items()
        if is_wanted(network) and not network.startswith("target")
        for layer, parameter in layers.items()
    }


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for which in NAMES:
        np.savez_compressed(Path(sys.argv[1]) / f"{which}.npz", **answered(which))
