"""Kernels of the control-flow operators."""

from __future__ import annotations

from . import rows

KERNELS, kernel = rows()
