"""Fusions that nobody wrote down: sets of nodes enumerated, generated as kernels, checked, measured, and chosen."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .budget import TARGET, TARGETS, FusionBudget, takes_fusions

if TYPE_CHECKING:
    from .discovery import Discovery, Explorer, Fusion, discover

__all__ = ["TARGET", "TARGETS", "Discovery", "Explorer", "Fusion", "FusionBudget", "discover", "takes_fusions"]


def __getattr__(name: str) -> Any:
    """Discovery loads kernel generators and the solver, which takes long, and most runs need neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.discovery"), name)
