"""Numerical validation: is one graph equal to another, as far as its exactness class promises?"""

from .report import OutputCheck, Round, Validation
from .rounds import Executor
from .verdict import compare_feeds, validate

__all__ = ["Executor", "OutputCheck", "Round", "Validation", "compare_feeds", "validate"]
