"""Runs and their exports, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from exported_policies import Exports
from small_runs import no_picture  # noqa: F401


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory, random_batch: Callable[..., Any]) -> Exports:
    """Runs and ONNX files by name: see `exported_policies.KINDS`."""
    return Exports(tmp_path_factory.mktemp("exports"), random_batch)
