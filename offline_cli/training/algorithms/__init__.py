"""Ways of learning a policy from recordings, one file each; docs/algorithms.md says how to write one."""

from offline_cli.training.algorithms.algorithm import Algorithm, Batch, Group, Modules
from offline_cli.training.algorithms.targets import frozen_copy, move_towards
from offline_cli.training.algorithms.task import Task

__all__ = ["Algorithm", "Batch", "Group", "Modules", "Task", "frozen_copy", "move_towards"]
