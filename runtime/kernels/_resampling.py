"""Kernels of Resize, Upsample and GridSample."""

from __future__ import annotations

from . import rows

KERNELS, kernel = rows()
