"""Episodes with one problem each among their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from faulty import MADE, Make, made


@made({"space-mismatch": 3}, env="CartPole-v1")
def observations_of_another_environment(make: Make) -> Path:
    return make.rows({name: np.array(values) % 2 if name == "actions" else values for name, values in make.columns().items()})


@made({"dtype-differs": 3})
def narrower_actions(make: Make) -> Path:
    return make.items(make.packed(make.batch(actions=(np.arange(12) % 3).astype(np.int32))))


@made({"value-not-in-dtype": 1})
def a_number_of_too_many_digits(make: Make, digits: float = 0.1) -> Path:
    obs = make.batch().obs.astype(np.float64)
    obs[3, 1] = digits
    return make.items(make.packed(make.batch(obs=obs)))


@made({"observation-outside-space": 1})
def an_observation_beyond_its_box(make: Make) -> Path:
    obs = make.batch().obs
    obs[7, 1] = np.nextafter(np.float32(10), np.float32(11))
    return make.dataset(make.batch(obs=obs), format="columns")


def beyond_the_box(make: Make) -> Any:
    actions = make.batch(boxes=True).actions
    actions[[2, 5], 0] = 2.5, -2.5
    return make.batch(boxes=True, actions=actions)


@made({"action-outside-space": 2})
def actions_beyond_their_box(make: Make) -> Path:
    return make.dataset(beyond_the_box(make), action_scale="env")


@made({"action-scale-unknown": 1})
def box_actions_whose_scale_nobody_says(make: Make) -> Path:
    return make.items(make.packed(make.batch(boxes=True)))


def _with(make: Make, name: str, at: Any, value: float) -> Path:
    batch = make.batch(boxes=True, extra={"vf_preds": {"head": np.arange(12.0)}})
    array = batch.extra["vf_preds"]["head"] if name == "extras" else getattr(batch, name)
    array[at] = value
    return make.dataset(batch)


for _code, _name, _at in (
    ("observations", "obs", ([3, 8, 8], [0, 0, 1])),
    ("actions", "actions", ([3, 8], 0)),
    ("rewards", "rewards", [3, 8]),
    ("extras", "extras", [3, 8]),
):
    for _kind, _value in (("nan", np.nan), ("infinite", -np.inf)):
        MADE[f"{_kind} in {_code}"] = (
            lambda make, name=_name, at=_at, value=_value: _with(make, name, at, value),
            {f"{_kind}-in-{_code}": 2},
            {},
        )


@made({"constant-dimension": 1})
def an_observation_that_never_changes_and_rewards_of_one(make: Make) -> Path:
    obs = make.batch().obs
    obs[:, 1] = 0.5
    return make.dataset(make.batch(obs=obs, rewards=np.ones(12)))


@made({"spaces-inferred": 1})
def rows_without_spaces(make: Make) -> Path:
    return make.rows(make.columns())


@made({"assumption": 2, "spaces-inferred": 1})
def a_line_of_decimals(make: Make) -> Path:
    return make.lines({**make.columns(), "unroll_id": np.zeros(12)})
