"""Every check of data that we know, for recordings and datasets alike; nothing is changed."""

from offline_cli.checking.validate.checking import validate
from offline_cli.checking.validate.codes import CODES, Severity
from offline_cli.checking.validate.findings import Problem, Validation

__all__ = ["CODES", "Problem", "Severity", "Validation", "validate"]
