"""Commands that are killed: `python mortal_commands.py LOG` loads what they need, and forks one for each line that it reads.

A line is JSON: `args` of offline-cli, and when it is killed: `seconds` after its storage operation number `after` (0: after its
start), or at `operation`, before it is done if the number is even, after it if it is odd. The answer is JSON too: the exit
code (-9: killed), how long it ran, and when its storage operations were. Moments are told by operations because time alone says
little on a busy machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCES = (Path(__file__).resolve().parents[2], Path(__file__).resolve().parent)  # of this package, and of what tests share

OPERATIONS = ("link", "replace", "remove", "mkdir", "rmdir")
"""Of `os`: what changes names on a local disk. On S3 it is every request."""
LOADED = ("torch", "s3fs", "pandas", "jsonschema", "gymnasium.wrappers")
"""What commands load when they need it; Arrow loads pandas where it is installed."""


@dataclass(frozen=True)
class Life:
    """What became of one command."""

    code: int  # -9: killed
    seconds: float
    operations: list[float]  # when each began, in seconds from the start

    def moment(self, share: float, *, of_its_operations: bool = False) -> tuple[int, float]:
        """The point at that share of its time, told by the operation before it and the seconds since.

        `of_its_operations`: of the time between the first and the last of them.
        """
        when = self.seconds * share
        if of_its_operations:
            first, last = self.operations[0], self.operations[-1]
            when = first + (last - first) * share
        before = sum(began <= when for began in self.operations)
        return before, when - (self.operations[before - 1] if before else 0.0)


class Zygote:
    """The process that forks them; a context manager."""

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        """`env`: what commands find beside this process's own environment."""
        self._log = log
        path = os.pathsep.join([*map(str, SOURCES), os.environ.get("PYTHONPATH", "")])
        words = [sys.executable, str(Path(__file__).resolve()), str(log)]
        environment = {**os.environ, **env, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, args: Sequence[str], *, moment: tuple[int, float] | None = None, operation: int | None = None) -> Life:
        """What became of one command. `moment`: killed so many seconds after that operation; `operation`: killed at it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        after, seconds = moment or (0, None)
        wish = {"args": list(args), "after": after, "seconds": seconds, "operation": operation}
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        return Life(**json.loads(self._process.stdout.readline()))

    def complaints(self) -> str:
        """What the last command wrote on stderr."""
        return self._log.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Answer line by line."""
    for name in LOADED:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    import offline_cli.cli.app
    import offline_cli.converting.convert
    import offline_cli.playing.loop
    import offline_cli.recording.record
    import offline_cli.training.train  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(lived(json.loads(line))) + "\n")
        answers.flush()


def lived(wish: dict[str, Any]) -> dict[str, Any]:
    """What became of one command."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reader)
        live(wish, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    operations: list[float] = []
    kill_at = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        now = time.monotonic()
        operations += [now - began] * told(reader)
        if done:
            break
        if kill_at is None and wish["seconds"] is not None and len(operations) >= wish["after"]:
            kill_at = (now if wish["after"] else began) + wish["seconds"]
        if kill_at is not None and now >= kill_at:
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            break
        time.sleep(0.0005)
    os.close(reader)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": now - began, "operations": operations}


def told(reader: int) -> int:
    """Operations since the last call."""
    try:
        return len(os.read(reader, 1 << 16))
    except BlockingIOError:
        return 0


def live(wish: dict[str, Any], counter: int) -> None:
    """In the child: run the command, and tell of each storage operation by a byte."""
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    done = [0]

    def at(step: int) -> None:
        if wish["operation"] is not None and done[0] * 2 + step == wish["operation"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            at(0)
            os.write(counter, b".")
            try:
                return real(*args, **options)
            finally:  # one that fails counts, such as making a folder that is there
                at(1)
                done[0] += 1

        return call

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))
    count_requests(counted)
    by_count()
    sys.argv = ["offline-cli", *wish["args"]]
    from offline_cli.cli.app import main as command

    try:
        command()
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    os._exit(0)


def by_count() -> None:
    """Every run has the same storage operations."""
    sys.dont_write_bytecode = True


def count_requests(counted: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    import s3fs

    real = s3fs.S3FileSystem._call_s3
    tick = counted(lambda: None)

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        tick()
        return await real(self, *args, **options)

    s3fs.S3FileSystem._call_s3 = call


if __name__ == "__main__":
    main()
