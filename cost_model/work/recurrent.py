"""Work of the recurrent operators."""

from __future__ import annotations

from . import Row

WORK: dict[str, Row] = {}
