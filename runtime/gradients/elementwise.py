"""Gradient rows of the elementwise operators.

At points where there is no derivative, the value is PyTorch's: see "Kinks" in `docs/autodiff.md`.
"""

from __future__ import annotations

import math

from graphs.builder import Value

from . import _activations
from .rows import STOPS, Local, Row, pointwise, variadic
from .shapes import cast_like, scalar
from .site import Site


def pick(s: Site, mask: Value, g: Value) -> Value:
    """g where the mask holds, else 0 (and not 0 * g, which is NaN where g is infinite)."""
    return s.b.Where(mask, g, scalar(s.b, 0.0, g))


def _ties(s: Site, index: int, g: Value) -> Value:
    """Max and Min: inputs that are equal to the result share the derivative equally."""
    b = s.b

    def hit(position: int) -> Value:
        return s.shared(f"hit{position}", lambda: cast_like(b, b.Equal(s[position], s.out), s.out))

    count = s.shared("count", lambda: b.Sum(*(hit(position) for position in range(len(s.node.inputs)))))
    return g * (hit(index) / count)


def _pow_base(s: Site, g: Value) -> Value:
    b, constant = s.b, s.constant(1)
    power = constant.facts.splat if constant is not None else None
    if power == 1:
        return g
    if power == 2:
        return g * (s[0] * 2.0)
    exponent = s[1]
    slope = cast_like(b, exponent, g) * b.Pow(s[0], exponent - scalar(b, 1.0, exponent))
    if power is None or power == 0:  # x^0 is 1 everywhere, also where 0 * x^-1 is not a number
        slope = b.Where(b.Equal(exponent, scalar(b, 0.0, exponent)), scalar(b, 0.0, g), slope)
    return g * slope


def _pow_exponent(s: Site, g: Value) -> Value:
    b, base = s.b, s[0]
    zero = scalar(b, 0.0, base)
    flat = b.And(b.Equal(base, zero), b.GreaterOrEqual(s[1], scalar(b, 0.0, s[1])))
    # ln 1 in the place of ln 0: what is not chosen must not be infinite, or its own derivative is no number.
    log = b.Log(b.Where(flat, scalar(b, 1.0, base), base))
    return b.Where(flat, zero, cast_like(b, g, base) * s.out * log)


def _mod_divisor(s: Site, g: Value) -> Value:
    """x - y trunc(x/y): the quotient is (x - out) / y but for rounding."""
    return -(g * s.b.Round((s[0] - s.out) / s[1]))


_ONES: Local = lambda s, g: g  # noqa: E731

_ARITHMETIC: dict[str, Row] = {
    "Add": pointwise(_ONES, _ONES),
    "Sub": pointwise(_ONES, lambda s, g: -g),
    "Mul": pointwise(lambda s, g: g * s[1], lambda s, g: g * s[0]),
    "Div": pointwise(lambda s, g: g / s[1], lambda s, g: -(g * s.out) / s[1]),
    "Mod": pointwise(_ONES, _mod_divisor),
    "Pow": pointwise(_pow_base, _pow_exponent),
    "Max": variadic(_ties),
    "Min": variadic(_ties),
    "Sum": variadic(lambda s, index, g: g),
    "Mean": variadic(lambda s, index, g: g / float(len(s.node.inputs))),
    "Neg": pointwise(lambda s, g: -g),
    "Abs": pointwise(lambda s, g: g * s.b.Sign(s[0])),
    "Sign": STOPS,
    "Ceil": STOPS,
    "Floor": STOPS,
    "Round": STOPS,
}


def _root_of(s: Site, shift: float, sign: float = 1.0) -> Value:
    """sqrt(sign x^2 + shift)."""
    return s.b.Sqrt((s[0] * s[0]) * sign + shift)


_FUNCTIONS: dict[str, Row] = {
    "Sqrt": pointwise(lambda s, g: g / (s.out * 2.0)),
    "Reciprocal": pointwise(lambda s, g: -(g * (s.out * s.out))),
    "Exp": pointwise(lambda s, g: g * s.out),
    "Log": pointwise(lambda s, g: g / s[0]),
    "Sigmoid": pointwise(lambda s, g: g * (s.out * (1.0 - s.out))),
    "Tanh": pointwise(lambda s, g: g * (1.0 - s.out * s.out)),
    "Sin": pointwise(lambda s, g: g * s.b.Cos(s[0])),
    "Cos": pointwise(lambda s, g: -(g * s.b.Sin(s[0]))),
    "Tan": pointwise(lambda s, g: g * (s.out * s.out + 1.0)),
    "Asin": pointwise(lambda s, g: g / _root_of(s, 1.0, -1.0)),
    "Acos": pointwise(lambda s, g: -(g / _root_of(s, 1.0, -1.0))),
    "Atan": pointwise(lambda s, g: g / (s[0] * s[0] + 1.0)),
    "Sinh": pointwise(lambda s, g: g * s.b.Cosh(s[0])),
    "Cosh": pointwise(lambda s, g: g * s.b.Sinh(s[0])),
    "Asinh": pointwise(lambda s, g: g / _root_of(s, 1.0)),
    "Acosh": pointwise(lambda s, g: g / _root_of(s, -1.0)),
    "Atanh": pointwise(lambda s, g: g / (1.0 - s[0] * s[0])),
    "Erf": pointwise(lambda s, g: g * (s.b.Exp(-(s[0] * s[0])) * (2.0 / math.sqrt(math.pi)))),
}

_REST: dict[str, Row] = {
    "Where": pointwise(None, lambda s, g: pick(s, s[0], g), lambda s, g: s.b.Where(s[0], scalar(s.b, 0.0, g), g)),
    "Cast": pointwise(_ONES),
    "CastLike": pointwise(_ONES),
    "Identity": pointwise(_ONES),
}

ROWS: dict[str, Row] = {**_ARITHMETIC, **_FUNCTIONS, **_activations.ROWS, **_REST}

_BOOLEAN = "its outputs are booleans"
_INTEGER = "it works on integers"

ABSENT: dict[str, str] = {
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN",
                     "IsInf"), _BOOLEAN),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift"), _INTEGER),
}  # fmt: skip
