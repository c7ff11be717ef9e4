"""Gradient rows of the activation functions. Where one bends, the derivative is PyTorch's (`docs/autodiff.md`)."""

from __future__ import annotations

import math

from graphs.builder import Value

from .rows import Row, pointwise
from .shapes import scalar
from .site import Site


def number(s: Site, name: str) -> float:
    """A float attribute."""
    return float(s.attrs[name])  # type: ignore[arg-type]


def above(s: Site, bound: float = 0.0) -> Value:
    """x > bound."""
    return s.b.Greater(s[0], scalar(s.b, bound, s[0]))


def _choose(s: Site, mask: Value, a: Value | float, b: Value | float, like: Value) -> Value:
    options = [each if isinstance(each, Value) else scalar(s.b, each, like) for each in (a, b)]
    return s.b.Where(mask, *options)


def _below(s: Site) -> Value:
    """x, and 0 where x > 0: so that exp of it does not overflow where it is not chosen."""
    return _choose(s, above(s), 0.0, s[0], s[0])


def _leaky(s: Site, g: Value) -> Value:
    return _choose(s, above(s), g, g * number(s, "alpha"), g)


def _elu(s: Site, g: Value) -> Value:
    return _choose(s, above(s), g, g * (s.b.Exp(_below(s)) * number(s, "alpha")), g)


def _selu(s: Site, g: Value) -> Value:
    return _elu(s, g) * number(s, "gamma")


def _celu(s: Site, g: Value) -> Value:
    return _choose(s, above(s), g, g * s.b.Exp(_below(s) / number(s, "alpha")), g)


def _gelu(s: Site, g: Value) -> Value:
    """x Phi(x) with Phi the normal distribution function, or its approximation by tanh."""
    b, x = s.b, s[0]
    if s.attrs["approximate"] == "tanh":
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = b.Tanh((x + (x * x * x) * cubic) * scale)
        inner = (x * x * (3 * cubic) + 1.0) * scale
        return g * ((t + 1.0) * 0.5 + x * (1.0 - t * t) * inner * 0.5)
    cdf = (b.Erf(x * math.sqrt(0.5)) + 1.0) * 0.5
    pdf = b.Exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (cdf + x * pdf)


def _hard_sigmoid(s: Site, g: Value) -> Value:
    b = s.b
    inside = b.And(b.Greater(s.out, scalar(b, 0.0, g)), b.Less(s.out, scalar(b, 1.0, g)))
    return _choose(s, inside, g * number(s, "alpha"), 0.0, g)


def _hard_swish(s: Site, g: Value) -> Value:
    middle = g * (s[0] / 3.0 + 0.5)
    high = s.b.GreaterOrEqual(s[0], scalar(s.b, 3.0, g))
    return _choose(s, above(s, -3.0), _choose(s, high, g, middle, g), 0.0, g)


def _mish(s: Site, g: Value) -> Value:
    t = s.b.Tanh(s.b.Softplus(s[0]))
    return g * (t + s[0] * s.b.Sigmoid(s[0]) * (1.0 - t * t))


def _softsign(s: Site, g: Value) -> Value:
    below = s.b.Abs(s[0]) + 1.0
    return g / (below * below)


def _swish(s: Site, g: Value) -> Value:
    alpha = number(s, "alpha")
    part = s.b.Sigmoid(s[0] * alpha)
    return g * (part + s.out * (1.0 - part) * alpha)


def _shrink(s: Site, g: Value) -> Value:
    lambd = number(s, "lambd")
    outside = s.b.Or(above(s, lambd), s.b.Less(s[0], scalar(s.b, -lambd, g)))
    return _choose(s, outside, g, 0.0, g)


def _bound(s: Site, name: str, index: int) -> Value | None:
    """A bound of Clip as a value, None where there is none."""
    given = s.static(name, index)
    if given is None or isinstance(given, Value):
        return given
    items = given if isinstance(given, tuple) else (given,)
    return scalar(s.b, float(items[0]), s[0])  # type: ignore[arg-type]


def _clip(s: Site, g: Value) -> Value:
    """1 between the bounds and on them. max wins where the bounds cross, and then nothing lies between."""
    b, mask = s.b, None
    for bound, compare in ((_bound(s, "min", 1), b.GreaterOrEqual), (_bound(s, "max", 2), b.LessOrEqual)):
        if bound is not None:
            inside = compare(s[0], bound)
            mask = inside if mask is None else b.And(mask, inside)
    return g if mask is None else _choose(s, mask, g, 0.0, g)


def _clip_low(s: Site, g: Value) -> Value:
    low, high = s[1], _bound(s, "max", 2)
    mask = s.b.Less(s[0], low)
    if high is not None:
        mask = s.b.And(mask, s.b.Less(low, high))
    return _choose(s, mask, g, 0.0, g)


def _clip_high(s: Site, g: Value) -> Value:
    low, high = _bound(s, "min", 1), s[2]
    mask = s.b.Greater(s[0], high)
    if low is not None:
        mask = s.b.Or(mask, s.b.Less(high, low))
    return _choose(s, mask, g, 0.0, g)


ROWS: dict[str, Row] = {
    "Relu": pointwise(lambda s, g: _choose(s, above(s), g, 0.0, g)),
    "LeakyRelu": pointwise(_leaky),
    "PRelu": pointwise(lambda s, g: _choose(s, above(s), g, g * s[1], g),
                       lambda s, g: _choose(s, above(s), 0.0, g * s[0], g)),
    "ThresholdedRelu": pointwise(lambda s, g: _choose(s, above(s, number(s, "alpha")), g, 0.0, g)),
    "Elu": pointwise(_elu),
    "Selu": pointwise(_selu),
    "Celu": pointwise(_celu),
    "Gelu": pointwise(_gelu),
    "HardSigmoid": pointwise(_hard_sigmoid),
    "HardSwish": pointwise(_hard_swish),
    "Mish": pointwise(_mish),
    "Softplus": pointwise(lambda s, g: g * s.b.Sigmoid(s[0])),
    "Softsign": pointwise(_softsign),
    "Swish": pointwise(_swish),
    "Shrink": pointwise(_shrink),
    "Clip": pointwise(_clip, _clip_low, _clip_high),
}
