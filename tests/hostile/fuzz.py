"""Fuzzes the readers: `python tests/hostile/fuzz.py TARGET|all --runs N`; ends at the first crash, with its input in `--out`.

Every second input is a seed edited by structure, the others one edited byte by byte; inputs that could be read are edited
further. A crash is an exception that `fuzz_targets.check` does not take for an answer, an act that the canary hears, more than
`--timeout` seconds for one input, or more than `--rss-mb` of memory. Each target ends with one JSON object.
"""

from __future__ import annotations

import argparse
import codecs
import faulthandler
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
MAX_INPUT = 1 << 13  # bytes, or twice the longest seed: longer ones find little and take long
MAX_POOL = 2000
WARM_UP = 1000  # inputs before code may no longer be loaded
CODECS = ("ascii", "latin-1", "utf-8-sig", "utf-16", "raw-unicode-escape", "unicode-escape")  # which Python loads when asked
os.environ.setdefault("POLARS_MAX_THREADS", "1")  # small inputs, and no threads that wait for each other
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(REPOSITORY)]

from fuzz_mutations import MUTATORS, any_bytes  # noqa: E402  found by the line above; it loads nothing of ours


def fuzz(name: str, arguments: argparse.Namespace) -> None:
    """Try so many inputs of one target. Raises what crashed."""
    import pyarrow as pa
    from canary import Canary
    from fuzz_seeds import seeds_of
    from fuzz_targets import TARGETS, check

    arguments.out.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(arguments.out)
    rng, pool, answers, started = random.Random(arguments.seed), list(seeds_of(name)), Counter[str](), time.monotonic()
    most = max(MAX_INPUT, 2 * max(map(len, pool)))
    for codec in CODECS:
        codecs.lookup(codec)
    pa.array([])  # looks for pandas at its first call
    canary = Canary(writable=[arguments.out])
    for number in range(arguments.runs):
        seed = pool[number % len(pool)] if number < WARM_UP else rng.choice(pool)
        data = (MUTATORS[name] if number % 2 else any_bytes)(seed, rng)[:most]
        faulthandler.dump_traceback_later(arguments.timeout, exit=True)
        canary.arm(strict=number >= WARM_UP)
        try:
            answer = check(TARGETS[name], data) or "read"
            if canary.deaths:
                raise SystemExit(f"an act that reading never does: {canary.deaths}")
        except BaseException:
            canary.armed = False
            crash = arguments.out / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}"
            crash.write_bytes(data)
            print(f"crash: {crash}", file=sys.stderr, flush=True)
            raise
        canary.armed = False
        answers[answer] += 1
        if answer == "read" and len(pool) < MAX_POOL:
            pool.append(data)
    faulthandler.cancel_dump_traceback_later()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
    seconds = round(time.monotonic() - started, 1)
    found = {"target": name, "inputs": arguments.runs, "seconds": seconds, "answers": dict(answers), "peak_mib": peak}
    print(json.dumps(found), flush=True)
    if peak > arguments.rss_mb:
        raise SystemExit(f"more than {arguments.rss_mb} MiB")


def main() -> None:
    """Fuzz the target of the command line, or all of them, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="a reader, or all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs to try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rss-mb", type=int, default=512)
    parser.add_argument("--timeout", type=int, default=30, help="seconds that one input may take")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "out" / "fuzz", help="where an input that crashes is put")
    arguments = parser.parse_args()
    if arguments.target != "all":
        fuzz(arguments.target, arguments)
        return
    commands = [[sys.executable, __file__, name, *sys.argv[2:]] for name in MUTATORS]
    sys.exit(max(bool(subprocess.run(command, check=False).returncode) for command in commands))


if __name__ == "__main__":
    main()
