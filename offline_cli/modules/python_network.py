"""Networks from the user's code, `python:package.module:build`; also device, threads, seeds and precision of a network.

The name refers to a function of (observation_space, action_space, options), or to an RLModule class that receives the options
as `model_config`. The function returns an RLModule, or any module from observations (B, ...) to inputs of the action
distribution (B, `action_inputs(action_space)`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor, nn

from offline_cli.columns import Columns
from offline_cli.errors import BadConfig, MissingDevice
from offline_cli.modules.distributions import ActionHead, build_head
from offline_cli.modules.rl_module import RLModule
from offline_cli.spaces import Space

__all__ = [
    "OwnPolicy",
    "action_inputs",
    "autocast",
    "choose_device",
    "choose_threads",
    "fits_on",
    "made_by",
    "seed_generators",
    "use_threads",
]


WORK_OF_ONE_THREAD: Final = 2e8  # weights x batch rows


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`. Raises MissingDevice for `cuda` without a usable GPU."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        built = "this torch has no CUDA support" if torch.version.cuda is None else "torch finds no usable GPU"
        fix = "use --device cpu or --device auto, or install a GPU driver and the CUDA build of torch (pytorch.org)"
        raise MissingDevice(f"no CUDA device: {built}", where="--device cuda", fix=fix)
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def choose_threads(module: nn.Module, rows: int) -> int:
    """torch's number of threads, but one for light updates: on busy cores two take twenty times as long as one."""
    weights = sum(parameter.numel() for parameter in module.parameters())
    return 1 if weights * rows < WORK_OF_ONE_THREAD else torch.get_num_threads()


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


WANTED: Final = "a function (observation_space, action_space, options) that returns a torch module, or a subclass of RLModule"


def action_inputs(action_space: Space) -> int:
    """Number of distribution inputs per action: one for each choice, two for each number of a Box."""
    return build_head(action_space, action_scale="normalized").size


def made_by(found: Any, name: str, observation_space: Space, action_space: Any, options: Mapping[str, Any]) -> nn.Module:
    """Call the builder `found`, named `name`. Raises BadConfig if it is no builder or returns no module."""
    where, given = f"--network {name}", copy.deepcopy(dict(options))
    if isinstance(found, type) and issubclass(found, RLModule):
        try:
            inspect.signature(found).bind(None, None, model_config=None)
        except TypeError as err:
            fix = "define __init__(self, observation_space, action_space, *, model_config=None), and pass them to super()"
            what = f"{name} is {found.__name__}{inspect.signature(found)}, which does not take model_config"
            raise BadConfig(what, where=where, fix=fix) from err
        return found(observation_space, action_space, model_config=given)
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


class OwnPolicy(RLModule):
    """A policy around a module from observations (B, ...) to inputs of the action distribution (B, head.size)."""

    def __init__(self, observation_space: Space, action_space: Space, head: ActionHead, network: nn.Module) -> None:
        super().__init__(observation_space, action_space, head)
        self.network = network

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        outputs = self.network(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: outputs.float() if isinstance(outputs, Tensor) else outputs}
