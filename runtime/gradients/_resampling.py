"""Gradient rows of resampling."""

from __future__ import annotations

from .rows import Row

ROWS: dict[str, Row] = {}

ABSENT: dict[str, str] = {}
