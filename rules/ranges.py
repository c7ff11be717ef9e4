"""Rules that hold because of what is known about the range of a value."""

from __future__ import annotations

from .declare import Match, Outcome, refuse, rule
from .values import known_range

FAMILY = "elementwise"
_X = "graph opset 17 (x: float32[2, 3]) -> (y)"


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Relu does nothing to a value that is never negative (NaN stays NaN).",
    before="Relu(x)", after="x",
    example=_X + " { t = Sigmoid(x) y = Relu(t) }",
    near_miss=_X + " { t = Tanh(x) y = Relu(t) }",
)
def relu_nonnegative(m: Match) -> Outcome:
    return _at_least_zero(m)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Abs does nothing to a value that is never negative (NaN stays NaN).",
    before="Abs(x)", after="x",
    example=_X + " { t = Softmax(x) y = Abs(t) }",
    near_miss=_X + " { t = Sin(x) y = Abs(t) }",
)
def abs_nonnegative(m: Match) -> Outcome:
    return _at_least_zero(m)


def _at_least_zero(m: Match) -> Outcome:
    found = known_range(m.x)
    if found is None or found[0] < 0:
        return refuse("nothing shows that the value is never negative")
    m.use(found[2])
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Clip does nothing to a value that lies inside its bounds (NaN stays NaN).",
    before="Clip(x, min=lo, max=hi)", after="x",
    example=_X + " { t = Sigmoid(x) y = Clip(t, min=0, max=1) }",
    near_miss=_X + " { t = Sigmoid(x) y = Clip(t, min=0.1, max=1) }",
)
def clip_in_range(m: Match) -> Outcome:
    found = known_range(m.x)
    if found is None:
        return refuse("the range of the value is not known")
    low, high, view = found
    limit = {"float16": 65504.0}.get(m.x.dtype, 3e38)
    for bound, end in ((m["lo"], low), (m["hi"], high)):
        if bound is None:  # then the largest number of the type, which infinity is beyond
            if abs(end) > limit:
                return refuse("the value may be infinite, and Clip makes that the largest number")
        elif not isinstance(bound, (int, float)):
            return refuse("a bound is not known")
    if (m["lo"] is not None and m["lo"] > low) or (m["hi"] is not None and m["hi"] < high):
        return refuse("a bound cuts into the range")
    m.use(view)
    return None
