"""An ONNX file chooses the actions of the run it is from, for raw observations, with pieces, memory and scale inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from exported_policies import IMAGE, KINDS, Exports, lit

from offline_cli import load_policy
from offline_cli.trees import leaves, map_leaves

pytest.importorskip("onnxruntime")

QUICK = ["filtered and stacked", pytest.param("lstm", marks=pytest.mark.integration)]
IN_CI = ["cnn", "gru stacked", "previous"]
LONG = [
    pytest.param(name, marks=[pytest.mark.nightly] if name in IN_CI else pytest.mark.nightly)
    for name in KINDS
    if name not in ("filtered and stacked", "lstm")
]
ROWS, STEPS = 50, 40


def observed(kind: Any, random_batch: Callable[..., Any]) -> Any:
    """Leaves (STEPS, ROWS, ...) of recorded observations."""
    seen = random_batch(kind.observations, kind.actions, (STEPS * ROWS - 1,), seed=11).obs
    seen = lit(seen)[0] if kind.observations is IMAGE else seen
    return map_leaves(lambda leaf: leaf.reshape(STEPS, ROWS, *leaf.shape[1:]), seen)


@pytest.mark.parametrize("name", [*QUICK, *LONG])
def test_the_file_acts_as_the_run_does_on_thousands_of_observations(
    name: str, exports: Exports, random_batch: Callable[..., Any]
) -> None:
    ours, theirs = load_policy(exports.run(name)), load_policy(f"onnx:{exports.onnx(name)}")
    seen, rewards = observed(KINDS[name], random_batch), np.random.default_rng(0).normal(size=(STEPS, ROWS))
    varied = set()
    for step in range(STEPS):
        now = map_leaves(lambda leaf, at=step: leaf[at], seen)
        wanted, found = (policy.act(now, reward=rewards[step]) for policy in (ours, theirs))
        for one, other in zip(leaves(wanted), leaves(found), strict=True):
            assert one.dtype == other.dtype
            if one.dtype.kind == "f":
                np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
            else:
                np.testing.assert_array_equal(other, one)
        varied.add(leaves(found)[0].tobytes())
        if step % 30 == 29:  # some episodes end, and others begin in their rows
            for policy in (ours, theirs):
                policy.reset(np.arange(0, ROWS, 3))
    assert len(varied) > 1, "the policy looks at what it is given"
