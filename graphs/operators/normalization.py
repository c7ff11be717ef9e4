"""Records of the normalization operators."""

from __future__ import annotations

from .record import Operator

OPERATORS: list[Operator] = []
