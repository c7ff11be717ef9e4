"""Kernels of the elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from . import Arrays, Kernel, _activations, rows
from ._conversions import KERNELS as _CONVERSIONS
from ._numeric import given, integer, is_floating, narrow, unary, wide

KERNELS, kernel = rows()
KERNELS.update(_activations.KERNELS)
KERNELS.update(_CONVERSIONS)

_ALIKE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Neg": np.negative, "Abs": np.abs, "Sign": np.sign, "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log,
    "Tanh": np.tanh, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos,
    "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Asinh": np.arcsinh, "Acosh": np.arccosh,
    "Atanh": np.arctanh, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint, "BitwiseNot": np.bitwise_not,
    "Not": np.logical_not, "Reciprocal": lambda x: np.reciprocal(x) if is_floating(x.dtype) else 1 // x,
}  # fmt: skip
KERNELS.update({name: unary(function) for name, function in _ALIKE.items()})


@kernel("Identity")
def _identity(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [inputs[0]]  # type: ignore[list-item]  # an empty optional stays one


def _binary(function: Callable[[np.ndarray, np.ndarray], np.ndarray], dtype: type | None = None) -> Kernel:
    def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
        a, b = given(inputs, 0), given(inputs, 1)
        with np.errstate(all="ignore"):
            return [narrow(function(wide(a), wide(b)), np.dtype(dtype or a.dtype))]

    return run


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    # ONNX truncates toward zero, NumPy rounds down.
    return quotient + ((quotient < 0) & (quotient * b != a)).astype(quotient.dtype)


KERNELS.update(
    {
        "Add": _binary(np.add),
        "Sub": _binary(np.subtract),
        "Mul": _binary(np.multiply),
        "Div": _binary(_divide),
        "BitwiseAnd": _binary(np.bitwise_and),
        "BitwiseOr": _binary(np.bitwise_or),
        "BitwiseXor": _binary(np.bitwise_xor),
        "And": _binary(np.logical_and, bool),
        "Or": _binary(np.logical_or, bool),
        "Xor": _binary(np.logical_xor, bool),
        "Equal": _binary(np.equal, bool),
        "Less": _binary(np.less, bool),
        "LessOrEqual": _binary(np.less_equal, bool),
        "Greater": _binary(np.greater, bool),
        "GreaterOrEqual": _binary(np.greater_equal, bool),
    }
)


@kernel("Mod")
def _mod(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    a, b = given(inputs, 0), given(inputs, 1)
    function = np.fmod if attrs["fmod"] else np.mod
    with np.errstate(all="ignore"):
        return [narrow(function(wide(a), wide(b)), a.dtype)]


@kernel("Pow")
def _pow(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    base, exponent = given(inputs, 0), given(inputs, 1)
    with np.errstate(all="ignore"):
        if base.dtype.kind in "iu" and exponent.dtype.kind in "iu":
            return [_integer_power(base, exponent)]
        a, b = wide(base), wide(exponent)
        if a.dtype != b.dtype:  # as in C++, where the power of mixed types is computed in double
            a, b = a.astype(np.float64), b.astype(np.float64)
        ones = np.asarray(b == 1)  # NumPy's vector code is an ulp off now and then, where C and the rules are exact
        power = np.where(ones, a, np.power(a, b)) if ones.any() else np.power(a, b)
        half = np.asarray(b == 0.5)  # NumPy takes the root where that is one number
        if half.any():
            power = np.where(half & np.isneginf(a), np.inf, np.where(half & (a == 0), 0, power))
        return [narrow(power, base.dtype)]


def _integer_power(base: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    broad = np.uint64 if base.dtype.kind == "u" else np.int64
    negative = exponent < 0
    powers = np.power(base.astype(broad), np.where(negative, 0, exponent).astype(broad))
    if negative.any():  # 1/base^n, truncated
        inverse = np.power(base.astype(np.float64), exponent.astype(np.float64))
        powers = np.where(negative, np.trunc(inverse).astype(broad), powers)
    return powers.astype(base.dtype)


def _fold(function: Callable[[np.ndarray, np.ndarray], np.ndarray], mean: bool = False) -> Kernel:
    def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
        first = given(inputs, 0)
        with np.errstate(all="ignore"):
            total = wide(first)
            for position in range(1, len(inputs)):
                total = function(total, wide(given(inputs, position)))
            if mean:
                total = total / total.dtype.type(len(inputs))
        return [narrow(total, first.dtype)]

    return run


KERNELS.update(
    {
        "Max": _fold(np.maximum),
        "Min": _fold(np.minimum),
        "Sum": _fold(np.add),
        "Mean": _fold(np.add, mean=True),
    }
)


@kernel("Where")
def _where(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 1)
    return [narrow(np.where(given(inputs, 0), x, given(inputs, 2)), x.dtype)]


@kernel("BitShift")
def _bit_shift(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    function = np.left_shift if attrs["direction"] == "LEFT" else np.right_shift
    x = given(inputs, 0)
    return [narrow(function(x, given(inputs, 1)), x.dtype)]


@kernel("IsNaN")
def _is_nan(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    return [np.asarray(x != x)]


@kernel("IsInf")
def _is_inf(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = wide(given(inputs, 0))
    found = np.zeros(x.shape, bool)
    if integer(attrs, "detect_positive"):
        found |= x == np.inf
    if integer(attrs, "detect_negative"):
        found |= x == -np.inf
    return [found]
