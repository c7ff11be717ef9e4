"""Lowerings of the indexing operators."""

from __future__ import annotations

from . import rows

LOWERINGS, lowering = rows()
