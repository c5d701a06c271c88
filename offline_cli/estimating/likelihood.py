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
from offline_cli.modules.distributions import HITS, rows
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
        logp = head.logp(inputs, actions).double()
        scores = head.scores(inputs, actions)
        elements = _elements(recorded, inputs, scores.pop(HITS, None))
        found = {"log_likelihood": float(logp.mean()), **{name: float(value.double().mean()) for name, value in scores.items()}}
        if "accuracy" in scores and "mse" not in scores:
            confidence = head.logp(inputs, head.greedy(inputs)).double().exp()
            found["calibration_error"] = calibration_error(confidence, scores["accuracy"].double())
        else:
            errors = [one["calibration_error"] for one in elements.values() if "calibration_error" in one]
            found["calibration_error"] = float(np.mean(errors))
        if isinstance(recorded.space, spaces.Discrete):
            elements = _choices(recorded, inputs, logp)
    return {**found, "by_action": elements}


def calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The mean over rows (N,) of the distance between confidence and share of right ones in its bin, from 0 to 1."""
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = [torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, one) for one in (confidence, right)]
    return float((gaps[0] - gaps[1]).abs().sum() / len(confidence))


def _choices(recorded: Recorded, inputs: Tensor, logp: Tensor) -> dict[str, Any]:
    (element,) = discrete_elements(recorded.space, recorded.meanings)[Columns.ACTIONS]
    chances, taken = inputs.double().softmax(-1), recorded.actions.long() - element.start
    guessed, found = chances.argmax(-1), dict[str, Any]()
    for number, label in enumerate(element.labels):
        here = taken == number
        found[label] = {"steps": int(here.sum())}
        if here.any():
            found[label] |= {"recall": float((guessed[here] == number).double().mean())}
            found[label] |= {"log_likelihood": float(logp[here].mean())}
        found[label] |= {"calibration_error": calibration_error(chances[:, number], here.double())}
    return found


def _elements(recorded: Recorded, inputs: Tensor, hits: Tensor | None) -> dict[str, Any]:
    found, first, column = dict[str, Any](), 0, 0
    heads: Any = recorded.module.action_head.parts
    names = discrete_elements(recorded.space, recorded.meanings)
    parts = zip(leaf_spaces(recorded.space, Columns.ACTIONS), heads, strict=True)
    taken = dict(flatten(recorded.actions, Columns.ACTIONS))
    for path, part in parts:
        own, first = inputs[:, first : first + part.size], first + part.size
        for element in names.get(path, ()):
            assert hits is not None, "of choices there are some"
            found[element.name] = {"accuracy": float(hits[:, column].double().mean())}
            column += 1
        if path not in names:
            mean, log_std = part.halves(own)
            errors = rows(taken[path]) - mean
            within = torch.special.erf((errors / log_std.exp()).abs().double() / 2**0.5)  # 0.5: it is in the central half
            for at, index in enumerate(np.ndindex(part.shape)):
                distance = (within[:, at, None] <= INSIDE).double().mean(0) - INSIDE
                name = recorded.meanings.named(path, index, part.shape)
                found[name] = {"mse": float(errors[:, at].double().square().mean())}
                found[name] |= {"calibration_error": float(distance.abs().mean())}
    return found
