"""Work of the recurrent operators."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from . import Row, Types, Work, elements, traffic


def _recurrent(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    x, w, r = inputs[0], inputs[1], inputs[2]
    assert x is not None and x.shape is not None
    rows = float(prod(x.shape[:2]))  # type: ignore[arg-type]  # steps * batch
    # Every step reads the recurrent weights again, but from cache: bytes count once.
    hidden = r.shape[2] if r is not None and r.shape is not None else 0
    gates = elements(r) / hidden if isinstance(hidden, int) and hidden else 0.0
    return Work(rows * (2.0 * (elements(w) + elements(r)) + 12.0 * gates), traffic(inputs, outputs))


WORK: dict[str, Row] = {"LSTM": _recurrent, "GRU": _recurrent, "RNN": _recurrent}
