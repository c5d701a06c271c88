"""Networks from the user's code, `python:package.module:build`; also device, threads, seeds and precision of a network.

The name refers to a function of (observation_space, action_space, options), or to an RLlib-style RLModule class that receives
the options as `model_config`. The function returns an RLModule, or any module from observations (B, ...) to inputs of the
action distribution (B, `action_inputs(action_space)`). `check_policy` runs the policy on two rows of made-up observations
before any data is read.
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


WORK_PER_THREAD = 2e8  # weights x batch rows; below this, one thread is fastest, also on a busy machine
MAX_THREADS = 8


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`. Raises MissingDevice for `cuda` without a usable GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        built = "this torch has no CUDA support" if torch.version.cuda is None else "torch finds no usable GPU"
        fix = "use --device cpu or --device auto, or install a GPU driver and the CUDA build of torch (pytorch.org)"
        raise MissingDevice(f"no CUDA device: {built}", where="--device cuda", fix=fix)
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_threads(module: nn.Module, rows: int, processes: int = 1) -> int:
    """One thread for light updates, else one per available core, divided among the `processes` on this host."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    if weights * rows < WORK_PER_THREAD * processes:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")  # a container's limit, which torch ignores
    limit, period = quota.read_text().split()[:2] if quota.is_file() else ("max", "1")
    allowed = cores if limit == "max" else min(cores, int(limit) // int(period))
    return min(max(1, allowed // processes), MAX_THREADS)


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Context manager: run torch with `count` threads, then restore the previous count."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seed_generators(seed: int) -> None:
    """Like `torch.manual_seed`, which takes 1 ms to format the call stack if CUDA is not initialized."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch types only half of itself
        torch.cuda.manual_seed_all(seed)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The autocast context of a forward pass: bfloat16 for `bf16`, none for `fp32` and `auto`."""
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)  # each weight is used once a step


def fits_on(device: torch.device, nbytes: int) -> bool:
    """Whether data of `nbytes` fits on `device`: always on the CPU, else in half of the free GPU memory."""
    return device.type == "cpu" or nbytes < torch.cuda.mem_get_info(device)[0] // 2


ROWS: Final = 2  # of made-up observations
WANTED: Final = "a function (observation_space, action_space, options) that returns a torch module, or a subclass of RLModule"


def action_inputs(action_space: Space) -> int:
    """Number of distribution inputs per action: one for each choice, two for each number of a Box."""
    return build_head(action_space, action_scale="normalized").size


def made_by(found: Any, name: str, observation_space: Space, action_space: Any, options: Mapping[str, Any]) -> nn.Module:
    """Call the builder `found`, named `name`. Raises BadConfig if it is no builder or returns no module."""
    where, given = f"--network {name}", copy.deepcopy(dict(options))
    if isinstance(found, type) and issubclass(found, RLModule):
        return module_in_rllibs_manner(found, observation_space, action_space, given)
    try:
        inspect.signature(found).bind(None, None, None)
    except TypeError as err:  # not callable, or other parameters
        shown = f"{found.__name__}{inspect.signature(found)}" if inspect.isfunction(found) else type(found).__name__
        raise BadConfig(
            f"{name} is {shown}, which cannot be called with three arguments", where=where, fix=f"name {WANTED}"
        ) from err
    made = found(observation_space, action_space, given)
    if not isinstance(made, nn.Module):
        what = f"{name} returns a {type(made).__name__}, not a torch.nn.Module"
        raise BadConfig(what, where=where, fix=f"name {WANTED}")
    return made


def module_in_rllibs_manner(
    kind: type[RLModule], observation_space: Space, action_space: Space, model_config: Mapping[str, Any]
) -> RLModule:
    """Construct an RLlib-style module, which builds its networks in `setup()`, with the arguments that `__init__` accepts."""
    parameters = inspect.signature(kind).parameters
    given: dict[str, Any] = {"observation_space": observation_space, "action_space": action_space}
    given["model_config"] = dict(model_config)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return kind(**{name: value for name, value in given.items() if takes_any or name in parameters})


class OwnPolicy(RLModule):
    """A policy around a module from observations (B, ...) to inputs of the action distribution (B, head.size)."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, network: nn.Module) -> None:
        super().__init__(observation_space, action_space, head)
        self.network = network

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: outputs.float() if isinstance(outputs, Tensor) else outputs}


def own_policy(made: nn.Module, name: str, observation_space: Space, action_space: Space, head: ActionHead) -> RLModule:
    """Wrap a module from `made_by` as a policy with the action head `head`. Raises BadConfig for a module that names its own
    distribution, which cannot be trained here.
    """
    if not isinstance(made, RLModule):
        return OwnPolicy(observation_space, action_space, head, made)
    if made.names_distributions:
        fix = "remove get_inference_action_dist_cls and action_dist_cls: the action space determines the distribution"
        raise BadConfig(f"{type(made).__name__} names its own action distribution", where=f"--network {name}", fix=fix)
    made.action_head, made.in_rllibs_manner = head, False
    return made


def check_policy(policy: RLModule, name: str) -> RLModule:
    """Return the policy after one forward pass. Raises BadConfig if it cannot be trained: layers that do not fit the spaces,
    outputs that do not fit the distribution, no gradient, or a recurrent policy without `state_out` or `max_seq_len`. Errors
    raised inside the user's code pass through.
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
        if plugin_behind(err) is not None or "memory" in str(err).lower():  # raised by the user's code, or out of memory
            raise
        fix = "build its layers from the shapes of the observation_space argument"
        raise BadConfig(f"the network of {name} raised {err!r}", where=where, fix=fix) from err
    lacking = [key for key in wanted if key not in outputs]
    if lacking or not getattr(outputs[wanted[0]], "requires_grad", False):
        wrong = (
            f"returns {sorted(map(str, outputs))} without {lacking[0]!r}" if lacking else "returns outputs without a gradient"
        )
        fix = f"return {wanted} from forward, computed from its parameters, without detach() or torch.no_grad()"
        raise BadConfig(f"the network of {name} {wrong}", where=where, fix=fix)
    return policy


def _made_up(leaf: Space) -> Tensor:
    """ROWS values of a leaf space with the dtypes of training: float32 for wider floats, int64 for wider unsigned integers."""
    first = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
    values = np.broadcast_to(np.asarray(first, leaf.dtype), (ROWS, *(leaf.shape or ())))
    wider = {"f": np.float32, "u": np.int64}.get(values.dtype.kind, values.dtype)
    return torch.from_numpy(values.astype(values.dtype if values.dtype in (np.float16, np.uint8) else wider))
