"""Fusions that nobody wrote down: sets of nodes enumerated, generated as kernels, checked, measured, and chosen."""

from .discovery import Discovery, FusionBudget, discover

__all__ = ["Discovery", "FusionBudget", "discover"]
