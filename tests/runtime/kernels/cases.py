"""Random nodes of the operators in five families, in canonical form: attributes and input arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphs.canonical import complete
from graphs.dtypes import numpy_dtype
from graphs.operators import find

Rng = np.random.Generator
Case = tuple[dict[str, object], list[np.ndarray | None]]
Maker = Callable[[Rng, str], Case]

CASES: dict[str, Maker] = {}
FLOATS = ("float32", "float16", "float64")
NUMBERS = (*FLOATS, "int32", "int64", "uint8", "int8")
DTYPES: dict[str, tuple[str, ...]] = {}
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def case(*names: str, dtypes: tuple[str, ...] = NUMBERS) -> Callable[[Maker], Maker]:
    def enter(maker: Maker) -> Maker:
        for name in names:
            CASES[name], DTYPES[name] = maker, dtypes
        return maker

    return enter


def make(name: str, seed: int, dtype: str) -> Case:
    """The case of a seed, with all attributes filled in."""
    rng = np.random.default_rng([seed, *name.encode()])
    attrs, inputs = CASES[name](rng, dtype)
    record = find(name)
    assert record is not None
    return complete(record, attrs), [None if array is None else np.asarray(array) for array in inputs]


def values(rng: Rng, shape: tuple[int, ...], dtype: str, special: bool = True, scale: float = 3.0) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype in ("uint8", "uint32", "uint64", "uint16"):
        return np.asarray(rng.integers(0, 20, shape)).astype(dtype)
    if dtype.startswith("int"):
        return np.asarray(rng.integers(-9, 10, shape)).astype(dtype)
    array = np.asarray(rng.normal(0, scale, shape))
    if special and rng.random() < 0.5:
        where = np.asarray(rng.random(shape) < 0.2)
        array = np.where(where, rng.choice(SPECIAL, shape), array)
    return array.astype(numpy_dtype(dtype))


def shape(rng: Rng, low: int = 0, high: int = 4) -> tuple[int, ...]:
    return tuple(int(size) for size in rng.integers(1, 5, rng.integers(low, high + 1)))


def sibling(rng: Rng, of: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to another one."""
    kept = of[rng.integers(0, len(of) + 1) :]
    return tuple(1 if rng.random() < 0.3 else size for size in kept)


def axis(rng: Rng, rank: int) -> int:
    return int(rng.integers(-rank, rank))


@case("Neg", "Abs", "Sign", dtypes=(*FLOATS, "int32", "int64", "int8"))
@case("Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "Tanh", "Ceil", "Floor", "Sin", "Cos", "Tan", "Asin", "Acos",
      "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "Round", "HardSwish", "Mish", "Softplus",
      "Softsign", "IsNaN", "IsInf", dtypes=FLOATS)  # fmt: skip
@case("Relu", dtypes=(*FLOATS, "int32", "int8"))
@case("Identity", dtypes=(*NUMBERS, "bool"))
@case("BitwiseNot", dtypes=("int32", "int64", "uint8"))
@case("Not", dtypes=("bool",))
def _one(rng: Rng, dtype: str) -> Case:
    return {}, [values(rng, shape(rng), dtype)]


@case("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Swish", dtypes=FLOATS)
def _alpha(rng: Rng, dtype: str) -> Case:
    return {"alpha": float(rng.uniform(0.1, 2))}, [values(rng, shape(rng), dtype)]


@case("Selu", dtypes=FLOATS)
def _selu(rng: Rng, dtype: str) -> Case:
    return ({} if rng.random() < 0.5 else {"alpha": 1.5, "gamma": 0.7}), [values(rng, shape(rng), dtype)]


@case("Gelu", dtypes=FLOATS)
def _gelu(rng: Rng, dtype: str) -> Case:
    return {"approximate": str(rng.choice(["none", "tanh"]))}, [values(rng, shape(rng), dtype, special=False)]


@case("HardSigmoid", dtypes=FLOATS)
def _hard_sigmoid(rng: Rng, dtype: str) -> Case:
    return {"alpha": 0.3, "beta": float(rng.uniform(0, 1))}, [values(rng, shape(rng), dtype)]


@case("Shrink", dtypes=FLOATS)
def _shrink(rng: Rng, dtype: str) -> Case:
    attrs: dict[str, object] = {"bias": float(rng.uniform(0, 1)), "lambd": float(rng.uniform(0, 2))}
    return attrs, [values(rng, shape(rng), dtype)]


@case("PRelu", dtypes=FLOATS)
def _prelu(rng: Rng, dtype: str) -> Case:
    size = shape(rng)
    return {}, [values(rng, size, dtype), values(rng, sibling(rng, size), dtype, special=False)]


@case("Clip")
def _clip(rng: Rng, dtype: str) -> Case:
    low, high = sorted(values(rng, (2,), dtype, special=False).tolist())
    if rng.random() < 0.2:
        low, high = high, low
    attrs = {"min": None if rng.random() < 0.3 else low, "max": None if rng.random() < 0.3 else high}
    return attrs, [values(rng, shape(rng), dtype)]


def _pair(rng: Rng, dtype: str) -> list[np.ndarray | None]:
    size = shape(rng)
    pair = [values(rng, size, dtype), values(rng, sibling(rng, size), dtype)]
    return list(pair if rng.random() < 0.5 else pair[::-1])


@case("Add", "Sub", "Mul", dtypes=(*FLOATS, "int32", "int64", "uint8"))
@case("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", dtypes=NUMBERS)
@case("And", "Or", "Xor", dtypes=("bool",))
@case("BitwiseAnd", "BitwiseOr", "BitwiseXor", dtypes=("int32", "int64", "uint8"))
def _two(rng: Rng, dtype: str) -> Case:
    return {}, _pair(rng, dtype)


@case("Div")
def _div(rng: Rng, dtype: str) -> Case:
    a, b = _pair(rng, dtype)
    assert b is not None
    return {}, [a, b if b.dtype.kind == "f" else np.where(b == 0, 3, b).astype(b.dtype)]


@case("Mod")
def _mod(rng: Rng, dtype: str) -> Case:
    a, b = _div(rng, dtype)[1]
    return {"fmod": 1 if dtype in FLOATS else int(rng.integers(0, 2))}, [a, b]


@case("Pow", dtypes=("float32", "float64", "int32", "int64"))
def _pow(rng: Rng, dtype: str) -> Case:
    a, _ = _pair(rng, dtype)
    assert a is not None
    exponent = values(rng, sibling(rng, a.shape), str(rng.choice([dtype, "int64", "float32"])), special=False)
    if dtype.startswith("int"):
        exponent = np.abs(exponent).astype(exponent.dtype)
        exponent = exponent if exponent.dtype.kind == "i" else np.round(exponent)
    return {}, [a, exponent]


@case("Max", "Min")
@case("Sum", "Mean", dtypes=("float32", "float64"))
def _variadic(rng: Rng, dtype: str) -> Case:
    size = shape(rng)
    inputs: list[np.ndarray | None] = [values(rng, sibling(rng, size), dtype) for _ in range(rng.integers(1, 4))]
    return {}, [values(rng, size, dtype), *inputs]


@case("Where")
def _where(rng: Rng, dtype: str) -> Case:
    a, b = _pair(rng, dtype)
    assert a is not None and b is not None
    return {}, [values(rng, sibling(rng, np.broadcast_shapes(a.shape, b.shape)), "bool"), a, b]


@case("BitShift", dtypes=("uint8", "uint32", "uint64"))
def _bit_shift(rng: Rng, dtype: str) -> Case:
    a, b = _pair(rng, dtype)
    assert b is not None
    return {"direction": str(rng.choice(["LEFT", "RIGHT"]))}, [a, (b % 8).astype(b.dtype)]


@case("Cast", dtypes=(*NUMBERS, "bool"))
def _cast(rng: Rng, dtype: str) -> Case:
    to = int(rng.choice([1, 6, 7, 9, 10, 11]))
    return {"to": to}, [values(rng, shape(rng), dtype, special=to in (1, 10, 11))]


@case("CastLike", dtypes=("float32", "int64"))
def _cast_like(rng: Rng, dtype: str) -> Case:
    return {}, [values(rng, shape(rng), dtype, special=False), values(rng, (1,), "float64")]


@case("MatMul", dtypes=("float32", "float64", "int32", "int64"))
def _matmul(rng: Rng, dtype: str) -> Case:
    m, k, n = (int(size) for size in rng.integers(1, 5, 3))
    batch = shape(rng, 0, 2)
    left, right = (*batch, m, k), (*sibling(rng, batch), k, n)
    if rng.random() < 0.2:
        left = (k,)
    elif rng.random() < 0.2:
        right = (k,)
    return {}, [values(rng, left, dtype, special=False), values(rng, right, dtype, special=False)]


@case("Gemm", dtypes=("float32", "float64"))
def _gemm(rng: Rng, dtype: str) -> Case:
    m, k, n = (int(size) for size in rng.integers(1, 5, 3))
    ta, tb = (int(flag) for flag in rng.integers(0, 2, 2))
    a = values(rng, (k, m) if ta else (m, k), dtype, special=False)
    b = values(rng, (n, k) if tb else (k, n), dtype, special=False)
    attrs: dict[str, object] = {"alpha": float(rng.choice([1.0, 0.5])), "beta": float(rng.choice([1.0, 2.0, 0.0])),
                                "transA": ta, "transB": tb}  # fmt: skip
    c = values(rng, sibling(rng, (m, n)), dtype, special=False)
    return attrs, [a, b] if rng.random() < 0.3 else [a, b, c]


@case("Einsum", dtypes=("float32",))
def _einsum(rng: Rng, dtype: str) -> Case:
    equation, *letters = [
        ("ij,jk->ik", "ij", "jk"), ("bij,bkj->bik", "bij", "bkj"), ("ii->i", "ii"), ("...ij,...jk->...ik", "bij", "jk"),
        ("ij,ij", "ij", "ij"), ("i,j->ij", "i", "j"), ("bhqd,bhkd->bhqk", "bhqd", "bhkd"), ("ij->ji", "ij"),
        ("...i->...", "bji"), ("ba,cb", "ba", "cb"),
    ][int(rng.integers(0, 10))]  # fmt: skip
    sizes = {letter: int(rng.integers(1, 5)) for letter in "abcdhijkq"}
    shapes = [tuple(sizes[letter] for letter in term) for term in letters]
    return {"equation": equation}, [values(rng, each, dtype, special=False) for each in shapes]


@case("MatMulInteger", dtypes=("uint8", "int8"))
def _matmul_integer(rng: Rng, dtype: str) -> Case:
    m, k, n = (int(size) for size in rng.integers(1, 5, 3))
    a, b = values(rng, (m, k), dtype), values(rng, (k, n), dtype)
    zero_a = values(rng, (), dtype)
    zero_b = values(rng, (n,) if rng.random() < 0.5 else (), dtype)
    return {}, [a, b] if rng.random() < 0.3 else [a, b, zero_a, zero_b]


@case("Det", dtypes=("float32",))
def _det(rng: Rng, dtype: str) -> Case:
    n = int(rng.integers(1, 4))
    return {}, [values(rng, (*shape(rng, 0, 2), n, n), dtype, special=False)]


@case("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2",
      dtypes=("float32", "float64", "int32", "int64"))  # fmt: skip
@case("ReduceLogSum", "ReduceLogSumExp", dtypes=("float32", "float64"))
def _reduce(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    count = int(rng.integers(0, len(size) + 1))
    axes = tuple(int(a) for a in rng.permutation(len(size))[:count])
    axes = tuple(a - len(size) if rng.random() < 0.3 else a for a in axes)
    attrs = {"axes": axes or None, "keepdims": int(rng.integers(0, 2)),
             "noop_with_empty_axes": int(rng.random() < 0.2)}  # fmt: skip
    data = values(rng, size, dtype, special=False)
    return attrs, [np.abs(data).astype(data.dtype) + np.ones((), data.dtype)]


@case("ArgMax", "ArgMin", dtypes=("float32", "int32", "uint8"))
def _arg(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 4)
    attrs = {"axis": axis(rng, len(size)), "keepdims": int(rng.integers(0, 2)),
             "select_last_index": int(rng.random() < 0.3)}  # fmt: skip
    return attrs, [np.round(values(rng, size, dtype, special=False)).astype(dtype)]


@case("CumSum", "CumProd", dtypes=("float32", "float64", "int32", "int64"))
def _scan(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    attrs = {"axis": axis(rng, len(size)), "exclusive": int(rng.integers(0, 2)), "reverse": int(rng.integers(0, 2))}
    return attrs, [values(rng, size, dtype, special=False)]


@case("TopK", dtypes=("float32", "float64", "int64", "int32"))
def _top_k(rng: Rng, dtype: str) -> Case:
    size = shape(rng, 1, 3)
    where = axis(rng, len(size))
    attrs = {"axis": where, "k": int(rng.integers(1, size[where] + 1)), "largest": int(rng.random() < 0.6)}
    return attrs, [np.round(values(rng, size, dtype, special=False)).astype(dtype)]
