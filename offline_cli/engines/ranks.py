"""Data-parallel training under `torchrun`, one process per rank; the only module that uses torch.distributed.

    torchrun --nproc-per-node 4 -m offline_cli train ...

Every rank reads the same data, draws the same order of steps and takes its share of each batch. Gradients are summed over
ranks, so that all make the same update; only rank 0 writes and prints. Without ranks torch is not imported.
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

ANSWER: Final = timedelta(minutes=30)  # timeout of collectives: other ranks wait while rank 0 evaluates in environments


class RankFailed(Exception):
    """Work failed in another rank; `said`: the errors of the failed ranks, with their numbers."""

    def __init__(self, said: Sequence[str]) -> None:
        super().__init__("; ".join(said))
        self.said = said


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a run, from the view of one of them. All ranks must call the collective methods, which raise ClusterLost if
    a rank has ended.
    """

    rank: int = 0
    count: int = 1
    device: str = "cpu"  # of exchanged tensors: "cpu" with gloo, "cuda" with NCCL

    def share(self, rows: int) -> slice:
        """This rank's slice of `rows` rows; all ranks get equally many, except the last ones."""
        each = -(-rows // self.count)
        return slice(min(rows, self.rank * each), min(rows, (self.rank + 1) * each))

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum `tensor` over all ranks, in place."""
        if self.count > 1:
            with self._together() as dist:
                dist.all_reduce(tensor)
        return tensor

    def summed(self, values: Sequence[float]) -> list[float]:
        """Sums of numbers over all ranks, in float64."""
        if self.count == 1:
            return list(values)
        import torch

        found: list[float] = self.sum_(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist()
        return found

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast `tensors` from rank 0, in place."""
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
        """Collective: report this rank's `failure`, described by `said`. Raises it, or RankFailed if another rank failed."""
        failed = self.count > 1 and self.summed([float(failure is not None)])[0]
        texts = self.texts(said) if failed else []
        if failure is not None:
            raise failure
        if failed:
            raise RankFailed([f"process {rank}: {text}" for rank, text in enumerate(texts) if text])

    def wait(self) -> None:
        """Barrier: wait for all ranks."""
        self.summed([0.0])

    @contextmanager
    def _together(self) -> Iterator[Any]:
        """Yield torch.distributed; its errors become ClusterLost."""
        import torch.distributed as dist

        try:
            yield dist
        except (RuntimeError, ValueError) as err:
            what = f"another of the {self.count} training processes has ended, or does not answer"
            fix = "see its own message; then continue with --resume, with any number of processes"
            raise ClusterLost(what, where=f"process {self.rank}: {str(err).splitlines()[0][:200]}", fix=fix) from err


ALONE: Final = Ranks()
_joined: list[Ranks] = []


def is_first() -> bool:
    """Whether this process may print: rank 0, or any process that torchrun did not start."""
    return not _started() or os.environ["RANK"] == "0"


def _started() -> bool:
    set_by_torchrun = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in set_by_torchrun) and os.environ["WORLD_SIZE"] != "1"


def whole(total: Any) -> Any:
    """The weighted sum over the whole batch, from each rank's sum over its rows.

    For values that a loss uses as constants, such as a mean. It does not pass gradients, which are summed separately.
    """
    return _joined[-1].sum_(total.detach().clone()) if _joined else total


@contextmanager
def joined(device: Callable[[], str]) -> Iterator[Ranks]:
    """Join the process group for the block if torchrun started this process; `device` returns "cpu" or "cuda", to train on.

    Raises BadConfig for invalid rank variables in the environment, ClusterLost if the other ranks do not join.
    """
    if not _started():
        yield ALONE
        return
    try:
        rank, count, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as err:
        fix = "start with torchrun, or unset RANK and WORLD_SIZE"
        raise BadConfig(f"invalid rank variables in the environment: {err}", where="RANK, WORLD_SIZE", fix=fix) from err
    import torch

    kind = device()
    if kind == "cuda":
        torch.cuda.set_device(local)
    ranks = Ranks(rank, count, kind)
    with ranks._together() as dist:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=ANSWER)
    _joined.append(ranks)
    try:
        yield ranks
    finally:
        _joined.pop()
        dist.destroy_process_group()
