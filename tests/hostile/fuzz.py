"""Fuzzes one reader: `python tests/hostile/fuzz.py TARGET --runs N`; refuses to go on after the first crash.

With atheris (`pip install atheris`: Linux, and the Pythons that it has wheels for) the inputs are led by coverage of our own
code; without it, or with `--engine plain`, mutations of the seeds are tried by chance alone, which any machine can do and any
run can do again. Every second input is edited by structure, the others byte by byte. A crash is an exception that
`fuzz_targets.check` does not take for an answer, an act that the canary hears, more than `--rss-mb` of memory, or more than
`--timeout` seconds for one input; its input is left in `--out`. The last line is one JSON object: inputs, seconds, inputs a
second, peak memory, answers by their codes.
"""

from __future__ import annotations

import argparse
import atexit
import codecs
import hashlib
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
MAX_INPUT = 1 << 13  # bytes, or twice the longest seed: longer ones find little and take long
MAX_POOL = 2000
REPORT_EVERY = 1000
PER_PROCESS = 50_000  # inputs; compiled-in coverage keeps some bytes of each, which must not be counted as a reader's
MAX_SAVED = 4096  # bytes of an input that is kept
MAX_KEPT = 60  # answers of one target
CODECS = ("ascii", "latin-1", "utf-8-sig", "utf-16", "raw-unicode-escape", "unicode-escape")  # which Python loads when asked
INSTRUMENTED = {"episodes": "offline_cli.episodes.codec"}  # where counting all of the coverage halves the speed
WARM_UP = 1000  # inputs before code may no longer be loaded
os.environ.setdefault("POLARS_MAX_THREADS", "1")  # small inputs, and no threads that wait for each other
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(REPOSITORY)]

from fuzz_mutations import MUTATORS, any_bytes  # noqa: E402  found by the line above; it loads nothing of ours


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", help="a reader, or all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs to try")
    parser.add_argument("--seconds", type=float, default=0, help="end after this time, whatever has been tried; 0: no bound")
    parser.add_argument("--engine", choices=("auto", "atheris", "plain"), default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rss-mb", type=int, default=512)
    parser.add_argument("--timeout", type=int, default=30, help="seconds that one input may take")
    parser.add_argument(
        "--keep-going", action="store_true", help="list crashes by their place instead of ending (plain engine)"
    )
    parser.add_argument("--save", action="store_true", help="run nothing: keep what the last run found, in tests/hostile/saved")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "out" / "fuzz", help="where inputs that crash, and new ones, are put"
    )
    return parser.parse_args()


class Watched:
    """The target, counted and watched."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        from canary import Canary
        from fuzz_seeds import seeds_of
        from fuzz_targets import HDF5, TARGETS, check

        self.name, self.check, self.target = name, check, TARGETS[name]
        self.mutate, self.keep_going = MUTATORS[name], arguments.keep_going
        self.runs = arguments.runs
        self.crashes, self.figures = arguments.out / "crashes", arguments.out / f"{name}.json"
        self.corpus = arguments.out / name
        for folder in (self.crashes, self.corpus):
            folder.mkdir(parents=True, exist_ok=True)
        self.seeds = seeds_of(name)
        self.max_input = max(MAX_INPUT, 2 * max(map(len, self.seeds)))
        self.answers: Counter[str] = Counter()
        self.inputs, self.started, self.slowest = 0, time.monotonic(), 0.0
        tempfile.tempdir = str(arguments.out)  # of readers that copy a file
        if name in HDF5:
            self.check(self.target, self.seeds[0])  # starts the process that HDF5 is read in, which is ours
        self.canary = Canary(writable=[arguments.out])
        self.canary.arm()
        self.warm = False
        self._warm_up()

    def _warm_up(self) -> None:
        """Whatever is loaded on first use, for data and for errors, is loaded now."""
        for name in CODECS:
            codecs.lookup(name)
        rng = random.Random(0)
        for seed in self.seeds:
            for data in (seed, *(self.mutated(seed, rng) for _ in range(WARM_UP // len(self.seeds)))):
                self(data)
        self.warm = True
        self.canary.armed = False  # until the first input: an engine loads code of its own

    def mutated(self, data: bytes, rng: random.Random) -> bytes:
        """`data` edited, by structure or byte by byte."""
        return (self.mutate if rng.random() < 0.5 else any_bytes)(data, rng)[: self.max_input]

    def __call__(self, data: bytes) -> None:
        self.inputs += 1
        if self.warm and not self.canary.strict:
            self.canary.arm(strict=True)
        before = time.process_time()
        try:
            self.answers[self.check(self.target, data) or "read"] += 1
        except BaseException as error:
            if not self._is_new(error):
                return
            self._keep(data)
            self.report()
            if not self.keep_going:
                raise
            self.canary.armed = False
            traceback.print_exception(error, limit=-6)
            self.canary.armed = True
            self.canary.deaths.clear()
        self.slowest = max(self.slowest, time.process_time() - before)
        if self.inputs % REPORT_EVERY == 0 or self.inputs == self.runs:
            self.report()
        if self.canary.deaths:
            self._keep(data)
            raise SystemExit(f"an act that reading never does: {self.canary.deaths}")

    def _is_new(self, error: BaseException) -> bool:
        """Whether no crash before had the class and place of this one."""
        self.canary.armed = False  # sources are read for their lines
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "offline_cli" in frame.filename]
        place = f"crash: {type(error).__name__} {frames[-1].name if frames else ''}"
        self.canary.armed = True
        self.answers[place] += 1
        return self.answers[place] == 1

    def _keep(self, data: bytes) -> None:
        self.canary.armed = False
        path = self.crashes / f"{self.name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"crash: {path}", file=sys.stderr, flush=True)
        self.canary.armed = True

    def report(self) -> None:
        """Write the figures so far; an engine in C may end the process without a word."""
        armed, self.canary.armed = self.canary.armed, False
        seconds = time.monotonic() - self.started
        found: dict[str, Any] = {
            "target": self.name,
            "inputs": self.inputs,
            "seconds": round(seconds, 1),
            "inputs_per_second": round(self.inputs / max(seconds, 1e-9)),
            "slowest_ms": round(1000 * self.slowest),
            "answers": dict(self.answers.most_common()),
        }
        self.figures.write_text(json.dumps(found))
        self.canary.armed = armed


def _plain(arguments: argparse.Namespace) -> None:
    watched = Watched(arguments.target, arguments)
    rng = random.Random(arguments.seed)
    pool = list(watched.seeds)
    while watched.inputs < arguments.runs and not 0 < arguments.seconds < time.monotonic() - watched.started:
        data = watched.mutated(rng.choice(pool), rng)
        could_be_read = watched.answers["read"]
        watched(data)
        if len(pool) < MAX_POOL and watched.answers["read"] > could_be_read:  # mutations of mutations
            pool.append(data)
        if watched.inputs % REPORT_EVERY == 0 and _peak_mib(resource.getrusage(resource.RUSAGE_SELF)) > arguments.rss_mb:
            raise SystemExit(f"more than {arguments.rss_mb} MiB")
    watched.report()


def _guided(arguments: argparse.Namespace, atheris: Any) -> None:
    with atheris.instrument_imports(include=[INSTRUMENTED.get(arguments.target, "offline_cli")], enable_loader_override=False):
        watched = Watched(arguments.target, arguments)
    for seed in watched.seeds:
        (watched.corpus / hashlib.sha256(seed).hexdigest()[:12]).write_bytes(seed)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return watched.mutated(data, rng)[:max_size]

    options = {
        "atheris_runs": arguments.runs,
        "max_total_time": math.ceil(arguments.seconds),
        "max_len": watched.max_input,
        "len_control": 0,
        "timeout": arguments.timeout,
        "rss_limit_mb": arguments.rss_mb,
        "seed": arguments.seed,
        "artifact_prefix": f"{watched.crashes}/{arguments.target}-",
        "print_final_stats": 0,
        "verbosity": 1,
    }
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # the engine's alarm would end a process that ends
    atheris.Setup(
        [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(watched.corpus)],
        watched,
        custom_mutator=mutator,
        internal_libfuzzer=True,
    )
    atheris.Fuzz()


def _peak_mib(usage: Any) -> int:
    return int(usage.ru_maxrss) >> (20 if sys.platform == "darwin" else 10)


def _work(arguments: argparse.Namespace) -> None:
    try:
        import atheris
    except ImportError:
        atheris = None
    if arguments.engine == "atheris" and atheris is None:
        raise SystemExit("atheris is not installed: pip install atheris")
    if atheris is None or arguments.engine == "plain":
        _plain(arguments)
    else:
        _guided(arguments, atheris)


def _supervise(name: str, arguments: argparse.Namespace) -> bool:
    """Fuzz one target in processes of its own, and say what came of it; whether it ended well."""
    words = [name if word == arguments.target else word for word in sys.argv[1:]]
    found: dict[str, Any] = {"target": name, "inputs": 0, "seconds": 0.0}
    answers: Counter[str] = Counter()
    slowest = peak = code = 0
    ends = arguments.seconds or math.inf
    while code == 0 and found["inputs"] < arguments.runs and found["seconds"] < ends:
        share = [
            "--runs",
            str(min(PER_PROCESS, arguments.runs - found["inputs"])),
            "--seed",
            str(arguments.seed + found["inputs"]),
        ]
        if arguments.seconds:
            share += ["--seconds", str(ends - found["seconds"])]
        part, mib, code = _process([*words, *share], arguments.out / f"{name}.json")
        found["inputs"] += part.get("inputs", 0)
        found["seconds"] = round(found["seconds"] + part.get("seconds", 0.0), 1)
        answers.update(part.get("answers", {}))
        slowest, peak = max(slowest, part.get("slowest_ms", 0)), max(peak, mib)
    found["inputs_per_second"] = round(found["inputs"] / max(found["seconds"], 1e-9))
    found |= {"slowest_ms": slowest, "answers": dict(answers.most_common()), "peak_mib": peak, "exit": code}
    print(json.dumps(found), flush=True)
    return code == 0


def _process(words: list[str], figures: Path) -> tuple[dict[str, Any], int, int]:
    """(what a worker found, MiB that it took at most, its exit code)"""
    figures.unlink(missing_ok=True)
    worker = subprocess.Popen([sys.executable, __file__, *words, "--worker"])
    _, status, usage = os.wait4(worker.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    found: dict[str, Any] = json.loads(figures.read_text()) if figures.is_file() else {}
    return found, _peak_mib(usage), code or (0 if found.get("inputs") else 1)


def _save(name: str, arguments: argparse.Namespace) -> None:
    """Keep, of the inputs that a run left, small ones that end in answers of their own, for `make test` to try again."""
    from fuzz_seeds import SAVED, seeds_of
    from fuzz_targets import TARGETS, answer

    target, folder = TARGETS[name], SAVED / name
    known = {answer(target, data) for data in seeds_of(name)}
    tried = arguments.out / name
    inputs = sorted((path.read_bytes() for path in tried.iterdir()), key=len) if tried.is_dir() else []
    for data in inputs:
        told = answer(target, data)
        if told not in known and len(data) <= MAX_SAVED and len(known) < MAX_KEPT:
            known.add(told)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


def main() -> None:
    """Fuzz the target of the command line, or all of them, one after the other."""
    arguments = _arguments()
    if arguments.worker:
        _work(arguments)
        return
    names = list(MUTATORS) if arguments.target == "all" else [arguments.target]
    if arguments.save:
        for name in names:
            _save(name, arguments)
        return
    ended_well = [_supervise(name, arguments) for name in names]
    sys.exit(0 if all(ended_well) else 1)


if __name__ == "__main__":
    main()
