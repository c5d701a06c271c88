"""Every check of data that we know, for recordings and datasets alike; nothing is changed."""

from offline_cli.datasets.validate.checking import validate
from offline_cli.datasets.validate.codes import CODES, Severity
from offline_cli.datasets.validate.findings import Problem, Validation

__all__ = ["CODES", "Problem", "Severity", "Validation", "validate"]
