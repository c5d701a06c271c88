"""Repairs dataset folders that an interrupted writer left or that were damaged; no episode is thrown away."""

from offline_cli.checking.repair.plan import RepairResult
from offline_cli.checking.repair.repairing import repair

__all__ = ["RepairResult", "repair"]
