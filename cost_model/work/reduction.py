"""Work of the operators that reduce or scan along axes: operations for each input element."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2

from . import Row, Types, Work, elements, traffic


def _each(operations: float) -> Row:
    def row(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
        return Work(operations * elements(inputs[0]), traffic(inputs, outputs))

    return row


def _top_k(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    count, kept = elements(inputs[0]), elements(outputs[0])
    return Work(count * (1.0 + log2(max(kept, 2.0))), traffic(inputs, outputs))


WORK: dict[str, Row] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), _each(1.0)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _each(2.0)),
    "ReduceLogSum": _each(1.0),
    "ReduceLogSumExp": _each(13.0),
    **dict.fromkeys(("ArgMax", "ArgMin", "CumSum", "CumProd"), _each(1.0)),
    "TopK": _top_k,
}
