"""Reductions that follow each other, reduce nothing, or are a mean written out."""

from __future__ import annotations

import math

from .declare import Match, Outcome, Rule, refuse, rule, term
from .values import close, is_float, number

FAMILY = "reduction"
_X = "graph opset 17 (x: float32[n, 3, 4, 5]) -> (y)"


_EXTREMES = ("ReduceMax", "ReduceMin")  # what they make of NaN depends on the order of elements in some runtimes


def _twice(op: str, integers: bool = False) -> Rule:
    dtype = "int64" if integers else "float32"
    head = _X.replace("float32", dtype)
    exactness = "exact" if integers else "finite" if op in _EXTREMES else "rounding"

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} of {op} is one {op} over the axes of both.",
        before=f"{op}({op}(x, axes=a, keepdims=k), axes=b, keepdims=k)", after=f"{op}(x, axes=c, keepdims=k)",
        example=f"{head} {{ t = {op}(x, axes=[3], keepdims=0) y = {op}(t, axes=[2], keepdims=0) }}",
        near_miss=f"{head} {{ t = {op}(x, axes=[3], keepdims=1) y = {op}(t, axes=[2], keepdims=0) }}",
    )
    def guard(m: Match) -> Outcome:
        if not isinstance(m["a"], tuple) or not isinstance(m["b"], tuple):
            return refuse("the axes are not known")
        if integers and is_float(m.x):
            return refuse("floats have a rule of their own")
        if op in ("ReduceL1", "ReduceL2", "ReduceMean") and not is_float(m.x):
            return refuse("integers are rounded in between, or wrap around to negative ones")
        inner = set(m["a"])
        kept = list(range(m.x.rank)) if m["k"] else [axis for axis in range(m.x.rank) if axis not in inner]
        return {"c": tuple(sorted(inner | {kept[axis] for axis in m["b"]}))}

    return guard.renamed(f"{op.lower()}-twice" + ("-integers" if integers else ""))


TWICE = [_twice(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")]
TWICE_INTEGERS = [_twice(op, True) for op in _EXTREMES]


def _of_one(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", meaning=f"{op} over axes of one element is a reshape.",
        before=f"{op}(x, axes=a, keepdims=k)", after="Reshape(x, shape=s)",
        example=f"graph opset 17 (x: float32[n, 1, 4]) -> (y) {{ y = {op}(x, axes=[1], keepdims=0) }}",
        near_miss=f"graph opset 17 (x: float32[n, 1, 4]) -> (y) {{ y = {op}(x, axes=[0], keepdims=0) }}",
    )
    def guard(m: Match) -> Outcome:
        axes = m["a"]
        if not isinstance(axes, tuple) or any(m.x.shape[axis] != 1 for axis in axes):
            return refuse("an axis holds more than one element")
        if m.x.dtype in ("int64", "uint64") and op not in _EXTREMES:
            return refuse("ONNX Runtime adds up integers of 64 bits as doubles, even a single one")
        return {"s": m.root.type.shape}

    return guard.renamed(f"{op.lower()}-of-one")


OF_ONE = [_of_one(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")]


def _count(m: Match) -> int | None:
    if not isinstance(m["a"], tuple) or not is_float(m.x):
        return None
    sizes = [m.x.shape[axis] for axis in m["a"]]
    return math.prod(sizes) if sizes and all(isinstance(size, int) and size > 0 for size in sizes) else None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A sum divided by the number of its terms is a mean.",
    before="Div(ReduceSum(x, axes=a, keepdims=k), $c)", after="ReduceMean(x, axes=a, keepdims=k)",
    example=f"{_X} {{ c = constant float32[] 20 t = ReduceSum(x, axes=[2, 3]) y = Div(t, c) }}",
    near_miss=f"{_X} {{ c = constant float32[] 19 t = ReduceSum(x, axes=[2, 3]) y = Div(t, c) }}",
)
def sum_to_mean(m: Match) -> Outcome:
    return None if _count(m) is not None and number(m.c) == _count(m) else refuse("not the number of the terms")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A sum times one over the number of its terms is a mean.",
    before="Mul(ReduceSum(x, axes=a, keepdims=k), $c)", after="ReduceMean(x, axes=a, keepdims=k)",
    example=f"{_X} {{ c = constant float32[] 0.05 t = ReduceSum(x, axes=[2, 3]) y = Mul(t, c) }}",
    near_miss=f"{_X} {{ c = constant float32[] 0.06 t = ReduceSum(x, axes=[2, 3]) y = Mul(t, c) }}",
)
def scaled_sum_to_mean(m: Match) -> Outcome:
    count, factor = _count(m), number(m.c)
    if count is None or factor is None or not close(factor * count, 1.0, m.x.dtype, 1.0):
        return refuse("not one over the number of the terms")
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A mean over all spatial axes that stay is a GlobalAveragePool.",
    before="ReduceMean(x, axes=a, keepdims=1)", after="GlobalAveragePool(x)",
    example=f"{_X} {{ y = ReduceMean(x, axes=[2, 3]) }}",
    near_miss=f"{_X} {{ y = ReduceMean(x, axes=[1, 2]) }}",
)
def mean_to_pool(m: Match) -> Outcome:
    if m.x.rank not in (4, 5) or m["a"] != tuple(range(2, m.x.rank)) or not is_float(m.x):
        return refuse("not all spatial axes and only these")
    if not all(isinstance(dim, int) and dim > 0 for dim in m.x.shape[2:]):
        return refuse("a spatial size may be zero, which pools do not take")
    return None


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A GlobalAveragePool is a mean over the spatial axes.",
    before="GlobalAveragePool(x)", after="ReduceMean(x, axes=a, keepdims=1)",
    example=f"{_X} {{ y = GlobalAveragePool(x) }}",
    near_miss=f"{_X} {{ y = GlobalMaxPool(x) }}",
)
def pool_to_mean(m: Match) -> Outcome:
    return {"a": tuple(range(2, m.x.rank))}


def _removed(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning="A reduction that drops axes which a Reshape puts back keeps them.",
        before=f"Reshape(c:{op}(x, axes=a, keepdims=k), shape=s)", after=f"{op}(x, axes=a, keepdims=j)",
        example=f"{_X} {{ t = {op}(x, axes=[2], keepdims=0) y = Unsqueeze(t, axes=[2]) }}",
        near_miss=f"{_X} {{ t = {op}(x, axes=[2], keepdims=0) y = Unsqueeze(t, axes=[0]) }}",
    )
    def guard(m: Match) -> Outcome:
        if not isinstance(m["a"], tuple) or not m["a"]:
            return refuse("the axes are not known, or nothing is reduced")
        shape = [1 if axis in m["a"] else dim for axis, dim in enumerate(m.x.shape)]
        if m["k"]:
            shape = [dim for axis, dim in enumerate(m.x.shape) if axis not in m["a"]]
        return {"j": 0 if m["k"] else 1} if tuple(shape) == tuple(m["s"]) else refuse("another shape")

    return guard.renamed(f"reshape-of-{op.lower()}")


RESHAPED = [_removed(op) for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
                                    "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The root of a sum of squares is the L2 norm.",
    before="Sqrt(ReduceSumSquare(x, axes=a, keepdims=k))", after="ReduceL2(x, axes=a, keepdims=k)",
    example=f"{_X} {{ t = ReduceSumSquare(x, axes=[2]) y = Sqrt(t) }}",
    near_miss=f"{_X} {{ t = ReduceSum(x, axes=[2]) y = Sqrt(t) }}",
)
def root_of_squares(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("not a float")


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A sum of squares is one reduction.",
    before="ReduceSum(Mul(x, x), axes=a, keepdims=k)", after="ReduceSumSquare(x, axes=a, keepdims=k)",
    example=f"{_X} {{ t = Mul(x, x) y = ReduceSum(t, axes=[2]) }}",
    near_miss="graph opset 17 (x: float32[3, 4], z: float32[3, 4]) -> (y) { t = Mul(x, z) y = ReduceSum(t, axes=[1]) }",
)
def sum_of_squares(m: Match) -> Outcome:
    return None if is_float(m.x) and m["a"] else refuse("not a float")


@rule(
    family=FAMILY, exactness="finite",
    meaning="max + log(sum(exp(x - max))) is ReduceLogSumExp (rows of minus infinity differ).",
    before="Add(Log(ReduceSum(Exp(Sub(x, ReduceMax(x, axes=a, keepdims=1))), axes=a, keepdims=1)), "
           "ReduceMax(x, axes=a, keepdims=1))",
    after="ReduceLogSumExp(x, axes=a, keepdims=1)",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { m = ReduceMax(x, axes=[1]) d = Sub(x, m) e = Exp(d) "
            "s = ReduceSum(e, axes=[1]) l = Log(s) y = Add(l, m) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { m = ReduceMax(x, axes=[1]) e = Exp(x) "
              "s = ReduceSum(e, axes=[1]) l = Log(s) y = Add(l, m) }",
)
def log_sum_exp(m: Match) -> Outcome:
    return None if is_float(m.x) else refuse("not a float")


def _arg_removed(op: str) -> Rule:
    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} drops or keeps its axis as a Reshape after it asks for.",
        before=f"Reshape(c:{op}(x, axis=a, keepdims=k), shape=s)",
        example=f"{_X} {{ t = {op}(x, axis=2, keepdims=1) y = Squeeze(t, axes=[2]) }}",
        near_miss=f"graph opset 17 (x: float32[n, 3, 3]) -> (y) "
                  f"{{ t = {op}(x, axis=2, keepdims=1) y = Reshape(t, shape=[0, 1, 3]) }}",
    )
    def guard(m: Match) -> Outcome:
        shape = list(m.x.shape)
        shape[m["a"] : m["a"] + 1] = [] if m["k"] else [1]
        if tuple(shape) != tuple(m["s"]):
            return refuse("another shape")
        return term(op, m.x, **{**m.c.attrs, "keepdims": 0 if m["k"] else 1})

    return guard.renamed(f"reshape-of-{op.lower()}")


ARG_RESHAPED = [_arg_removed(op) for op in ("ArgMax", "ArgMin")]


def _of_elementwise(op: str, before: str, inner: str, meaning: str) -> Rule:
    @rule(
        family=FAMILY, exactness="rounding", meaning=meaning, before=before, after=f"{op}(x, axes=a, keepdims=k)",
        example=f"{_X} {{ {inner} }}", near_miss=f"{_X.replace('float32', 'int32')} {{ {inner} }}",
    )
    def guard(m: Match) -> Outcome:
        return None if is_float(m.x) and m["a"] and all(dim != 0 for dim in m.x.shape) else refuse("not a float")

    return guard.renamed(f"as-{op.lower()}")


OF_ELEMENTWISE = [
    _of_elementwise("ReduceL1", "ReduceSum(Abs(x), axes=a, keepdims=k)", "t = Abs(x) y = ReduceSum(t, axes=[2])",
                    "A sum of absolute values is the L1 norm."),
]
