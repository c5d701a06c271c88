"""Every check of data that we know, for recordings and datasets alike; nothing is changed."""

from offline_cli.checking.validate.findings import CODES, Problem, Severity, Validation
from offline_cli.checking.validate.validating import validate

__all__ = ["CODES", "Problem", "Severity", "Validation", "validate"]
