"""Gradient rows of the normalization family."""

from __future__ import annotations

from . import _softmax
from .rows import Row

ROWS: dict[str, Row] = {**_softmax.ROWS}

ABSENT: dict[str, str] = {}
