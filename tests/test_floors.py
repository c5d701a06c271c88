"""The oldest releases that an installation may have are none that hostile bytes are known to crash, and all are tested ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FAULTY = {
    "msgpack": "1.2.0",  # GHSA-6v7p-g79w-8964: an out-of-bounds read after a caught error
    "orjson": "3.11.5",  # CVE-2024-27454, CVE-2025-67221: recursion without bound
    "pyarrow": "23.0.0",  # CVE-2026-25087: a use after free in reading IPC files
    "torch": "2.5.1",  # CVE-2025-32434: code run by weights_only loading
    "lz4": "3.1.1",  # CVE-2021-3520: memory corruption in the library that it brings
}


@pytest.fixture(scope="module")
def needed() -> dict[str, Requirement]:
    """The package's own dependencies by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {one.name: one for one in map(Requirement, project["dependencies"])}


@pytest.mark.parametrize("name", FAULTY)
def test_the_last_faulty_release_is_not_taken(name: str, needed: dict[str, Requirement]) -> None:
    assert not needed[name].specifier.contains(FAULTY[name])


def test_the_releases_that_are_tested_are_taken(needed: dict[str, Requirement]) -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    for name, requirement in needed.items():
        assert name in tested
        assert requirement.specifier.contains(Version(tested[name])), name
