"""Records of the random operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
