"""Processes that train together, one rank each, as `torchrun` starts them; the only place that knows torch.distributed.

    torchrun --nproc-per-node 4 -m offline_cli train ...

Every rank reads the same data, draws the same order of steps and takes its share of each batch. One sum over ranks follows each
gradient, so that all of them make the same step, and rank 0 alone writes and prints. torch is not imported without ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from offline_cli.errors import BadConfig, ClusterLost

if TYPE_CHECKING:
    from torch import Tensor

ANSWER: Final = timedelta(minutes=30)  # of a rank that is alive: checks play in environments meanwhile


class RankFailed(Exception):
    """Work that was shared out has failed in another rank; `said`: the errors of those that know one, with their ranks."""

    def __init__(self, said: Sequence[str]) -> None:
        super().__init__("; ".join(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of one run, as one of them sees it. Methods that exchange something raise ClusterLost where one has ended,
    and are called by all of them.
    """

    rank: int = 0
    count: int = 1
    here: int = 1  # of the processes, those on this machine
    device: str = "cpu"  # where what is exchanged has to be: "cpu" with gloo, "cuda" with NCCL

    def share(self, rows: int) -> slice:
        """Which of so many rows, in order, are this rank's: each rank has as many, but for the last ones."""
        each = -(-rows // self.count)
        return slice(min(rows, self.rank * each), min(rows, (self.rank + 1) * each))

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor`, in place, as the sum over all ranks."""
        if self.count > 1:
            with self._together() as dist:
                dist.all_reduce(tensor)
        return tensor

    def summed(self, values: Sequence[float]) -> list[float]:
        """Numbers as sums over all ranks, in float64."""
        if self.count == 1:
            return list(values)
        import torch

        found: list[float] = self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()
        return found

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Give `tensors`, in place, the values that they have in the first rank."""
        if self.count > 1:
            with self._together() as dist:
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def texts(self, text: str) -> list[str]:
        """The text of each rank, in order."""
        found: list[Any] = [text] * self.count
        if self.count > 1:
            with self._together() as dist:
                dist.all_gather_object(found, text)
        return found

    def agree(self, failure: BaseException | None, said: str = "") -> None:
        """Every rank comes here with what has failed of its share, and what is known of it. Raises that; RankFailed where it is
        another one's."""
        failed = self.count > 1 and self.summed([float(failure is not None)])[0]
        texts = self.texts(said) if failed else []
        if failure is not None:
            raise failure
        if failed:
            raise RankFailed([f"process {rank}: {text}" for rank, text in enumerate(texts) if text])

    def wait(self) -> None:
        """Until every rank has come here."""
        self.summed([0.0])

    @contextmanager
    def _together(self) -> Iterator[Any]:
        """torch.distributed, whose errors become ClusterLost."""
        import torch.distributed as dist

        try:
            yield dist
        except (RuntimeError, ValueError) as err:
            what = f"another of the {self.count} processes that train together has ended, or does not answer"
            fix = "its own message says why; the same command with --resume continues, with any number of processes"
            raise ClusterLost(what, where=f"process {self.rank}: {str(err).splitlines()[0][:200]}", fix=fix) from err


ALONE: Final = Ranks()
_joined: list[Ranks] = []


def is_first() -> bool:
    """Whether this process is to print: all are that torchrun has not started, and of those that it has, the first."""
    return not _started() or os.environ["RANK"] == "0"


def _started() -> bool:
    set_by_torchrun = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in set_by_torchrun) and os.environ["WORLD_SIZE"] != "1"


def whole(total: Any) -> Any:
    """A sum over the rows of a batch, weighted by `weights`, as that of the whole batch: what each rank has of it is added up.

    For figures that a loss uses as constants, a mean say. Gradients do not pass, and need not: they are summed themselves.
    """
    return _joined[-1].sum_(total.detach().clone()) if _joined else total


@contextmanager
def joined(device: Callable[[], str]) -> Iterator[Ranks]:
    """Within it, this process is one of those that torchrun has started, if it has; `device`: "cpu" or "cuda", to train on.

    Raises BadConfig for environment variables that say no rank, ClusterLost where the others do not come.
    """
    if not _started():
        yield ALONE
        return
    try:
        rank, count, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    except ValueError as err:
        fix = "start with torchrun, or unset RANK and WORLD_SIZE"
        raise BadConfig(f"the environment names no rank: {err}", where="RANK, WORLD_SIZE", fix=fix) from err
    import torch

    kind = device()
    if kind == "cuda":
        torch.cuda.set_device(local)
    ranks = Ranks(rank, count, here, kind)
    with ranks._together() as dist:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=ANSWER)
    _joined.append(ranks)
    try:
        yield ranks
    finally:
        _joined.pop()
        dist.destroy_process_group()
