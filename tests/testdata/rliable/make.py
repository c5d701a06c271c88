"""Writes answers.json with rliable (pip install rliable==1.2.0, in an environment of its own): `python make.py`."""

import json
from pathlib import Path

import numpy as np
from rliable import library, metrics

chance = np.random.default_rng(46)
arrays = {
    "small": chance.normal(1, 0.5, (5, 3)),
    "better": chance.normal(1.3, 0.7, (7, 3)),
    "one task": chance.normal(0, 1, (10, 1)),
    "with ties": chance.integers(0, 3, (6, 4)).astype(float),
    "other ties": chance.integers(0, 3, (4, 4)).astype(float),
}
pairs = [("better", "small"), ("small", "better"), ("small", "small"), ("with ties", "other ties"), ("other ties", "with ties")]
thresholds = np.linspace(-1, 3, 9)
answers = {
    "scores": {name: scores.tolist() for name, scores in arrays.items()},
    "mean": {name: float(metrics.aggregate_mean(scores)) for name, scores in arrays.items()},
    "median": {name: float(metrics.aggregate_median(scores)) for name, scores in arrays.items()},
    "iqm": {name: float(metrics.aggregate_iqm(scores)) for name, scores in arrays.items()},
    "probability_of_improvement": [[x, y, float(metrics.probability_of_improvement(arrays[x], arrays[y]))] for x, y in pairs],
    "thresholds": thresholds.tolist(),
    "profile": {name: library.score_distributions(scores, thresholds).tolist() for name, scores in arrays.items()},
    "intervals": {},
}
for name in ("small", "one task"):
    np.random.seed(0)  # which rliable draws from
    every = {"scores": arrays[name]}
    found = library.get_interval_estimates(
        every,
        lambda x: np.array([metrics.aggregate_mean(x), metrics.aggregate_median(x), metrics.aggregate_iqm(x)]),
        reps=50_000,
    )
    answers["intervals"][name] = found[1]["scores"].T.tolist()
np.random.seed(0)
found = library.get_interval_estimates(
    {"pair": [arrays["better"], arrays["small"]]}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=5_000
)
answers["intervals"]["better over small"] = found[1]["pair"].T.tolist()
Path(__file__).with_name("answers.json").write_text(json.dumps(answers, indent=1) + "\n")
