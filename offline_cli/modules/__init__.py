"""Policies: RLModule, encoders and action heads. The lowest package that may import torch."""

from offline_cli.modules.policy_modules import FeedForwardPolicy, RecurrentPolicy, build_module, build_recurrent_module
from offline_cli.modules.rl_module import RLModule

__all__ = ["FeedForwardPolicy", "RLModule", "RecurrentPolicy", "build_module", "build_recurrent_module"]
