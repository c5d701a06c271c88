"""Repairs dataset folders that an interrupted writer left or that were damaged; no episode is thrown away."""

from offline_cli.checking.repair.repairing import LEFT_OUT, RepairResult, repair

__all__ = ["LEFT_OUT", "RepairResult", "repair"]
