"""Records of the quantization operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
