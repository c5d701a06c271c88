"""Processes that train together, one rank each, as `torchrun` starts them; the only place that knows torch.distributed.

    torchrun --nproc-per-node 4 -m offline_cli train ...

Every rank reads the same data, draws the same order of steps and takes its share of each batch. One sum over ranks follows each
gradient, so that all of them make the same step, and rank 0 alone writes and prints. What is said by sums stays exact: a number
that one rank has, and all others have as zero.

`current` is the group that a command has joined, `ALONE` where there is none; torch is not imported for that.
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

__all__ = ["ALONE", "RankFailed", "Ranks", "current", "is_first", "joined", "whole"]

STARTED: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # that torchrun sets in each process
ANSWER: Final = timedelta(minutes=30)  # of a rank that is alive: checks play in environments meanwhile


class RankFailed(Exception):
    """Work that was shared out has failed in another rank; `said`: the errors of those that know one, with their ranks."""

    def __init__(self, said: Sequence[str]) -> None:
        super().__init__("; ".join(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of one run, as one of them sees it."""

    rank: int = 0
    count: int = 1
    here: int = 1  # of the processes, those on this machine
    device: str = "cpu"  # where what is exchanged has to be: "cpu" with gloo, "cuda" with NCCL
    resume: str = "the same command with --resume"

    @property
    def is_first(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """Which of so many rows, in order, are this rank's: each rank has as many, but for the last ones."""
        each = -(-rows // self.count)
        return slice(min(rows, self.rank * each), min(rows, (self.rank + 1) * each))

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor`, in place, as the sum over all ranks, of which each calls this. Raises ClusterLost where one has ended."""
        if self.count > 1:
            import torch.distributed as dist

            try:
                dist.all_reduce(tensor)
            except RuntimeError as err:
                raise self.lost(err) from err
        return tensor

    def summed(self, values: Sequence[float]) -> list[float]:
        """Numbers as sums over all ranks, in float64."""
        if self.count == 1:
            return list(values)
        import torch

        found: list[float] = self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()
        return found

    def mean(self, value: float) -> float:
        """The mean of a number over all ranks."""
        return self.summed([value])[0] / self.count

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Give `tensors`, in place, the values that they have in the first rank. Raises ClusterLost where one has ended."""
        if self.count > 1:
            import torch.distributed as dist

            try:
                for tensor in tensors:
                    dist.broadcast(tensor, 0)
            except RuntimeError as err:
                raise self.lost(err) from err

    def texts(self, text: str) -> list[str]:
        """The text of each rank, in order; each calls this with its own."""
        if self.count == 1:
            return [text]
        import torch

        own = text.encode("utf-8", "surrogatepass")
        sizes = [int(size) for size in self.summed([len(own) if rank == self.rank else 0 for rank in range(self.count)])]
        letters = torch.zeros((self.count, max(sizes, default=0)), dtype=torch.int32, device=self.device)
        letters[self.rank, : len(own)] = torch.tensor(list(own), dtype=torch.int32)
        rows = self.sum_(letters).tolist()
        return [bytes(row[:size]).decode("utf-8", "surrogatepass") for row, size in zip(rows, sizes, strict=True)]

    def agree(self, failure: BaseException | None, said: str = "") -> None:
        """Every rank comes here with what has failed of its share, and what is known of it. Raises that; RankFailed where it is
        another one's."""
        if self.count == 1 or not self.summed([float(failure is not None)])[0]:
            if failure is not None:
                raise failure
            return
        texts = self.texts(said if failure is not None else "")
        if failure is not None:
            raise failure
        raise RankFailed([f"process {rank}: {text}" for rank, text in enumerate(texts) if text])

    def wait(self) -> None:
        """Until every rank has come here. Raises ClusterLost where one has ended before."""
        self.summed([0.0])

    def lost(self, err: BaseException) -> ClusterLost:
        """The error of a rank whose group has lost another one."""
        what = f"another of the {self.count} processes that train together has ended, or does not answer"
        fix = f"its own message says why; {self.resume} continues from the last checkpoint, with any number of processes"
        return ClusterLost(what, where=f"process {self.rank}: {str(err).splitlines()[0][:200]}", fix=fix)


ALONE: Final = Ranks()
_joined: list[Ranks] = []


def current() -> Ranks:
    """The group that this process has joined."""
    return _joined[-1] if _joined else ALONE


def is_first() -> bool:
    """Whether this process is to print: all are that torchrun has not started, and of those that it has, the first."""
    return not _started() or os.environ["RANK"] == "0"


def _started() -> bool:
    return all(name in os.environ for name in STARTED) and os.environ["WORLD_SIZE"] != "1"


def whole(total: Any) -> Any:
    """A sum over the rows of a batch, weighted by `weights`, as that of the whole batch: what each rank has of it is added up.

    For figures that a loss uses as constants, a mean say. Gradients do not pass, and need not: they are summed themselves.
    """
    ranks = current()
    return total if ranks.count == 1 else ranks.sum_(total.detach().clone())


@contextmanager
def joined(device: Callable[[], str]) -> Iterator[Ranks]:
    """Within it, this process is one of those that torchrun has started, if it has; `device`: "cpu" or "cuda", to train on.

    Raises BadConfig for environment variables that say no rank, ClusterLost where the others do not come.
    """
    if not _started():
        yield ALONE
        return
    import torch
    import torch.distributed as dist

    try:
        rank, count, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    except ValueError as err:
        fix = "start with torchrun, or unset RANK and WORLD_SIZE"
        raise BadConfig(f"the environment names no rank: {err}", where="RANK, WORLD_SIZE", fix=fix) from err
    kind = device()
    if kind == "cuda":
        torch.cuda.set_device(local)
    ranks = Ranks(rank, count, here, kind)
    try:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=ANSWER)
    except (RuntimeError, ValueError) as err:
        raise ranks.lost(err) from err
    _joined.append(ranks)
    try:
        yield ranks
    finally:
        _joined.pop()
        dist.destroy_process_group()
