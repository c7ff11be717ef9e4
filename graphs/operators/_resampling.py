"""Resize, Upsample and GridSample."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
