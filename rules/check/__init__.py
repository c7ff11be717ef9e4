"""The rule checker: every rule's example, near miss, and random instances, compared under the rule's class."""

from .foreign import OnnxRuntime, runtime_version
from .report import Failure, RuleReport
from .run import check_all, check_rule

__all__ = ["Failure", "OnnxRuntime", "RuleReport", "check_all", "check_rule", "runtime_version"]
