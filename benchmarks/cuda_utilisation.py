"""How busy is the GPU while it trains, small network and large? Measured by nvidia-smi, beside the training."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks import cuda_large_update, cuda_small_update
from benchmarks.cuda_training import card, card_name, our_steps, vector_space
from benchmarks.harness import Missing, Row, missing

SECONDS = 6.0
SMI = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
QUESTION = "GPU utilisation while training, {}"


def rows() -> list[Row]:
    return [
        one("MLP 256x256, batch 1024", cuda_small_update.WIDTH, cuda_small_update.HIDDEN, 1024, "fp32"),
        one("MLP 4 x 2048, batch 65,536, bf16", cuda_large_update.WIDTH, cuda_large_update.HIDDEN, 65_536, "bf16"),
    ]


def one(what: str, width: int, hidden: tuple[int, ...], batch: int, precision: str) -> Row:
    question = QUESTION.format(what)
    try:
        device = card()
        if shutil.which(SMI[0]) is None:
            raise Missing("no nvidia-smi")
    except Missing as error:
        return missing(question, error, unit="%")
    step = our_steps(vector_space(width), hidden, batch=batch, held=4 * batch, precision=precision, device=device)
    busy = while_running(step, asked, device)
    return Row(question, "%", busy, 100.0, busy / 100, f"all of it ({card_name()})", "100 %", 1, 100.0)


def asked() -> float:
    """Per cent of the last interval in which some kernel ran."""
    return float(subprocess.run(SMI, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[0])


def while_running(
    step: Callable[[], object], ask: Callable[[], float], device: torch.device, seconds: float = SECONDS
) -> float:
    """The median of what `ask` says, a few times a second, while steps run in a thread of their own."""
    over = threading.Event()

    def work() -> None:
        count = 0
        while not over.is_set():
            step()
            count += 1
            if device.type == "cuda" and count % 64 == 0:
                torch.cuda.synchronize(device)  # so that the queue of launches stays short

    worker = ThreadPoolExecutor(1)
    working = worker.submit(work)
    try:
        time.sleep(seconds / 3)  # what came before is still in the first figures
        end, said = time.perf_counter() + seconds * 2 / 3, list[float]()
        while time.perf_counter() < end or not said:
            said.append(ask())
            time.sleep(min(0.2, seconds / 20))
    finally:
        over.set()
        worker.shutdown()
    working.result()  # raises what a step raised: figures of an idle device would say nothing
    return statistics.median(said)
