"""Lowerings of the attention operators."""

from __future__ import annotations

from . import rows

LOWERINGS, lowering = rows()
