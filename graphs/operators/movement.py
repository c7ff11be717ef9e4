"""Records of the movement operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
