"""Lowerings of the recurrent operators."""

from __future__ import annotations

from . import rows

LOWERINGS, lowering = rows()
