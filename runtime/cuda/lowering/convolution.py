"""Lowerings of the convolution operators."""

from __future__ import annotations

from . import rows

LOWERINGS, lowering = rows()
