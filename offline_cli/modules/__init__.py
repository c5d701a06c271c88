"""Policies: RLModule, encoders and action heads; torch is known from here down, never above."""

from offline_cli.modules.policy import FeedForwardPolicy, build_module
from offline_cli.modules.rl_module import RLModule

__all__ = ["FeedForwardPolicy", "RLModule", "build_module"]
