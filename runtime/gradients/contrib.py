"""Gradient rows of ONNX Runtime's own operators (contrib): none."""

from __future__ import annotations

from graphs.operators.contrib import OPERATORS

from .rows import Row

ROWS: dict[str, Row] = {}

_REASON = "not yet: differentiate the model before ONNX Runtime's own operators are put in"

ABSENT: dict[str, str] = {f"{each.domain}.{each.name}".lstrip("."): _REASON for each in OPERATORS}
