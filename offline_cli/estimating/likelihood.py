"""How close a policy is to recorded actions: log-likelihood, accuracy or squared error, and calibration; no rewards are needed.

Calibration of choices is the expected calibration error in 15 bins of confidence (Guo et al. 2017); of one choice that of its
own probability (Nixon et al. 2019). Of Box actions it is the mean distance between the share of recorded actions within the
central 10%, 20%, ... 90% of the Gaussian and that number (Kuleshov et al. 2018).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from offline_cli.columns import Columns
from offline_cli.estimating.recorded import Recorded
from offline_cli.modules.distributions import ACCURACY, HITS, rows
from offline_cli.policies.policy_in_use import discrete_elements
from offline_cli.spaces import leaf_spaces
from offline_cli.trees import flatten

__all__ = ["likelihood"]

BINS: Final = 15
INSIDE: Final = torch.arange(1, 10, dtype=torch.float64) / 10


def likelihood(recorded: Recorded) -> dict[str, Any]:
    """Figures over all steps by name, and `by_action`: of each choice, or of each element of other spaces."""
    head, inputs, actions = recorded.module.action_head, recorded.inputs[recorded.acted], recorded.actions
    with torch.inference_mode():
        logp, scores = head.logp(inputs, actions).double(), head.scores(inputs, actions)
        elements = _elements(recorded, inputs, scores.pop(HITS, None))
        found = {"log_likelihood": float(logp.mean()), **{name: float(value.double().mean()) for name, value in scores.items()}}
        if scores.keys() == {ACCURACY}:
            confidence = head.logp(inputs, head.greedy(inputs)).double().exp()
            found["calibration_error"] = calibration_error(confidence, scores[ACCURACY].double())
        else:
            errors = [one["calibration_error"] for one in elements.values() if "calibration_error" in one]
            found["calibration_error"] = float(np.mean(errors))
        if isinstance(recorded.space, spaces.Discrete):
            elements = _choices(recorded, inputs, logp)
    return {**found, "by_action": elements}


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The mean over rows (N,) of the distance between confidence and share of right ones in its bin, from 0 to 1."""
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    return float(bins.bincount(confidence - right, minlength=BINS).abs().sum() / len(confidence))


def _choices(recorded: Recorded, inputs: Tensor, logp: Tensor) -> dict[str, Any]:
    (element,) = discrete_elements(recorded.space, recorded.meanings)[Columns.ACTIONS]
    chances, taken, found = inputs.double().softmax(-1), recorded.actions.long() - element.start, dict[str, Any]()
    for number, label in enumerate(element.labels):
        here, guessed = taken == number, chances.argmax(-1) == number
        found[label] = {"steps": int(here.sum())}
        if here.any():
            found[label] |= {"recall": float(guessed[here].double().mean()), "log_likelihood": float(logp[here].mean())}
        found[label] |= {"calibration_error": calibration_error(chances[:, number], here.double())}
    return found


def _elements(recorded: Recorded, inputs: Tensor, hits: Tensor | None) -> dict[str, Any]:
    """Accuracy of each element of discrete leaves, by `hits` (N, E); error and calibration of each one of boxes."""
    discrete, taken = discrete_elements(recorded.space, recorded.meanings), dict(flatten(recorded.actions, Columns.ACTIONS))
    elements, found = [one for each in discrete.values() for one in each], dict[str, Any]()
    for column, element in enumerate(elements):
        assert hits is not None, "of choices there are some"
        found[element.name] = {"accuracy": float(hits[:, column].double().mean())}
    parts: Any = recorded.module.action_head.parts
    each = inputs.split_with_sizes([part.size for part in parts], -1)
    for path, part, own in zip(leaf_spaces(recorded.space, Columns.ACTIONS), parts, each, strict=True):
        if path in discrete:
            continue
        mean, log_std = part.halves(own)
        errors = rows(taken[path]) - mean
        within = torch.special.erf((errors / log_std.exp()).abs().double() / 2**0.5)  # 0.5: it is in the central half
        apart = ((within[..., None] <= INSIDE).double().mean(0) - INSIDE).abs().mean(-1)
        for at, index in enumerate(np.ndindex(part.shape)):
            mse = float(errors[:, at].double().square().mean())
            found[recorded.meanings.named(path, index, part.shape)] = {"mse": mse, "calibration_error": float(apart[at])}
    return found
