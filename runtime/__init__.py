"""Executing graphs: NumPy kernels, the session, random feeds, validation of one graph against another."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once, not when first asked for: the function has the name of its package, and importing the package later would
# put the package in its place. `from runtime.gradients import ...` finds the package either way.
from .gradients import gradients, jvp

if TYPE_CHECKING:
    from .session import Session as Session
    from .session import run as run
    from .validation import Validation as Validation
    from .validation import validate as validate

# Looked up when first asked for: reading the kernel tables need not load the rest, and the other way round.
_HOME = {"Session": "session", "run": "session", "validate": "validation", "Validation": "validation"}

__all__ = ["Session", "Validation", "gradients", "jvp", "run", "validate"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
