"""A network that is code of the user's own, `python:package.module:build`: called with spaces and options, wrapped, tried.

What the name stands for gives the whole policy: a function of (observation_space, action_space, options), or an RLModule in
RLlib's manner, whose `model_config` the options are. A function gives an RLModule, or any module from observations (B, ...)
to inputs of the action's distribution (B, `action_inputs(action_space)`). It is tried with two rows of made-up observations,
before any data is read (`check_policy`).

`choose_device` and what follows say where a network runs: device, threads, generators, precision.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.episodes.episode_spaces import space_tree
from offline_cli.errors import BadConfig, MissingDevice, OfflineCliError
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.rl_module import RLModule, evaluating, initial_state, max_seq_len
from offline_cli.plugins import plugin_behind
from offline_cli.spaces import Space
from offline_cli.trees import map_leaves

__all__ = [
    "action_inputs",
    "autocast",
    "check_policy",
    "choose_device",
    "choose_threads",
    "fits_on",
    "made_by",
    "module_in_rllibs_manner",
    "own_policy",
    "seed_generators",
    "use_threads",
]


WORK_PER_THREAD = 2e8  # weights x rows of a batch below which one thread is fastest, and safe on a busy machine
MAX_THREADS = 8


def choose_device(name: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`. Raises MissingDevice for `cuda` without a usable GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        built = "this torch has no CUDA support" if torch.version.cuda is None else "torch finds no usable GPU"
        fix = "--device cpu, or --device auto; for a GPU: a driver, and the CUDA build of torch (pytorch.org)"
        raise MissingDevice(f"no CUDA device: {built}", where="--device cuda", fix=fix)
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_threads(module: nn.Module, rows: int, processes: int = 1) -> int:
    """One thread unless an update is heavy; then one per core that it may use, or its share of those of `processes` here."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    if weights * rows < WORK_PER_THREAD * processes:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")  # a container's, which torch does not look at
    limit, period = quota.read_text().split()[:2] if quota.is_file() else ("max", "1")
    allowed = cores if limit == "max" else min(cores, int(limit) // int(period))
    return min(max(1, allowed // processes), MAX_THREADS)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Run torch with `count` threads inside, with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_generators(seed: int) -> None:
    """As `torch.manual_seed`, which formats the caller's whole stack for a GPU that is not in use yet: 1 ms each time."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch types only half of itself
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The context for a forward pass: bfloat16 arithmetic for `bf16`, none for `fp32` and `auto`."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)  # each weight is used once a step


def fits_on(device: torch.device, nbytes: int) -> bool:
    """Whether data of `nbytes` may live on `device`: always on the CPU, else within half of what is free."""
    return device.type == "cpu" or nbytes < torch.cuda.mem_get_info(device)[0] // 2


ROWS: Final = 2  # of made-up observations
WANTED: Final = "a function of (observation_space, action_space, options) that returns a torch module, or a class of RLModule"


def action_inputs(action_space: Space) -> int:
    """How many numbers the distribution of one action takes: one for each choice, two for each number of a Box."""
    return build_head(action_space, action_scale="normalized").size


def made_by(found: Any, name: str, observation_space: Space, action_space: Any, options: Mapping[str, Any]) -> nn.Module:
    """What the object `found`, which is called `name`, makes. Raises BadConfig where it is no builder, or makes no module."""
    where, given = f"--network {name}", copy.deepcopy(dict(options))
    if isinstance(found, type) and issubclass(found, RLModule):
        return module_in_rllibs_manner(found, observation_space, action_space, given)
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as err:  # it cannot be called, or not so
        shown = f"{found.__name__}{inspect.signature(found)}" if inspect.isfunction(found) else type(found).__name__
        raise BadConfig(f"{name} is {shown}, and cannot be called so", where=where, fix=f"name {WANTED}") from err
    made = found(observation_space, action_space, given)
    if not isinstance(made, nn.Module):
        what = f"{name} returns an object of {type(made).__name__}, which is no torch.nn.Module"
        raise BadConfig(what, where=where, fix=WANTED)
    return made


def module_in_rllibs_manner(
    kind: type[RLModule], observation_space: Space, action_space: Space, model_config: Mapping[str, Any]
) -> RLModule:
    """An object of a class that makes its networks in `setup()`, with as much of these as its `__init__` takes."""
    parameters = inspect.signature(kind).parameters
    given: dict[str, Any] = {"observation_space": observation_space, "action_space": action_space}
    given["model_config"] = dict(model_config)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return kind(**{name: value for name, value in given.items() if takes_any or name in parameters})


class OwnPolicy(RLModule):
    """A module from observations (B, ...) to the inputs of the action's distribution (B, head.size), as a policy."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, network: nn.Module) -> None:
        super().__init__(observation_space, action_space, head)
        self.network = network

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: outputs.float() if isinstance(outputs, Tensor) else outputs}


def own_policy(made: nn.Module, name: str, observation_space: Space, action_space: Space, head: ActionHead) -> RLModule:
    """A module that `made_by` gave as a policy whose actions are those of `head`. Raises BadConfig for one with a distribution
    of its own, which is not trained here.
    """
    if not isinstance(made, RLModule):
        return OwnPolicy(observation_space, action_space, head, made)
    if made.names_distributions:
        fix = "leave get_inference_action_dist_cls and action_dist_cls out: the distribution that fits the space is taken"
        raise BadConfig(f"{type(made).__name__} names a distribution of its own", where=f"--network {name}", fix=fix)
    made.action_head, made.in_rllibs_manner = head, False
    return made


def check_policy(policy: RLModule, name: str) -> RLModule:
    """The policy. Raises BadConfig, naming what is wrong, for one that nothing can be learned with: layers that do not fit,
    other outputs than its distribution takes, no gradient, a memory without `state_out` or a length of sequences. An error that
    the user's code is on the way of passes, with its line.
    """
    where, wanted = f"--network {name}", [Columns.ACTION_DIST_INPUTS]
    batch: dict[str, Any] = {Columns.OBS: map_leaves(_made_up, space_tree(policy.observation_space))}
    try:
        if policy.is_stateful():
            max_seq_len(policy)
            wanted.append(Columns.STATE_OUT)
            state = map_leaves(lambda leaf: torch.from_numpy(np.repeat(leaf[None], ROWS, 0)), initial_state(policy))
            batch = {Columns.OBS: map_leaves(lambda leaf: leaf[:, None], batch[Columns.OBS]), Columns.STATE_IN: state}
        with evaluating(policy), torch.enable_grad():
            outputs = policy.forward_train(batch)
    except OfflineCliError as err:
        err.where = f"{where}, {err.where}"
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as err:
        if plugin_behind(err) is not None or "memory" in str(err).lower():  # the code's own, or the machine's
            raise
        fix = "make its layers for the shapes of the observation space, which it is given"
        raise BadConfig(f"the network of {name} raised {err!r}", where=where, fix=fix) from err
    lacking = [one for one in wanted if one not in outputs]
    if lacking or not getattr(outputs[wanted[0]], "requires_grad", False):
        wrong = (
            f"puts out {sorted(map(str, outputs))}, and no {lacking[0]!r}" if lacking else "puts out numbers without a gradient"
        )
        fix = f"have its forward give {wanted}, made of its parameters, without detach() or torch.no_grad()"
        raise BadConfig(f"the network of {name} {wrong}", where=where, fix=fix)
    return policy


def _made_up(leaf: Space) -> Tensor:
    """ROWS of values of a leaf space, as training gives them: float32 for wider floats, int64 for wider unsigned numbers."""
    first = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
    values = np.broadcast_to(np.asarray(first, leaf.dtype), (ROWS, *(leaf.shape or ())))
    wider = {"f": np.float32, "u": np.int64}.get(values.dtype.kind, values.dtype)
    return torch.from_numpy(values.astype(values.dtype if values.dtype in (np.float16, np.uint8) else wider))
