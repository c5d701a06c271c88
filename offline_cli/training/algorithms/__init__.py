"""Algorithms that learn a policy from recordings, one file each; docs/howto/extend.md explains how to write one."""

from offline_cli.training.algorithms.algorithm import Algorithm, Batch, Group, Modules, Task, frozen_copy, move_towards

__all__ = ["Algorithm", "Batch", "Group", "Modules", "Task", "frozen_copy", "move_towards"]
