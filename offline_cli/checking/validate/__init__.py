"""`validate`: all checks of recordings and datasets; changes nothing."""

from offline_cli.checking.validate.findings import CODES, Problem, Severity, Validation
from offline_cli.checking.validate.validating import validate

__all__ = ["CODES", "Problem", "Severity", "Validation", "validate"]
