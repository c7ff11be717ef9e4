"""The pipeline: `optimize`, batches over a zoo, and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options import Options
    from .pipeline import optimize
    from .result import Result, Trace

__all__ = ["Options", "Result", "Trace", "optimize"]
_PLACES = {"Options": "options", "Result": "result", "Trace": "result", "optimize": "pipeline"}


def __getattr__(name: str) -> Any:
    """Load on first use, so that the command line starts fast."""
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
