"""Too little memory is exit 6, in whatever words a library says so."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offline_cli.cli.failures import explain
from offline_cli.cli.invocation import Invocation

SHORT: list[BaseException] = [
    MemoryError(),
    ImportError("libtorch_cpu.so: failed to map segment from shared object", name="torch._C"),
    ImportError("libtorch_cpu.so: cannot allocate memory in static TLS block"),
    RuntimeError("can't start new thread"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"
    ),
    RuntimeError("std::bad_alloc"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
]
OTHERS: list[BaseException] = [
    RuntimeError("shapes do not fit"),
    ValueError("out of memory"),  # a text of ours
    ImportError("No module named 'h5py'", name="h5py"),
    OSError(errno.ENOSPC, "No space left on device", "/data"),
]


@pytest.mark.parametrize("error", SHORT, ids=repr)
def test_the_systems_refusal_is_exit_6(error: BaseException) -> None:
    assert explain(error, Invocation(("inspect",))).exit_code == 6
    wrapped = RuntimeError("making it failed")
    wrapped.__cause__ = error
    assert explain(wrapped, Invocation(("inspect",))).code == "out-of-memory"


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_failures_are_what_they_were(error: BaseException) -> None:
    assert explain(error, Invocation(("inspect",))).code != "out-of-memory"


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not heed the limit")
@pytest.mark.parametrize("kilobytes", [600_000])
@pytest.mark.parametrize("command", ["record", "train-bc"])
def test_a_command_under_a_limit_of_address_space_is_done_or_is_exit_6(
    command: str, kilobytes: int, recording: Path, tmp_path: Path, child_env: dict[str, str]
) -> None:
    args: dict[str, list[Any]] = {
        "record": ["CartPole-v1", "--policy", "random", "-n", "2", "--num-env-runners", "2", "--out", tmp_path / "D"],
        "train-bc": [recording, "--out", tmp_path / "run", "--updates", "2"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "offline_cli", command, *map(str, args[command])],
        env=child_env,
        preexec_fn=limited(kilobytes << 10),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, 6), done.stderr
    if command == "train-bc":
        assert "less address space than torch and the libraries beside it take" in done.stderr


def test_a_library_that_is_half_loaded_under_a_tight_limit_is_exit_6(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    def failing() -> BaseException:
        try:
            json.loads("{", cls=lambda **_: exec("PySeries", {}))  # type: ignore[arg-type]
        except NameError as error:
            return error
        raise AssertionError

    def ours() -> BaseException:
        try:
            explain(None, None)  # type: ignore[arg-type]
        except AttributeError as error:
            return error
        raise AssertionError

    assert explain(failing(), Invocation(("inspect",))).exit_code == 1
    monkeypatch.setattr(resource, "getrlimit", lambda which: (800 << 20, 800 << 20))
    assert explain(failing(), Invocation(("inspect",))).exit_code == 6
    assert explain(ours(), Invocation(("inspect",))).exit_code == 1


def limited(nbytes: int) -> Callable[[], None]:
    """Called in the child: what `ulimit -v` does."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes)) if os.name == "posix" else None
