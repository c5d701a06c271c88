"""A Ray cluster of two nodes on this machine, for all tests of a package that ask for one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="package")
def cluster() -> Iterator[Any]:
    from ray_clusters import local_cluster

    with pytest.MonkeyPatch.context() as patch:
        # Ray's workers import the tests' modules; later tests in this process must not find the repository this way.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "support")]))
        with local_cluster(2) as found:
            yield found
