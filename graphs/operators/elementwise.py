"""Records of the elementwise operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
