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
    logp, scores = head.logp(inputs, actions).double(), head.scores(inputs, actions)
    discrete = discrete_elements(recorded.space, recorded.meanings)
    names = [element.name for each in discrete.values() for element in each]
    shares = scores.pop(HITS, torch.empty(0, 0)).double().mean(0).tolist()
    elements: dict[str, Any] = {name: {ACCURACY: share} for name, share in zip(names, shares, strict=True)}
    elements |= (boxes := _boxes(recorded, inputs))
    if isinstance(recorded.space, spaces.Discrete):
        elements, chances, taken = {}, inputs.double().softmax(-1), actions.long() - int(recorded.space.start)
        for number, label in enumerate(discrete[Columns.ACTIONS][0].labels):
            here = taken == number
            elements[label] = {"steps": int(here.sum())}
            if here.any():
                recall = float((chances.argmax(-1) == number)[here].double().mean())
                elements[label] |= {"recall": recall, "log_likelihood": float(logp[here].mean())}
            elements[label]["calibration_error"] = _calibration_error(chances[:, number], here.double())
    if boxes:
        error = float(np.mean([one["calibration_error"] for one in boxes.values()]))
    else:
        error = _calibration_error(head.logp(inputs, head.greedy(inputs)).double().exp(), scores[ACCURACY].double())
    means = {name: float(values.double().mean()) for name, values in {"log_likelihood": logp, **scores}.items()}
    return {**means, "calibration_error": error, "by_action": elements}


def _calibration_error(confidence: Tensor, right: Tensor) -> float:
    """The mean over rows (N,) of the distance between confidence and share of right ones in its bin, from 0 to 1."""
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    return float(bins.bincount(confidence - right, minlength=BINS).abs().sum() / len(confidence))


def _boxes(recorded: Recorded, inputs: Tensor) -> dict[str, dict[str, float]]:
    """Squared error and calibration of each element of boxes."""
    parts: Any = recorded.module.action_head.parts
    each, found = inputs.split_with_sizes([part.size for part in parts], -1), dict[str, dict[str, float]]()
    for (path, leaf), part, own in zip(flatten(recorded.actions, Columns.ACTIONS), parts, each, strict=True):
        if isinstance(leaf_spaces(recorded.space, Columns.ACTIONS)[path], spaces.Box):
            mean, log_std = part.halves(own)
            errors = (rows(leaf) - mean).double()
            within = torch.special.erf((errors / log_std.exp()).abs() / 2**0.5)  # 0.5: it is in the central half
            apart = ((within[..., None] <= INSIDE).double().mean(0) - INSIDE).abs().mean(-1).tolist()
            for at, mse, error in zip(np.ndindex(part.shape), errors.square().mean(0).tolist(), apart, strict=True):
                found[recorded.meanings.named(path, at, part.shape)] = {"mse": mse, "calibration_error": error}
    return found
