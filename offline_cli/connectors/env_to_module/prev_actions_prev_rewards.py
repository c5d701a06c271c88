"""PrevActionsPrevRewards by the import path that RLlib has for it; refuses to be another class than that in `common`."""

from offline_cli.connectors.common.prev_actions_prev_rewards import PrevActionsPrevRewards

__all__ = ["PrevActionsPrevRewards"]
