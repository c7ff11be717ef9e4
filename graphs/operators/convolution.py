"""Records of the convolution operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
