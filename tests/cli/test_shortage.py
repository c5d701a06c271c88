"""Too little memory is exit 6, in whatever words a library says so."""

from __future__ import annotations

import errno

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
