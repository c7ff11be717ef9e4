"""Records of the attention operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
