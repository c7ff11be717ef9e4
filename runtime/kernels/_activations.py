"""Kernels of the activation functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from . import Arrays, rows
from ._numeric import erf, given, narrow, number, unary, wide

KERNELS, kernel = rows()


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow and with full relative precision on both sides."""
    power = np.asarray(np.abs(x))
    np.exp(np.negative(power, out=power), out=power)
    below = 1 + power
    np.copyto(power, 1, where=x >= 0)
    return np.divide(power, below, out=power)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(softplus(x))


def _hard_swish(x: np.ndarray) -> np.ndarray:
    return x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1)


KERNELS.update(
    {
        "Relu": unary(lambda x: np.where(x < 0, x.dtype.type(0), x)),  # -0.0 stays, as in ONNX Runtime
        "Erf": unary(lambda x: erf(x) if x.dtype.kind == "f" else erf(x.astype(np.float64))),
        "Sigmoid": unary(sigmoid),
        "Softplus": unary(softplus),
        "Softsign": unary(lambda x: x / (1 + np.abs(x))),
        "HardSwish": unary(_hard_swish),
        "Mish": unary(_mish),
    }
)

Shaped = Callable[[np.ndarray, Mapping[str, object]], np.ndarray]


def _shaped(*names: str) -> Callable[[Shaped], Shaped]:
    """Enter a function of the (wide) data and the attributes as a kernel."""

    def enter(function: Shaped) -> Shaped:
        def run(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
            x = given(inputs, 0)
            with np.errstate(all="ignore"):
                return [narrow(function(wide(x), attrs), x.dtype)]

        kernel(*names)(run)
        return function

    return enter


@_shaped("LeakyRelu")
def _leaky_relu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    return np.where(x >= 0, x, x.dtype.type(number(attrs, "alpha")) * x)


@_shaped("Elu")
def _elu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    return np.where(x >= 0, x, x.dtype.type(number(attrs, "alpha")) * np.expm1(x))


@_shaped("Selu")
def _selu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    alpha, gamma = x.dtype.type(number(attrs, "alpha")), x.dtype.type(number(attrs, "gamma"))
    return gamma * np.where(x > 0, x, alpha * np.expm1(x))


@_shaped("Celu")
def _celu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    alpha = x.dtype.type(number(attrs, "alpha"))
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


@_shaped("Gelu")
def _gelu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    if attrs["approximate"] == "tanh":
        inner = np.tanh(x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * (x * x * x)))
    else:
        inner = erf(x * x.dtype.type(np.sqrt(0.5)))
    return x.dtype.type(0.5) * x * (1 + inner)


@_shaped("HardSigmoid")
def _hard_sigmoid(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    alpha, beta = x.dtype.type(number(attrs, "alpha")), x.dtype.type(number(attrs, "beta"))
    return np.clip(alpha * x + beta, 0, 1)


@_shaped("ThresholdedRelu")
def _thresholded_relu(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    return np.where(x > x.dtype.type(number(attrs, "alpha")), x, x.dtype.type(0))


@_shaped("Swish")
def _swish(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    return x * sigmoid(x.dtype.type(number(attrs, "alpha")) * x)


@_shaped("Shrink")
def _shrink(x: np.ndarray, attrs: Mapping[str, object]) -> np.ndarray:
    bias, lambd = number(attrs, "bias"), number(attrs, "lambd")
    if x.dtype.kind in "iu":  # compared and moved as real numbers, then cut
        broad = x.astype(np.float64)
        return np.where(broad < -lambd, broad + bias, np.where(broad > lambd, broad - bias, 0)).astype(x.dtype)
    kind = x.dtype.type
    moved = np.where(x > kind(lambd), x - kind(bias), kind(0))
    return np.where(x < kind(-lambd), x + kind(bias), moved)


@kernel("PRelu")
def _prelu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x, slope = given(inputs, 0), given(inputs, 1)
    broad = wide(x)
    with np.errstate(all="ignore"):
        return [narrow(np.where(broad < 0, wide(slope) * broad, broad), x.dtype)]


@kernel("Clip")
def _clip(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    result = wide(x)
    for name, beyond in (("min", np.less), ("max", np.greater)):  # in this order: `max` wins
        bound = attrs[name]
        if bound is not None:
            value = bound[0] if isinstance(bound, tuple) else bound
            # Through the operator's own type: a bound is a tensor of it.
            limit = wide(np.asarray(value).astype(x.dtype))
            # -0.0 at a bound of 0 stays, as in ONNX Runtime; a bound that is NaN makes everything NaN.
            result = np.where(beyond(result, limit) | np.isnan(limit), limit, result)
    return [narrow(result, x.dtype)]
