"""Records of the indexing operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
