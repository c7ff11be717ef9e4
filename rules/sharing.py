"""Rules that join operators with a shared input: products, biased products, Gemms and convolutions side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import numpy_dtype

from .declare import Leaf, Match, NodeView, Operand, Outcome, refuse, rule, term
from .linear import plain_bias, plain_weight
from .values import is_float

FAMILY = "linear"
MAX_MEMBERS = 8
_W = "w = constant float32[3, 2] [1, -2, 3, 0.5, 5, 6] v = constant float32[3, 1] [1, 2, 3]"
_X = "graph opset 17 (x: float32[n, 3]) -> (p, q)"


def _pieces(value: Leaf, axis: int, widths: Sequence[int]) -> list[Leaf]:
    """The parts of a joined value, as the outputs of one Split."""
    return [term("Split", value, axis=axis, split=tuple(widths), output=index, outputs=len(widths))
            for index in range(len(widths))]


def _group(m: Match, accept: Callable[[Match], bool], join: Callable[[Sequence[Match]], tuple[Leaf, int, list[int]]],
           ) -> Outcome:
    """Join the members that are accepted (and equal the first accepted one in kind); leave the others."""
    if m.members[0].bindings["x"].is_constant:
        return refuse("the shared input is a constant")
    chosen = [member for member in m.members if accept(member)][:MAX_MEMBERS]
    if len(chosen) < 2:
        return refuse("fewer than two of them can be joined")
    value, axis, widths = join(chosen)
    parts = iter(_pieces(value, axis, widths))
    return [next(parts) if any(member is each for each in chosen) else None for member in m.members]


def _given(weight: Operand) -> bool:
    """A constant of the model, not one that another rule (or this one, before) put together."""
    return weight.facts is not None and not weight.forms("Concat")


def _matrix(member: Match) -> bool:
    weight: Operand = member.w
    return _given(weight) and weight.rank == 2 and is_float(weight) and isinstance(weight.shape[1], int)


def _width(member: Match) -> int:
    width = member.w.shape[1]
    assert isinstance(width, int)
    return width


@rule(
    family=FAMILY, exactness="rounding", group="x",
    meaning="Products of one value with several constant weights are one product and a Split.",
    before="MatMul(x, $w)",
    example=_X + " { " + _W + " p = MatMul(x, w) q = MatMul(x, v) }",
    near_miss="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (p, q) "
              "{ " + _W + " p = MatMul(x, w) q = MatMul(z, v) }",
)
def join_matmuls(m: Match) -> Outcome:
    def join(chosen: Sequence[Match]) -> tuple[Leaf, int, list[int]]:
        weight = term("Concat", *(member.w for member in chosen), axis=1)
        return term("MatMul", m.x, weight), m.x.rank - 1, [_width(member) for member in chosen]

    return _group(m, _matrix, join)


@rule(
    family=FAMILY, exactness="rounding", group="x",
    meaning="Products of one value with several constant weights and biases are one product, one bias and a Split.",
    before="Add(MatMul(x, $w), $b)",
    example=_X + " { " + _W + " b = constant float32[2] [1, 2] c = constant float32[1] [3] "
                 "s = MatMul(x, w) t = MatMul(x, v) p = Add(s, b) q = Add(t, c) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (p, q) { " + _W + " b = constant float32[2] [1, 2] "
              "c = constant float32[2, 1] [3, 4] s = MatMul(x, w) t = MatMul(x, v) p = Add(s, b) q = Add(t, c) }",
)
def join_biased_matmuls(m: Match) -> Outcome:
    def accept(member: Match) -> bool:
        return _matrix(member) and member.b.shape == member.w.shape[1:]

    def join(chosen: Sequence[Match]) -> tuple[Leaf, int, list[int]]:
        weight = term("Concat", *(member.w for member in chosen), axis=1)
        bias = term("Concat", *(member.b for member in chosen), axis=0)
        value = term("Add", term("MatMul", m.x, weight), bias)
        return value, m.x.rank - 1, [_width(member) for member in chosen]

    return _group(m, accept, join)


@rule(
    family=FAMILY, exactness="rounding", group="x",
    meaning="Gemms of one value with several constant weights are one Gemm and a Split.",
    before="g:Gemm(x, $w, $b)",
    example=_X + " { " + _W + " b = constant float32[2] [1, 2] c = constant float32[1] [3] "
                 "p = Gemm(x, w, b) q = Gemm(x, v, c, alpha=2.0) }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (p, q) { " + _W + " b = constant float32[2] [1, 2] "
              "c = constant float32[1] [3] p = Gemm(x, w, b) q = Gemm(x, v, c, transA=1) }",
)
def join_gemms(m: Match) -> Outcome:
    def columns(member: Match) -> Any:
        return member.w.shape[0 if member.g.attrs["transB"] else 1]

    def accept(member: Match) -> bool:
        known = _given(member.w) and member.w.rank == 2 and isinstance(columns(member), int) and is_float(member.w)
        return known and member.b.shape == (columns(member),) \
            and member.g.attrs["transA"] == m.members[0].g.attrs["transA"]

    def join(chosen: Sequence[Match]) -> tuple[Leaf, int, list[int]]:
        weight = term("Concat", *(plain_weight(member.w, member.g.attrs) for member in chosen), axis=1)
        bias = term("Concat", *(plain_bias(member.b, member.g.attrs) for member in chosen), axis=0)
        value = term("Gemm", m.x, weight, bias, transA=m.members[0].g.attrs["transA"])
        return value, 1, [columns(member) for member in chosen]

    return _group(m, accept, join)


_SAME = ("auto_pad", "dilations", "pads", "strides", "group")


def _geometry(view: NodeView, weight: Operand) -> tuple[object, ...]:
    spatial = weight.rank - 2
    plain = {"dilations": (1,) * spatial, "strides": (1,) * spatial, "pads": (0,) * 2 * spatial}
    return (*(tuple(view.attrs[name]) if isinstance(view.attrs[name], tuple) else view.attrs[name] or plain.get(name)
              for name in _SAME), weight.shape[1:])


@rule(
    family="convolution", exactness="rounding", group="x",
    meaning="Convolutions of one value with equal geometry are one convolution and a Split (never grouped ones).",
    before="c:Conv(x, $w, ?b)",
    example="graph opset 17 (x: float32[n, 1, 3, 3]) -> (p, q) { w = constant float32[2, 1, 1, 1] [1, 2] "
            "v = constant float32[1, 1, 1, 1] [3] b = constant float32[1] [0.5] "
            "p = Conv(x, w) q = Conv(x, v, b) }",
    near_miss="graph opset 17 (x: float32[n, 2, 3, 3]) -> (p, q) { w = constant float32[2, 1, 1, 1] [1, 2] "
              "v = constant float32[2, 1, 1, 1] [3, 4] p = Conv(x, w, group=2) q = Conv(x, v, group=2) }",
)
def join_convolutions(m: Match) -> Outcome:
    first = m.members[0]

    def accept(member: Match) -> bool:
        known = _given(member.w) and all(isinstance(dim, int) for dim in member.w.shape)
        return known and member.c.attrs["group"] == 1 \
            and _geometry(member.c, member.w) == _geometry(first.c, first.w) and member.w.dtype == first.w.dtype

    def join(chosen: Sequence[Match]) -> tuple[Leaf, int, list[int]]:
        weight = term("Concat", *(member.w for member in chosen), axis=0)
        bias: Leaf | None = None
        if any(member.b is not None for member in chosen):
            bias = term("Concat", *(_zeros(member.w) if member.b is None else member.b for member in chosen), axis=0)
        attrs = {**first.c.attrs, "kernel_shape": None}
        return term("Conv", m.x, weight, bias, **attrs), 1, [member.w.shape[0] for member in chosen]

    return _group(m, accept, join)


def _zeros(weight: Operand) -> Leaf:
    return Constant.of(np.zeros(weight.shape[:1], numpy_dtype(weight.dtype)))  # type: ignore[arg-type]
