"""What does training cost on a GPU? Rivals: a bare PyTorch loop over the same network and batches, and the same on the CPU.

`make gpu`, or `python -m benchmarks.gpu`, runs the tests marked `gpu` and these questions with the Python and torch that are
there, without a network, and writes one gpu.json; `python -m benchmarks.run --gpu gpu.json` takes it into docs/benchmarks.md.
Small packages that are missing come from wheels (`--wheels`, filled by `make gpu-wheels`), through a temporary folder. Tests
and each question are a process of their own with a time limit; the file is written anew after each.

Exit status: 0 all passed and was measured; 1 a test or question failed; 6 no GPU, or packages are missing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

    from benchmarks.harness import Rate, Row

REPOSITORY: Final = Path(__file__).resolve().parent.parent
LIMITS: Final = {"tests": 180.0, "small_update": 60.0, "large_update": 90.0, "frames": 60.0, "cold_start": 140.0}  # seconds
THERE: Final = ("torch", "numpy", "pyarrow", "matplotlib", "typer", "rich", "pytest")
SMALL: Final = {
    "gymnasium": "gymnasium",
    "cloudpickle": "cloudpickle",
    "farama_notifications": "farama-notifications",
    "typing_extensions": "typing-extensions",
    "fsspec": "fsspec",
    "safetensors": "safetensors",
    "msgpack": "msgpack",
    "lz4": "lz4",
    "orjson": "orjson",
    "tomli_w": "tomli-w",
    "jsonschema": "jsonschema",
    "jsonschema_specifications": "jsonschema-specifications",
    "referencing": "referencing",
    "rpds": "rpds-py",
    "attrs": "attrs",
}
"""Packages that come from wheels: by the name that is imported the name of the distribution. Those of THERE must be there."""
DONE, FAILED, NO_GPU = 0, 1, 6


# ---- questions, each in a process of its own ----


def small_update(count: int = 2000) -> Row:
    from benchmarks.harness import Floor

    floor = Floor(1 / 1.1, words="<= 1.1x the time of a bare PyTorch loop")
    question = "one update on the GPU, MLP 256x256, batch 1024, batches drawn"
    return _steps(question, (4,), (256, 256), batch=1024, held=100_000, precision="fp32", count=count, amount=1, floor=floor)


def large_update(count: int = 30) -> Row:
    question = "samples per second on the GPU, MLP 4 x 2048, batch 65,536, bf16"
    return _steps(question, (256,), (2048,) * 4, batch=65_536, held=1_000_000, precision="bf16", count=count, amount=65_536)


def frames(count: int = 100) -> Row:
    question = "samples per second on the GPU, CNN on 84x84x4 uint8 frames, batch 512"
    return _steps(question, (84, 84, 4), (512,), batch=512, held=20_000, precision="bf16", count=count, amount=512)


def cold_start() -> Row:
    from benchmarks.harness import paired
    from benchmarks.update_and_cold_start import seconds

    with tempfile.TemporaryDirectory() as folder:
        numbers, sample = itertools.count(), str(REPOSITORY / "sample_data" / "rllib_cartpole_expert")

        def rate(device: str) -> float:
            return 1 / seconds(f"{folder}/{next(numbers)}", sample, device=device)

        question = "train-bc --device cuda on 8,981 expert steps of CartPole, process start to a confirmed return of 450"
        return paired(
            question, lambda: rate("cuda"), lambda: rate("cpu"), unit="runs/s", rival_name="the same on the CPU", pairs=3
        )


QUESTIONS: Final[dict[str, Callable[[], Row]]] = {one.__name__: one for one in (small_update, large_update, frames, cold_start)}


def _steps(
    question: str,
    shape: tuple[int, ...],
    hidden: Sequence[int],
    *,
    batch: int,
    held: int,
    precision: str,
    count: int,
    amount: int,
    floor: Any = None,
) -> Row:
    """Batch drawn and update, ours and as one writes it down, both with the data on the device."""
    import numpy as np
    import torch
    from gymnasium import spaces
    from torch import nn

    from benchmarks.harness import NO_FLOOR, paired
    from offline_cli.modules.policy_modules import build_module
    from offline_cli.modules.python_network import autocast
    from offline_cli.training.learner import Update, cloning_learner
    from offline_cli.training.steps import Batches, Steps

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = len(shape) == 3
    space = spaces.Box(0, 255, shape, np.uint8) if images else spaces.Box(-np.inf, np.inf, shape, np.float32)
    obs = torch.randint(0, 256, (held, *shape), dtype=torch.uint8) if images else torch.randn(held, *shape)
    columns = {"obs": obs, "actions": torch.randint(0, 2, (held,))}

    module = build_module(space, spaces.Discrete(2), hidden=hidden, action_scale="env", seed=0).to(device).train()
    loader = Batches(Steps(columns), batch_size=batch, seed=0, device=device)
    update = Update(cloning_learner(module), loader.batch, lr=1e-3, precision=precision)
    numbers = itertools.count()

    def ours() -> None:
        number = next(numbers)
        loader.fill(number)
        update(number)

    bare = build_module(space, spaces.Discrete(2), hidden=hidden, action_scale="env", seed=0).to(device).train()
    there = {name: column.to(device) for name, column in columns.items()}
    optimizer = torch.optim.Adam(bare.parameters(), lr=1e-3, fused=device.type == "cuda")

    def rival() -> None:
        chosen = torch.randint(0, held, (batch,), device=device)
        with autocast(device, precision):
            logits = bare.forward_train({"obs": there["obs"][chosen]})["action_dist_inputs"]
            loss = nn.functional.cross_entropy(logits, there["actions"][chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    unit, rates = "updates/s" if amount == 1 else "samples/s", [_rate_of(step, count, amount, device) for step in (ours, rival)]
    return paired(question, *rates, unit=unit, rival_name="a bare PyTorch loop", floor=floor or NO_FLOOR, pairs=min(count, 7))


def _rate_of(step: Callable[[], None], count: int, amount: int, device: torch.device) -> Rate:
    """Units per second of `count` steps in a row, waiting for the device only before and after."""
    import torch

    from benchmarks.harness import timed

    def work() -> None:
        for _ in range(count):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return timed(work, count * amount)


# ---- all of them, and the tests ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    out = Path(os.environ.get("OUT") or REPOSITORY / "out")
    parser.add_argument("--out", type=Path, default=out, help="folder for gpu.json; default: $OUT, else out")
    parser.add_argument("--wheels", type=Path, default=REPOSITORY / ".gpu-wheels", help="folder of wheels of missing packages")
    parser.add_argument("--download", nargs="+", metavar="PYTHON", help="fill --wheels for these versions of Python, and end")
    parser.add_argument("--question", choices=QUESTIONS, help="print the row of this one alone")
    options = parser.parse_args(arguments)
    if options.download:
        return download(options.wheels, options.download)
    if options.question:
        print(json.dumps(QUESTIONS[options.question]().as_dict()))
        return DONE
    with tempfile.TemporaryDirectory(prefix="offline-cli-gpu-") as unpacked:
        lacking = unpack(options.wheels, unpacked)
        found = importlib.util.find_spec("torch") is not None and _card()
        if lacking or not found:
            why = f"{sys.executable} lacks {', '.join(lacking)}" if lacking else "torch finds no usable GPU"
            print(f"no GPU figures: {why}\nexit status {NO_GPU}", file=sys.stderr)
            return NO_GPU
        path = os.pathsep.join(filter(None, (str(REPOSITORY), unpacked, os.environ.get("PYTHONPATH"))))
        return measure({**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}, str(found), options.out)


def download(folder: Path, pythons: Sequence[str]) -> int:
    """Wheels of all small packages, for Linux on x86-64; pip's exit status."""
    platforms = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--dest", str(folder), "--constraint", str(REPOSITORY / ".ci" / "constraints.txt"), *SMALL.values()]
    command += [word for name in platforms for word in ("--platform", name)]
    return max(subprocess.run([*command, "--python-version", python], check=False).returncode for python in pythons)


def unpack(wheels: Path, folder: str) -> list[str]:
    """Put the small packages that are missing into `folder`; gives those that are missing and have no wheel."""
    absent = [name for name in (*THERE, *SMALL) if importlib.util.find_spec(name) is None]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder]
    pip += ["--find-links", str(wheels)]
    return [name for name in absent if name not in SMALL or subprocess.run([*pip, SMALL[name]], check=False).returncode]


def _card() -> str:
    """`NVIDIA H100 80GB HBM3, torch 2.13.0, CUDA 12.8`; empty without one."""
    code = "import torch; c = torch.cuda; "
    code += "print(f'{c.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}' if c.is_available() else '')"
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


def measure(environment: dict[str, str], card: str, out: Path) -> int:
    """Run every part, and keep what came of it in `out`/gpu.json."""
    out.mkdir(parents=True, exist_ok=True)
    about = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "processor": f"{os.cpu_count()} cores"}
    about |= {"load": "unknown", "busy": "", "python": sys.version.split()[0], "versions": card.partition(", ")[2], "gpu": card}
    found: dict[str, Any] = {"machine": about, "rows": [], "tests": "", "failed": {}}
    for name, limit in LIMITS.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        words = _pytest() if name == "tests" else ["-m", "benchmarks.gpu", "--question", name]
        said, error = _ended(words, limit, environment)
        if error:
            found["failed"][name] = error
            print(f"{name} failed: {error}", file=sys.stderr, flush=True)
        if name == "tests":
            found["tests"] = said
        else:
            found["rows"].append(_failed(name, error) if error else json.loads(said))
        (out / "gpu.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    status = FAILED if found["failed"] else DONE
    print(f"{out / 'gpu.json'}\nexit status {status}", file=sys.stderr)
    return status


def _pytest() -> list[str]:
    """Only the files that hold such tests are imported: the others need more packages."""
    files = [
        file for file in sorted((REPOSITORY / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text(encoding="utf-8")
    ]
    return ["-m", "pytest", "-q", "-m", "gpu", "--no-skips", "-p", "no:cacheprovider", *map(str, files)]


def _ended(words: list[str], limit: float, environment: dict[str, str]) -> tuple[str, str]:
    """The last line that Python prints to stdout, and what went wrong; what it starts ends with it."""
    command = {"stdout": subprocess.PIPE, "text": True, "env": environment, "cwd": REPOSITORY, "start_new_session": True}
    process = subprocess.Popen([sys.executable, *words], **command)  # type: ignore[call-overload]
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return "", f"no end within {limit:.0f} s"
    last = (said.strip().splitlines() or [""])[-1]
    return last, f"exit status {process.returncode}: {last}" if process.returncode else ""


def _failed(name: str, error: str) -> dict[str, Any]:
    from benchmarks.harness import missing

    return missing(name, error).as_dict()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
