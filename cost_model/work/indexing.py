"""Work of the indexing operators."""

from __future__ import annotations

from . import Row

WORK: dict[str, Row] = {}
