"""Records of the control-flow operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
