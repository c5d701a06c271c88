"""Dataset folders that a writer left, or something damaged, made into datasets again; refuses to throw an episode away."""

from offline_cli.datasets.repair.plan import RepairResult
from offline_cli.datasets.repair.repairing import repair

__all__ = ["RepairResult", "repair"]
