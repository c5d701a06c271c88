"""The pieces of RLlib's default learner pipeline, by name and in order."""

from __future__ import annotations

LEARNER_DEFAULTS = [
    "AddObservationsFromEpisodesToBatch",
    "AddColumnsFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AddStatesFromEpisodesToBatch",
    "BatchIndividualItems",
    "NumpyToTensor",
]
