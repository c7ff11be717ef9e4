"""Work of the elementwise operators: arithmetic operations for each output element.

A transcendental function counts as the arithmetic of a vectorised polynomial, about 10 to 20 operations.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import Row, Types, Work, elements, plain, traffic


def _each(operations: float) -> Row:
    def row(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
        return plain(inputs, outputs, operations)

    return row


def _fold(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return plain(inputs, outputs, float(max(len(inputs) - 1, 1)))


def _none(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(0.0, traffic(inputs, outputs))


def _cast_like(attrs: Mapping[str, object], inputs: Types, outputs: Types) -> Work:
    return Work(elements(outputs[0]), traffic(inputs[:1], outputs))  # only the type of the second input matters


_OPERATIONS = {
    "Exp": 10, "Log": 12, "Erf": 20, "Sigmoid": 14, "Tanh": 16, "Sin": 14, "Cos": 14, "Tan": 18, "Asin": 16,
    "Acos": 16, "Atan": 16, "Sinh": 16, "Cosh": 16, "Asinh": 20, "Acosh": 20, "Atanh": 20, "Pow": 25, "Sqrt": 4,
    "Div": 4, "Reciprocal": 4, "Mod": 6, "LeakyRelu": 2, "PRelu": 2, "Elu": 13, "Selu": 14, "Celu": 15, "Gelu": 24,
    "HardSigmoid": 4, "HardSwish": 5, "Mish": 40, "Softplus": 24, "Softsign": 6, "ThresholdedRelu": 2, "Swish": 16,
    "Shrink": 4, "Clip": 2, "IsInf": 2,
}  # fmt: skip

WORK: dict[str, Row] = {
    **{name: _each(float(count)) for name, count in _OPERATIONS.items()},
    **dict.fromkeys(("Max", "Min", "Sum"), _fold),
    "Mean": _fold,
    "Identity": _none,
    "CastLike": _cast_like,
}
