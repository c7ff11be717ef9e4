"""BatchNormalization (inference) next to affine maps and linear layers."""

from __future__ import annotations

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import numpy_dtype

from .affine import batch_norm, narrowed, per_channel, vector
from .declare import Match, Operand, Outcome, Refusal, Rule, refuse, rule, term
from .linear import plain_bias, plain_weight
from .values import finite_constant, fold

FAMILY = "normalization"
_BN = ("s = constant float32[3] [1, 2, -1] b = constant float32[3] [0.5, 0, 1] m = constant float32[3] [1, 2, 3] "
       "v = constant float32[3] [1, 4, 0.25]")
_X = "graph opset 17 (x: float32[n, 3, 2, 2]) -> (y)"
_CALL = "BatchNormalization({}, s, b, m, v)"
_PARTS = "n:BatchNormalization({}, $s, $h, $m, $v)"


def _affine(m: Match) -> tuple[np.ndarray, np.ndarray] | Refusal:
    if m.n.attrs["training_mode"] or m.n.output:
        return refuse("in training the statistics come from the batch")
    found = batch_norm(m.s, m.h, m.m, m.v, m.n.attrs["epsilon"])
    return refuse("the statistics are not known, or give no finite scale") if found is None else found


def _normalization(x: Operand, factor: np.ndarray, shift: np.ndarray, like: Operand) -> Outcome:
    """An affine map per channel, written as a BatchNormalization."""
    scale, bias = narrowed(like.dtype, factor), narrowed(like.dtype, shift)
    if scale is None or bias is None:
        return refuse("the new scale or shift would overflow")
    zeros, ones = np.zeros(len(factor)), np.ones(len(factor))
    mean, variance = (Constant.of(each.astype(numpy_dtype(like.dtype))) for each in (zeros, ones))
    return term("BatchNormalization", x, scale, bias, mean, variance, epsilon=0.0)


@rule(
    family=FAMILY, exactness="rounding",
    meaning="An inference BatchNormalization is a scale and a shift per channel.",
    before=_PARTS.format("x"), after="Add(Mul(x, factor), shift)",
    example=f"{_X} {{ {_BN} y = {_CALL.format('x')} }}",
    near_miss=f"{_X} {{ {_BN.replace('[1, 4, 0.25]', '[1, -4, 0.25]')} y = {_CALL.format('x')} }}",
)
def batch_norm_as_affine(m: Match) -> Outcome:
    found = _affine(m)
    if isinstance(found, Refusal):
        return found
    shape = (-1, *(1,) * (m.x.rank - 2))
    if m.x.rank < 2:
        return refuse("no channels")
    factor, shift = (narrowed(m.s.dtype, each.reshape(shape)) for each in found)
    return refuse("scale or shift would overflow") if factor is None or shift is None else \
        {"factor": factor, "shift": shift}


@rule(
    family=FAMILY, exactness="rounding",
    meaning="Two inference BatchNormalizations in a row are one.",
    before="o:BatchNormalization(n:BatchNormalization(x, $s, $h, $m, $v), $s2, $h2, $m2, $v2)",
    example=f"{_X} {{ {_BN} t = {_CALL.format('x')} y = BatchNormalization(t, v, m, b, v, epsilon=0.001) }}",
    near_miss=f"{_X} {{ {_BN} t = {_CALL.format('x')} y = BatchNormalization(t, s, b, m, s) }}",
)
def batch_norm_twice(m: Match) -> Outcome:
    inner = _affine(m)
    if isinstance(inner, Refusal):
        return inner
    if m.o.attrs["training_mode"] or m.root.output:
        return refuse("in training the statistics come from the batch")
    outer = batch_norm(m.s2, m.h2, m.m2, m.v2, m.o.attrs["epsilon"])
    if outer is None:
        return refuse("the outer statistics are not known, or give no finite scale")
    lost = np.abs(inner[1]) > 2.0**16 * np.abs(inner[0])
    if (lost & (np.abs(outer[0]) > 1)).any():
        return refuse("the inner shift is so large that the outer scale brings up rounding errors")
    return _normalization(m.x, inner[0] * outer[0], inner[1] * outer[0] + outer[1], m.s)


def _next_to(name: str, before: str, body: str, scale: bool, first: bool) -> Rule:
    head = f"{_X} {{ {_BN} k = constant float32[3, 1, 1] [0.5, 2, -3] "

    @rule(
        family=FAMILY, exactness="rounding",
        meaning="A scale or shift per channel next to a BatchNormalization moves into it.",
        before=before, example=head + body + " }",
        near_miss=head.replace("[3, 1, 1] [0.5, 2, -3]", "[2, 1] [0.5, 2]") + body + " }",
    )
    def guard(m: Match) -> Outcome:
        found = _affine(m)
        if isinstance(found, Refusal):
            return found
        constant = per_channel(m.k, m.x.shape[1] if m.x.rank > 1 else 0, m.x.rank)
        if constant is None:
            return refuse("the constant is not one number or one a channel")
        factor, shift = found
        if first:
            shift = shift if scale else shift + constant * factor
            factor = factor * constant if scale else factor
        else:
            factor, shift = (factor * constant, shift * constant) if scale else (factor, shift + constant)
        return _normalization(m.x, factor, shift, m.s)

    return guard.renamed(name)


NEXT_TO = [
    _next_to("mul-then-batch-norm", _PARTS.format("Mul(x, $k)"), f"t = Mul(x, k) y = {_CALL.format('t')}", True, True),
    _next_to("add-then-batch-norm", _PARTS.format("Add(x, $k)"), f"t = Add(x, k) y = {_CALL.format('t')}", False, True),
    _next_to("batch-norm-then-mul", f"Mul({_PARTS.format('x')}, $k)", f"t = {_CALL.format('x')} y = Mul(t, k)", True,
             False),
    _next_to("batch-norm-then-add", f"Add({_PARTS.format('x')}, $k)", f"t = {_CALL.format('x')} y = Add(t, k)", False,
             False),
]  # fmt: skip


# After a linear layer --------------------------------------------------------------------------------------

_W = "w = constant float32[2, 3] [1, -2, 3, 0.5, 5, 6] "
_ROWS = "graph opset 17 (x: float32[n, 2]) -> (y)"


def _scaled(weight: Operand, factor: np.ndarray) -> Constant | None:
    return narrowed(weight.dtype, factor) if weight.facts is None or weight.facts.finite else None


def _after_matmul(bias: bool) -> Rule:
    inner = "Add(MatMul(x, $w), $k)" if bias else "MatMul(x, $w)"
    body = "h = MatMul(x, w) k = constant float32[3] [1, 0, -1] t = Add(h, k) " if bias else "t = MatMul(x, w) "

    @rule(
        family=FAMILY, exactness="rounding",
        meaning="The columns of a matrix product are the channels of a BatchNormalization after it.",
        before=_PARTS.format(inner), example=f"{_ROWS} {{ {_W}{_BN} {body}y = {_CALL.format('t')} }}",
        near_miss="graph opset 17 (x: float32[n, 3, 2]) -> (y) "
                  f"{{ {_W}{_BN} {body}y = {_CALL.format('t')} }}",
    )
    def guard(m: Match) -> Outcome:
        found = _affine(m)
        if isinstance(found, Refusal):
            return found
        if m.root.type.rank != 2 or m.w.rank != 2 or m.x.rank != 2:
            return refuse("the channels are not the columns")
        factor, shift = found
        if bias:
            known = vector(m.k)
            if known is None or m.k.rank > 2 or m.k.shape[-1:] not in ((), (1,), m.w.shape[1:]) \
                    or m.k.shape[:-1] not in ((), (1,)):
                return refuse("the bias is not one number a column")
            shift = shift + known.reshape(-1) * factor
        scale, offset = _scaled(m.w, factor), narrowed(m.w.dtype, shift)
        if scale is None or offset is None:
            return refuse("the new weight or bias would not be finite")
        return term("Add", term("MatMul", m.x, fold("Mul", m.w, scale)), offset)

    return guard.renamed("matmul" + ("-add" if bias else "") + "-then-batch-norm")


AFTER_MATMUL = [_after_matmul(False), _after_matmul(True)]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The columns of a Gemm are the channels of a BatchNormalization after it.",
    before=_PARTS.format("g:Gemm(x, $w, $?k)"),
    example=f"{_ROWS} {{ w = constant float32[3, 2] [1, -2, 3, 0.5, 5, 6] {_BN} "
            f"t = Gemm(x, w, b, alpha=0.5, beta=2.0, transB=1) y = {_CALL.format('t')} }}",
    near_miss=f"{_ROWS} {{ w = constant float32[3, 2] [1, -2, 3, 0.5, 5, inf] {_BN} "
              f"t = Gemm(x, w, b, alpha=0.5, beta=2.0, transB=1) y = {_CALL.format('t')} }}",
)
def gemm_then_batch_norm(m: Match) -> Outcome:
    found = _affine(m)
    if isinstance(found, Refusal):
        return found
    factor, shift = found
    attrs = m.g.attrs
    if m.k is not None:
        known = vector(m.k)
        if known is None or m.k.shape[-1:] not in ((), (1,), (len(factor),)) or m.k.shape[:-1] not in ((), (1,)):
            return refuse("C is not one number a column")
        shift = shift + known.reshape(-1) * attrs["beta"] * factor
    if not finite_constant(m.w):
        return refuse("the weight must be finite")
    scale, offset = narrowed(m.w.dtype, factor), narrowed(m.w.dtype, shift)
    if scale is None or offset is None:
        return refuse("the new weight or bias would overflow")
    return term("Gemm", m.x, term("Mul", plain_weight(m.w, attrs), scale), offset, transA=attrs["transA"])


# Two Gemms -------------------------------------------------------------------------------------------------


def _two_gemms(certain: bool) -> Rule:
    source = "s = Sigmoid(x)" if certain else "s = Neg(x)"
    miss = "s = Exp(x)" if certain else "s = Neg(x)"
    body = (f"{_W} c = constant float32[3] [1, 2, 3] z = constant float32[3, 2] [1, 0.5, 2, 7, -1, 3] "
            "t = Gemm(s, w, c) y = Gemm(t, z)")

    @rule(
        family="linear", exactness="rounding" if certain else "finite",
        meaning="Two Gemms without an activation between them are one"
                + (", if their input is never infinite." if certain else "."),
        before="o:Gemm(i:Gemm(x, $w, $?b), $v, $?d)",
        example=f"{_ROWS} {{ {source} {body} }}",
        near_miss=f"{_ROWS} {{ {miss} {body if certain else body.replace('-1, 3]', '-1, inf]')} }}",
    )
    def guard(m: Match) -> Outcome:
        from .values import bounded

        if m.o.attrs["transA"] or not all(finite_constant(each) for each in (m.w, m.v, m.b, m.d) if each is not None):
            return refuse("a transposed result, or constants that are not finite")
        if 0 in (*m.w.shape, *m.v.shape):
            return refuse("an empty weight")
        if certain:
            view = bounded(m.x)
            if view is None:
                return refuse("nothing shows that the value is never infinite")
            m.use(view)
        inner, outer = plain_weight(m.w, m.i.attrs), plain_weight(m.v, m.o.attrs)
        parts = []
        if m.b is not None:
            if m.b.shape != m.i.type.shape[1:]:
                return refuse("the inner C is not one number a column")
            parts.append(term("MatMul", plain_bias(m.b, m.i.attrs), outer))  # type: ignore[arg-type]
        if m.d is not None:
            parts.append(plain_bias(m.d, m.o.attrs))  # type: ignore[arg-type]
        bias = None if not parts else parts[0] if len(parts) == 1 else term("Add", *parts)
        return term("Gemm", m.x, term("MatMul", inner, outer), bias, transA=m.i.attrs["transA"])

    return guard.renamed("two-gemms" + ("" if certain else "-finite"))


TWO_GEMMS = [_two_gemms(True), _two_gemms(False)]
