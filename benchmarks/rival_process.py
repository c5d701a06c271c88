"""A rival in an environment and process of its own, asked for one figure at a time; refuses to wait for ever.

A rival is a script in rivals/ that answers in JSON (rivals/serving.py). So its packages need not agree with ours, its
memory and threads are not ours, and ours and theirs still take turns.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchmarks.harness import Missing
from benchmarks.rival_environments import interpreter

__all__ = ["Rival", "clean_environment"]

SCRIPTS = Path(__file__).resolve().parent / "rivals"
PATIENCE = 900.0  # seconds for one answer


class Rival:
    """Use it as a context manager; calling it is one measurement, in units per second.

    Entering starts the script and waits until it is warm; `versions` then says what it runs. Raises Missing where the
    environment is not there, or the script fails: with its last words.
    """

    def __init__(self, script: str, environment: str, *, python: str | None = None, **arguments: Any) -> None:
        self._script, self._environment, self._arguments = script, environment, arguments
        self._python = python
        self.versions = ""

    def __enter__(self) -> Self:
        command = [self._python or interpreter(self._environment), str(SCRIPTS / self._script), json.dumps(self._arguments)]
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=clean_environment()
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.versions = self._answer()["versions"]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __call__(self) -> float:
        """Units per second of one run."""
        figure = self._asked()
        return float(figure["amount"] / figure["seconds"])

    def amount(self) -> float:
        """What one run gives, whatever time it takes."""
        return float(self._asked()["amount"])

    def _asked(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        return self._answer()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Missing(f"{self._script} said nothing for {PATIENCE:.0f} s") from None
        if not line:
            raise Missing(f"{self._script} failed: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.returncode}"


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would lend the rival our packages."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}
