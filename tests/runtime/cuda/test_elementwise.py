"""Elementwise operators on the emulated device against ONNX Runtime, special values included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.dtypes import ONNX_NUMBER, numpy_dtype
from graphs.operators import accepts
from runtime.codegen.elementwise import Operand, pointwise
from runtime.codegen.emulation import Faults
from runtime.codegen.scalar import DTYPES
from runtime.cuda.device import Place
from runtime.cuda.emulated import EmulatedDevice

from .harness import emulate, needs_compiler
from .oracle import agree

pytestmark = needs_compiler
nan, inf = np.nan, np.inf
RTOL = {"float32": 4e-6, "float64": 1e-13, "float16": 1e-3, "bfloat16": 8e-3}
TINY = {"float32": 1e-42, "float64": 1e-310, "float16": 3e-7, "bfloat16": 1e-39}


def numbers(dtype: str) -> np.ndarray:
    """Ordinary numbers and special ones, 48 of them."""
    if dtype == "bool":
        return np.arange(48) % 3 == 0
    if dtype in RTOL:
        huge = 6e4 if dtype == "float16" else 3e38
        special = [nan, inf, -inf, 0.0, -0.0, TINY[dtype], -TINY[dtype], huge, -huge, 0.5, 1.5, 2.5, -0.5, -1.0, 1.0]
        return np.concatenate([special, np.linspace(-9.3, 9.7, 33)]).astype(numpy_dtype(dtype))
    info = np.iinfo(dtype)
    low = -20 if info.min < 0 else 0
    edges = [info.min, info.max, info.min + 1, info.max - 1, 0, 1]
    return np.concatenate([np.array(edges, dtype), np.arange(low, low + 42).astype(dtype)])


class Cases:
    """A graph that has one output for each node under test."""

    def __init__(self, opset: int = 24) -> None:
        self.builder = Builder("cases", opset=opset, opsets={"com.microsoft": 1})
        self.opset = opset
        self.feeds: dict[str, np.ndarray] = {}
        self.exact: set[str] = set()

    def input(self, array: np.ndarray, view: bool = False) -> Value:
        """An input; with `view` every second element, backwards, of what is fed."""
        name = f"i{len(self.feeds)}"
        fed = np.repeat(array[::-1], 2, axis=0) if view else array
        value = self.builder.input(name, array.dtype.name, fed.shape)
        self.feeds[name] = fed
        if not view:
            return value
        return self.builder.Slice(value, starts=[-1], ends=[-(2**62)], axes=[0], steps=[-2])

    def add(self, op: str, *inputs: Value | np.ndarray, exact: bool = False, domain: str = "", **attrs: object) -> None:
        if not domain and not all(accepts(op, self.opset, str(each.dtype), at) for at, each in enumerate(inputs)):
            return  # ONNX has no such node
        made = self.builder.op(op, *inputs, domain=domain, **attrs)
        assert isinstance(made, Value)
        name = f"{op}_{len(self.builder._graph.outputs)}"
        self.builder.output(made, name)
        if exact:
            self.exact.add(name)

    def check(self) -> None:
        agree(self.builder.graph(), self.feeds, rtol=RTOL, exact=self.exact)


EXACT = ("Neg", "Abs", "Sqrt", "Ceil", "Floor", "Round", "IsNaN", "IsInf", "Sign")
FUNCTIONS = ("Reciprocal", "Exp", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh",
             "Atanh", "Erf", "Tanh", "Log", "Relu", "Sigmoid", "Softsign", "HardSwish", "Mish", "Softplus")
SHAPED: tuple[tuple[str, dict[str, object]], ...] = (
    ("LeakyRelu", {"alpha": 0.3}), ("Elu", {"alpha": 0.7}), ("Selu", {}), ("Celu", {"alpha": 2.0}),
    ("ThresholdedRelu", {"alpha": 0.4}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("Shrink", {"bias": 0.25, "lambd": 0.6}), ("Gelu", {"approximate": "none"}), ("Gelu", {"approximate": "tanh"}),
    ("Swish", {"alpha": 1.3}), ("IsInf", {"detect_negative": 0}), ("Clip", {"min": -1.5, "max": 2.0}),
    ("Clip", {"min": 2.0, "max": 1.0}),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_one_float(dtype: str) -> None:
    cases = Cases()
    x = cases.input(numbers(dtype).reshape(12, 4))
    for op in EXACT:
        cases.add(op, x, exact=True)
    for op, attrs in (*((op, {}) for op in FUNCTIONS), *SHAPED):
        cases.add(op, x, **attrs)
    cases.check()


def test_functions_of_one_small_float() -> None:
    """They are those of float32, rounded once."""
    cases = Cases()
    for dtype in ("float16", "bfloat16"):
        x = cases.input(numbers(dtype).reshape(12, 4), view=True)
        for op in EXACT:
            cases.add(op, x, exact=True)
        for op in ("Exp", "Sigmoid", "Softplus"):
            cases.add(op, x)
        cases.add("Clip", x, min=-1.5, max=2.5)
        cases.add("Elu", x, alpha=0.3)
    cases.check()


COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
FULLY = {"float32", "bfloat16", "int8", "uint64"}  # other types have a few operators each


def test_pairs_of_floats() -> None:
    """Every number with every other by broadcasting, one of them read through a view."""
    cases = Cases()
    for dtype in sorted(RTOL):
        a, b = cases.input(numbers(dtype).reshape(-1, 1)), cases.input(numbers(dtype)[:15], view=True)
        divisors = np.array([3, -2.5, 7, -0.75], numpy_dtype(dtype))
        for op in ("Add", "Sub", "Mul", "Div") if dtype in FULLY else ("Mul", "Div"):
            cases.add(op, a, b, exact=True)
        for op in COMPARISONS if dtype in FULLY else ("Less",):
            cases.add(op, a, b)
        cases.add("Mod", a, divisors, fmod=1, exact=True)
        cases.add("Max", a, b, a)
        if dtype in FULLY:
            cases.add("PRelu", a, np.array([0.25], numpy_dtype(dtype)), exact=True)
            cases.add("Sum", a, b, a, exact=True)
            cases.add("Mean", a, b, b)
            cases.add("Min", a, a, b)
    cases.check()


def test_pairs_of_integers() -> None:
    """Sums and products wrap around, quotients are cut."""
    cases = Cases()
    for dtype in sorted(DTYPES - {"bool", *RTOL}):
        is_signed = dtype.startswith("i")
        a, b = cases.input(numbers(dtype)[::2].reshape(-1, 1)), cases.input(numbers(dtype)[:6], view=True)
        divisors = np.array([-3, 2, -5, 7] if is_signed else [3, 2, 5, 7], dtype)
        for op in ("Add", "Sub", "Mul", "Max", "Min", *COMPARISONS) if dtype in FULLY else ("Mul",):
            cases.add(op, a, b)
        cases.add("Div", a, divisors)
        cases.add("Mod", a, divisors)
        if dtype in FULLY:
            cases.add("Mod", a, divisors, fmod=1)
            for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
                cases.add(op, a, b)
            for op in ("BitwiseNot", "Neg", "Abs", "Sign", "Relu"):
                cases.add(op, a)
            cases.add("Clip", a, min=1, max=5)
        if dtype in ("uint8", "uint64"):
            cases.add("BitShift", a, np.array([0, 1, 5, 7], dtype), direction="LEFT")
            cases.add("BitShift", a, np.array([0, 1, 5, 7], dtype), direction="RIGHT")
    cases.check()


def test_powers() -> None:
    cases = Cases()
    x = np.concatenate([numbers("float32"), [2.0, 3.0, 0.1]]).astype(np.float32)
    for base in ("float32", "float64", "float16"):
        a = cases.input(x.astype(base).reshape(-1, 1))
        for exponents in (np.array([0, 1, 2, 3, 0.5, -1, -2.5], base), np.array([0, 1, 2, 3, -1], np.int64)):
            cases.add("Pow", a, exponents)
    cases.add("Pow", cases.input(x.reshape(-1, 1)), np.array([2.0, -0.5]))
    small = cases.input(np.arange(-5, 6, dtype=np.int32).reshape(-1, 1))
    cases.add("Pow", small, np.array([0, 1, 2, 5, 9], np.int32))
    cases.add("Pow", small, np.array([0, 1, 2, 5, 9], np.int64))
    cases.add("Pow", small, np.array([2, 3], np.float32))
    cases.add("Pow", cases.input(np.array([-3, 7, 1 << 20], np.int64).reshape(-1, 1)), np.array([0, 1, 2], np.int64))
    cases.check()


def test_powers_of_integers_that_no_other_runtime_has_exactly() -> None:
    """Large powers wrap around, negative ones are cut."""
    b = Builder("powers", opset=21)
    x = b.input("x", "int64", [5])
    for index, exponent in enumerate((31, 40, -1, -2)):
        b.output(b.Pow(x, np.array(exponent, np.int64)), f"y{index}")
    values = [3, 1, -1, -7, 2]
    found, _ = emulate(b.graph(), {"x": np.array(values)})
    for array, exponent in zip(found, (31, 40)):
        assert array.tolist() == [(value**exponent + 2**63) % 2**64 - 2**63 for value in values]
    assert found[2].tolist() == [0, 1, -1, 0, 0]
    assert found[3].tolist() == [0, 1, 1, 0, 0]


def test_division_by_zero_of_integers_and_the_quotient_that_overflows_are_no_fault() -> None:
    b = Builder("division", opset=21)
    for dtype in ("int8", "int32", "int64", "uint32"):
        x, y = b.input(f"x{dtype}", dtype, [2]), b.input(f"y{dtype}", dtype, [2])
        b.output(b.Div(x, y), f"q{dtype}")
        b.output(b.Mod(x, y), f"r{dtype}")
    feeds = {}
    for dtype in ("int8", "int32", "int64", "uint32"):
        feeds[f"x{dtype}"] = np.array([5, np.iinfo(dtype).min], dtype)
        feeds[f"y{dtype}"] = np.array([0, -1 if dtype != "uint32" else 3], np.int64).astype(dtype)
    found, _ = emulate(b.graph(), feeds)
    low = [np.iinfo(dtype).min for dtype in ("int8", "int32", "int64", "uint32")]
    assert [array.tolist() for array in found[::2]] == [[0, each] for each in low]
    assert [array.tolist() for array in found[1::2]] == [[0, 0]] * 4


def test_logic_and_choices() -> None:
    cases = Cases()
    p, q = cases.input(numbers("bool")[:12].reshape(3, 4)), cases.input(np.array([True, False]).reshape(2, 1, 1), True)
    for op in ("And", "Or", "Xor", "Equal"):
        cases.add(op, p, q)
    cases.add("Not", p)
    for dtype in sorted(DTYPES):
        cases.add("Where", p, cases.input(numbers(dtype)[:4]), cases.input(numbers(dtype)[4:6].reshape(2, 1, 1), True),
                  exact=dtype != "bool")
    cases.check()


def test_casts() -> None:
    """Between element types, of numbers that fit into both."""
    cases = Cases()
    fitting = [0.0, 1.0, 1.5, 2.75, 100.0, 0.1]
    for source in sorted(DTYPES):
        x = cases.input(np.array(fitting).astype(numpy_dtype(source)), view=source in ("float64", "int8"))
        wanted = DTYPES if source == "float32" else {"float32", "float16", "int64", "bool"}
        for target in sorted(wanted - {source}):
            cases.add("Cast", x, to=ONNX_NUMBER[target], exact=True)
    special = cases.input(numbers("float32"))
    for target in ("float64", "float16", "bfloat16", "bool"):
        cases.add("Cast", special, to=ONNX_NUMBER[target], exact=True)
    negative = cases.input(np.array([-1.5, -100.25, -0.0, 3e4], np.float32))
    for target in ("int8", "int16", "int32", "int64"):
        x = cases.input(np.array([-1.5, -100.25, -0.0], np.float32)) if target == "int8" else negative
        cases.add("Cast", x, to=ONNX_NUMBER[target])
    wide = cases.input(np.array([-(2**63), 2**63 - 1, 2**53 + 1, -129, 256, 70000], np.int64))
    for target in ("int8", "uint8", "int16", "uint32", "uint64", "float32", "float64"):
        cases.add("Cast", wide, to=ONNX_NUMBER[target], exact=True)
    cases.add("CastLike", wide, np.zeros(1, np.float32), exact=True)
    cases.check()


def test_a_double_is_rounded_once_to_half() -> None:
    b = Builder("once", opset=21)
    b.output(b.Cast(b.input("x", "float64", [5]), to=ONNX_NUMBER["float16"]), "y")
    x = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11, -(1 + 2**-11 + 2**-40), 1e300, 65519.999999999])
    (found,), _ = emulate(b.graph(), {"x": x})
    assert found.tolist() == [1 + 2**-10, 1.0, -(1 + 2**-10), inf, 65504.0]


def test_bounds_that_are_tensors_need_no_value_before_the_run() -> None:
    b = Builder("bounds", opset=21)
    x, low, high = b.input("x", "float32", [48]), b.input("low", "float32", []), b.input("high", "float32", [])
    b.output(b.Clip(x, low, high), "both")
    b.output(b.Clip(x, None, high), "upper")
    finite = np.nan_to_num(numbers("float32"), nan=3.0)
    feeds = {"x": finite, "low": np.array(-2, np.float32), "high": np.array(1.5, np.float32)}
    executor = agree(b.graph(), feeds, rtol=RTOL, exact=["both", "upper"])
    assert not executor.unplannable


def test_contrib_activations() -> None:
    cases = Cases(opset=21)
    x, bias = cases.input(np.linspace(-6, 6, 24, dtype=np.float32).reshape(6, 4)), np.arange(4, dtype=np.float32)
    for inputs in ((x,), (x, bias)):
        cases.add("FastGelu", *inputs, domain="com.microsoft")
    cases.add("Gelu", x, domain="com.microsoft")
    cases.add("BiasGelu", x, bias, domain="com.microsoft")
    cases.add("QuickGelu", x, domain="com.microsoft")
    cases.add("QuickGelu", x, domain="com.microsoft", alpha=0.7)
    cases.check()


def test_dropout_outside_of_training() -> None:
    b = Builder("dropout", opset=21)
    y, mask = b.op("Dropout", b.input("x", "float32", [2, 3]), outputs=2)
    b.output(y, "y")
    b.output(mask, "mask")
    agree(b.graph(), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, rtol=RTOL, exact=["y"])


def test_ranks_and_sizes_at_the_edge() -> None:
    cases = Cases()
    scalar, empty = cases.input(np.array(2.5, np.float32)), cases.input(np.zeros((2, 0, 3), np.float32))
    one = cases.input(np.full((1, 1, 1), 3, np.float32))
    for left, right in ((scalar, scalar), (scalar, empty), (empty, one), (one, scalar)):
        cases.add("Sub", left, right, exact=True)
    cases.add("Exp", scalar)
    cases.add("Relu", empty)
    cases.add("Where", np.array(True), scalar, one)
    cases.check()


def test_what_kernels_do_not_know_is_left_to_numpy() -> None:
    b = Builder("left", opset=21)
    x = b.input("x", "float8_e4m3fn", [4])
    b.output(b.Cast(x, to=ONNX_NUMBER["float32"]), "y")
    b.output(b.Reshape(b.Transpose(b.Reshape(x, [2, 2]), perm=[1, 0]), [4]), "z")
    feeds = {"x": np.array([0.5, 1, -2, 448]).astype(numpy_dtype("float8_e4m3fn"))}
    found, executor = emulate(b.graph(), feeds)
    assert found[0].tolist() == [0.5, 1, -2, 448] and found[1].astype(float).tolist() == [0.5, -2, 1, 448]
    assert [entry.split()[0] for entry in executor.on_host] == ["Cast", "Reshape"]


@pytest.mark.parametrize(("old", "new", "said"), [
    ("EG_GET(x0, i)", "EG_GET(x0, i + 1)", "read outside of the tensor"),
    ("EG_PARALLEL(i, 300)", "EG_PARALLEL(i, 301)", "outside of the tensor"),
    ("EG_PUT(y, i,", "EG_PUT(y, i / 2,", "race: two threads write one element"),
    ("EG_PUT(y, i,", "if (i != 7) EG_PUT(y, i,", "nothing has written"),
])  # fmt: skip
def test_planted_faults_are_found(old: str, new: str, said: str) -> None:
    kernel = pointwise("neg", (300,), [Operand("float32", (1,))], "float32", "-a0")
    assert old in kernel.body
    broken = replace(kernel, body=kernel.body.replace(old, new))
    device = EmulatedDevice()
    source, target = device.allocate(1200), device.allocate(1200)
    device.write(source, 0, np.arange(300, dtype=np.float32))
    places = [Place(memory, 0, "float32", (300,), (1,)) for memory in (source, target)]
    device.launch(kernel, places)
    device.forget(target, 0, 1200)
    with pytest.raises(Faults, match=said):
        device.launch(broken, places)
        device.read(target, 0, np.dtype(np.float32), (300,))
