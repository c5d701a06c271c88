"""Commands that start at once: a process that has loaded what commands need forks one for each call of `offline-cli`.

Each runs in a process of its own, with the words, folder, environment and streams of its caller; it only has nothing to import.
The pages whose commands tests run have dozens, and most of their time would be imports. Real starts: tests/cli/test_help.py,
tests/recording/test_current_folder.py, tests/test_wheel.py.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LOADED = ("torch", "pandas", "jsonschema", "gymnasium.wrappers", "stable_baselines3")
OURS = ("converting.convert", "datasets.dataset", "playing.loop", "recording.record", "training.bc", "applying.apply")
START = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
import warm_commands
sys.path.pop()
warm_commands.serve(sys.argv[1])
"""
CALL = """#!{python} -ISs
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    wish = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(wish).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(wish)
    code = server.recv(1)
sys.exit(code[0] if code else 255)
"""

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def warm_commands() -> Iterator[Path]:
    """A folder for PATH: its `offline-cli` is forked from a process that is ready."""
    with tempfile.TemporaryDirectory() as folder:  # the address of a socket must be short
        address, script = f"{folder}/socket", Path(folder, "offline-cli")
        script.write_text(CALL.format(python=sys.executable, address=address), encoding="utf-8")
        script.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        server = subprocess.Popen([sys.executable, "-P", "-c", START, address], env=environment, stdin=subprocess.PIPE)
        while not os.path.exists(address) and server.poll() is None:
            time.sleep(0.02)
        yield Path(folder)
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def script_shell(warm_commands: Path) -> Shell:
    """A function that runs a script in a folder as `sh -eu` does, with the `offline-cli` under test; `path`: for PYTHONPATH."""

    def run(script: str, folder: Path, *path: Path | str) -> subprocess.CompletedProcess[str]:
        commands = os.pathsep.join([str(warm_commands), str(Path(sys.executable).parent), os.environ["PATH"]])
        found = os.pathsep.join(map(str, [REPOSITORY, *path]))
        environment = {**os.environ, "PATH": commands, "PYTHONPATH": found}
        return subprocess.run(["sh", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run


def serve(address: str) -> None:
    """Load what commands need; then fork a process for each call, until our standard input ends."""
    for name in (*LOADED, "offline_cli.cli.app", *(f"offline_cli.{name}" for name in OURS)):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks what became of the processes that answer
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address + ".new")
    listening.listen()
    os.rename(address + ".new", address)  # it is there when it answers
    while select.select([listening, 0], [], [])[0] == [listening]:
        call, _ = listening.accept()
        if not os.fork():
            listening.close()
            answer(call)
        call.close()


def answer(call: socket.socket) -> None:
    """In a process of its own: start what is asked for, and answer with its exit code, or that of a shell for a signal."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(call, 8, 3)
    left, text = int.from_bytes(size, "big"), b""
    while len(text) < left:
        text += call.recv(left - len(text))
    child = os.fork()
    if not child:
        call.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        run(*json.loads(text))
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    call.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def run(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Run a command as its script would, and end."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.path.dirname(words[0]), *given, *(path for path in sys.path if path not in given)]
    sys.argv = words
    from offline_cli.cli.app import main

    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))
