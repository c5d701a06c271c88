"""`python -m benchmarks.measured_call COMMAND JSON`: one call of the library in a fresh process, its seconds and peak memory.

The clock starts after the imports. Prints one JSON object: seconds, peak (bytes), result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["measured"]

WITH_TORCH = ("train_bc", "evaluate")
STATUS = Path("/proc/self/status")


def measured(command: str, *positional: Any, **options: Any) -> dict[str, Any]:
    """What such a process prints about `offline_cli.COMMAND(*positional, **options)`."""
    call = [sys.executable, "-m", "benchmarks.measured_call", command, json.dumps([positional, options])]
    folder = Path(__file__).resolve().parent.parent
    done = subprocess.run(call, stdout=subprocess.PIPE, check=True, text=True, cwd=folder)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def peak() -> int:
    """The most memory, in bytes, that this process has had; of the program alone, not of what started it, where Linux says."""
    if STATUS.is_file():
        (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(command: str, arguments: str) -> None:
    import offline_cli

    if command in WITH_TORCH:
        import torch  # noqa: F401  # before the clock starts

    positional, options = json.loads(arguments)
    call = getattr(offline_cli, command)
    start = time.perf_counter()
    result = call(*positional, **options)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak": peak(), "result": result.as_dict()}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
