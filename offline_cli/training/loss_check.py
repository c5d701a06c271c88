"""Whether what an algorithm's groups give as losses can be minimised: its author's mistakes, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import Tensor

from offline_cli.errors import BadConfig
from offline_cli.plugins import plugin_behind

__all__ = ["check_losses", "differentiating", "misnamed"]

SHORTAGE: Final = ("allocat", "out of memory")  # words of errors that are of the machine
WANTED = "it must be a scalar tensor with a gradient"


def check_losses(losses: Any, names: Collection[str], kind: str) -> None:
    """Raise BadConfig unless `losses`, of a group that announces `names`, are scalar tensors by these names, one of them with a
    gradient. `kind`: the algorithm's class.
    """
    if not isinstance(losses, Mapping):
        announced = ", ".join(map(repr, names))
        what = f"the loss of a group gives {_said(losses)}; it must be a dict with the losses {announced}"
        raise _wrong(kind, what, 'return {"name": loss} with a name for each loss')
    if losses.keys() != set(names):
        raise misnamed(losses, names, kind)
    for name, loss in losses.items():
        if not isinstance(loss, Tensor):
            raise _wrong(
                kind, f"loss {name!r} is {_said(loss)}; {WANTED}", "return it as torch made it, without float() or .item()"
            )
        if loss.shape != ():
            what = f"loss {name!r} has shape {tuple(loss.shape)}; {WANTED}"
            raise _wrong(kind, what, 'sum it over rows, weighted: torch.dot(rows, batch["weights"])')
    if not any(loss.requires_grad for loss in losses.values()):
        fix = "make it of what the group's modules give, without detach() or torch.no_grad()"
        raise _wrong(kind, f"loss {next(iter(losses))!r} has no gradient; {WANTED}", fix)


@contextmanager
def differentiating(kind: str) -> Iterator[None]:
    """Within it the gradients of an algorithm's losses are computed; BadConfig is raised where torch cannot.

    An error that code of a package raises on the way stays what it is: it tells the package and the line.
    """
    try:
        yield
    except RuntimeError as err:
        if plugin_behind(err) is not None or any(word in str(err).lower() for word in SHORTAGE):
            raise
        fix = "leave tensors that a gradient needs as they are: no in-place operation on them, in the loss or in a network"
        raise _wrong(kind, f"its losses have no gradient that can be computed: {err}", fix) from err


def misnamed(losses: Mapping[str, Any], names: Collection[str], kind: str) -> BadConfig:
    """The error for losses under other names than a group announces."""
    what = f"{kind} announces the losses {list(names)} of a group, and gives {list(losses)}"
    return BadConfig(what, where=f"algorithm {kind}", fix="give each loss under the name that its Group has for it")


def _wrong(kind: str, what: str, fix: str) -> BadConfig:
    return BadConfig(f"algorithm {kind}: {what}", where=f"algorithm {kind}", fix=fix)


def _said(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return f"a {type(value).__name__}{shape}"
