"""FrameStacking by the import path that RLlib has for it; refuses to be another class than that in `common`."""

from functools import partial

from offline_cli.connectors.common.frame_stacking import FrameStacking

__all__ = ["FrameStacking", "FrameStackingLearner"]

FrameStackingLearner = partial(FrameStacking, as_learner_connector=True)
