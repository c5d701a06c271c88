"""Policies with memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from offline_cli.modules import build_recurrent_module

OBS = spaces.Dict({"arm": spaces.Box(-1, 1, (3,)), "door": spaces.Discrete(4)})
ACT = spaces.Discrete(5)


@pytest.fixture
def module() -> Any:
    return build_recurrent_module(OBS, ACT, hidden=(8,), memory_size=6, memory_layers=2, max_seq_len=4)


def batch(rows: int, steps: int, state: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "obs": {
            "arm": torch.rand(rows, steps, 3, generator=generator),
            "door": torch.randint(4, (rows, steps), generator=generator),
        },
        "state_in": {name: leaf.expand(rows, *leaf.shape) for name, leaf in state.items()},
    }


def test_the_initial_state_has_no_batch_axis_and_goes_in_with_one(module: Any) -> None:
    state = module.get_initial_state()
    assert {name: tuple(leaf.shape) for name, leaf in state.items()} == {"h": (2, 6), "c": (2, 6)}
    outputs = module.forward_inference(batch(3, 4, state))
    assert outputs["action_dist_inputs"].shape == (3, 4, 5)
    assert outputs["state_out"]["c"].shape == (3, 2, 6)


def test_step_by_step_gives_what_a_whole_sequence_gives(module: Any) -> None:
    whole = batch(2, 4, module.get_initial_state())
    wanted = module.forward_train(whole)
    state, found = whole["state_in"], []
    for t in range(4):
        one = {"obs": {name: leaf[:, t : t + 1] for name, leaf in whole["obs"].items()}, "state_in": state}
        outputs = module.forward_exploration(one)
        state = outputs["state_out"]
        found.append(outputs["action_dist_inputs"])
    assert torch.allclose(torch.cat(found, 1), wanted["action_dist_inputs"], atol=1e-6)
    assert torch.allclose(state["h"], wanted["state_out"]["h"], atol=1e-6)


def test_a_batch_without_a_state_is_refused_by_name(module: Any) -> None:
    given = batch(1, 1, module.get_initial_state())
    del given["state_in"]
    with pytest.raises(ValueError, match="state_in"):
        module.forward_inference(given)
