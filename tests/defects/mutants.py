"""Mutates one operator at a time in the heart of the package, and says which share of the mutants the tests catch.

    python tests/defects/mutants.py [--sample 200] [--seed 0] [--hours 3] [--tests PATH...]

The unmarked tests run once with coverage, which notes for each line the tests that reach it. Each mutant of a seeded sample
then runs against those alone, the quickest first, up to the first failure. Exit status 1 where less than 85 % are caught.

Why no library: `mutmut` 3 selects the tests by function, mutates all that it is pointed at (no sample, no seed) and runs the
tests in forks of one process, which torch's threads and our process pools do not survive; `cosmic-ray` runs one command, all
tests, for each mutant. What is left, mutants by `ast` and lines by `coverage`, is short.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from run import REPOSITORY, copy_to

HEART: Final = (
    "offline_cli/episodes/codec/*.py",
    "offline_cli/converting/stitching.py",
    "offline_cli/converting/open_episode.py",
    "offline_cli/datasets/writer.py",
    "offline_cli/datasets/shards.py",
    "offline_cli/training/steps.py",
    "offline_cli/training/algorithms/*.py",
)
LEAST: Final = 0.85
WORKERS: Final = 2
UNMARKED: Final = ("-q", "-p", "no:cacheprovider", "--timeout", "120", "-m", "not integration and not nightly and not gpu")
PAIRS: Final = "==:!= <:<= >:>= is:is_not in:not_in and:or +:- *:/ &:| <<:>> +=:-= *=:/= |=:&="  # each in place of the other
SWAPS: Final = {
    one.replace("_", " "): other.replace("_", " ") for pair in PAIRS.split() for one, other in permutations(pair.split(":"))
}
SWAPS.update({"//": "*", "%": "*", "**": "*", "@": "*"})
OPERATOR: Final = re.compile(
    "|".join(rf"\b{w}\b" if w.isalpha() else re.escape(w) for w in sorted(SWAPS, key=len, reverse=True))
)
BOUNDS: Final = ("<", "<=", ">", ">=")  # beside a constant, a limit of memory or nesting, which is of no exact size
SILENT: Final = (ast.Raise, ast.Assert, ast.JoinedStr)  # what a message says, and what only a bug of ours reaches


class Mutant(NamedTuple):
    """Text of `file` from offset `start` to `end` becomes `after`."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after or '(nothing)'}"


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """One for each operator within a function."""
    offsets = [0]
    for line in text.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    code = text.encode()

    def between(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        assert left.end_lineno is not None and left.end_col_offset is not None  # noqa: PT018  # one fact: it was parsed
        start = offsets[left.end_lineno - 1] + left.end_col_offset
        found = OPERATOR.search(code[start : offsets[right.lineno - 1] + right.col_offset].decode())
        if found and not (found[0] in BOUNDS and isinstance(right, ast.Name) and right.id.isupper()):
            here = start + found.start()
            yield Mutant(file, left.end_lineno, here, here + len(found[0]), found[0], SWAPS[found[0]])

    for node in _within_functions(ast.parse(text)):
        match node:
            case (
                ast.Compare(left=left, comparators=[right, *_])
                | ast.BinOp(left=left, right=right)
                | ast.BoolOp(values=[left, right, *_])
                | ast.AugAssign(target=left, value=right)
            ):
                yield from between(left, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                start = offsets[node.lineno - 1] + node.col_offset
                before = "not " if isinstance(node.op, ast.Not) else "-"
                yield Mutant(file, node.lineno, start, start + len(before), before, "")


def _within_functions(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes of the bodies of functions: no annotations, no messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, SILENT):
                within = inside or (name == "body" and isinstance(tree, ast.FunctionDef))
                if within:
                    yield node
                yield from _within_functions(node, within)


def drawn(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """In an order by chance in which a change of other lines changes nothing."""
    lines = {file: (REPOSITORY / file).read_text(encoding="utf-8").splitlines() for file in {one.file for one in mutants}}

    def hashed(one: Mutant) -> bytes:
        told = seed, one.file, lines[one.file][one.line - 1].strip(), one.before, one.after
        return hashlib.sha256(repr(told).encode()).digest()

    return sorted(mutants, key=hashed)


def covering(copy: Path, tests: list[str]) -> dict[tuple[str, int], list[str]]:
    """By file and line the test functions that reach it; first those that reach few lines in all, which are the quick ones."""
    (copy / "coverage.ini").write_text(f"[run]\ninclude = {','.join(HEART)}\n", encoding="utf-8")
    noting = ["--cov", "--cov-config=coverage.ini", "--cov-context=test", "--cov-report="]
    if _pytest(copy, [*UNMARKED, *noting, "-n", str(WORKERS), *tests]) != 0:
        raise SystemExit("the tests fail without any mutant")
    from coverage import CoverageData

    data = CoverageData(str(copy / ".coverage"))
    data.read()
    reached = {
        (str(Path(file).relative_to(copy)), line): {name.partition("|")[0].partition("[")[0] for name in names if name}
        for file in data.measured_files()
        for line, names in data.contexts_by_lineno(file).items()
    }
    width = Counter(name for names in reached.values() for name in names)
    return {place: sorted(names, key=lambda name: (width[name], name)) for place, names in reached.items()}


def is_caught(mutant: Mutant, tests: list[str], copy: Path, limit: float) -> bool:
    """Whether a test fails with it. One that takes longer than `limit` seconds has not been caught."""
    file = copy / mutant.file
    code = file.read_bytes()
    file.write_bytes(code[: mutant.start] + mutant.after.encode() + code[mutant.end :])
    try:
        return bool(tests) and _pytest(copy, [*UNMARKED, "-x", *tests], limit) in (
            1,
            2,
        )  # a test failed, or could not be imported
    finally:
        file.write_bytes(code)


def _pytest(copy: Path, words: list[str], limit: float | None = None) -> int | None:
    """Its exit status; None where the time was over."""
    real_data = os.environ.get("OFFLINE_CLI_REAL_DATA", str(REPOSITORY.parent / "shared" / "real_data"))
    env = {**os.environ, "PYTHONPATH": str(copy), "OFFLINE_CLI_REAL_DATA": real_data, "PYTHONDONTWRITEBYTECODE": "1"}
    (copy / "words.txt").write_text("\n".join(words), encoding="utf-8")  # thousands of names are too long for a command line
    command = [sys.executable, "-m", "pytest", "@words.txt"]
    try:
        return subprocess.run(command, cwd=copy, env=env, stdout=subprocess.DEVNULL, timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    """Try the sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--tests", nargs="+", default=["tests"])
    given = parser.parse_args()
    end = time.monotonic() + 3600 * given.hours
    files = sorted(file for pattern in HEART for file in REPOSITORY.glob(pattern))
    every = [one for file in files for one in mutants_of(str(file.relative_to(REPOSITORY)), file.read_text(encoding="utf-8"))]
    chosen = drawn(every, given.seed)[: given.sample]
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            copy_to(Path(folder, str(number)))
            copies.put(Path(folder, str(number)))
        reached = covering(Path(folder, "0"), given.tests)
        limit = WORKERS * (end - time.monotonic()) / len(chosen)  # for each, so that all of them are tried

        def tried(mutant: Mutant) -> bool:
            places = ((mutant.file, mutant.line - back) for back in range(10))  # statements are noted at their first line
            tests = next((reached[place] for place in places if reached.get(place)), [])
            copy = copies.get()
            try:
                caught = is_caught(mutant, tests, copy, limit)
            finally:
                copies.put(copy)
            print(f"{'caught' if caught else 'SURVIVED'}  {mutant}  ({len(tests)} tests)", flush=True)
            return caught

        with ThreadPoolExecutor(WORKERS) as pool:
            caught = list(pool.map(tried, chosen))
    share = sum(caught) / len(caught)
    print(f"{sum(caught)} of {len(caught)} mutants are caught, {share:.0%}, of {len(every)} that there are; survivors:")
    print(*(mutant for mutant, one in zip(chosen, caught, strict=True) if not one), sep="\n")
    return 0 if share >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
