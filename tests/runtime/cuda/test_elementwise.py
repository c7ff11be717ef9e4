"""Elementwise operators on the emulated device against ONNX Runtime, special values included."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.dtypes import numpy_dtype
from graphs.operators import accepts

from .harness import needs_compiler
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
    ("Clip", {"max": 0.5}), ("Clip", {"min": 2.0, "max": 1.0}),
)


@pytest.mark.parametrize("dtype", sorted(RTOL))
def test_functions_of_one_float(dtype: str) -> None:
    cases = Cases()
    for view in (False, True):
        x = cases.input(numbers(dtype).reshape(12, 4), view)
        for op in EXACT:
            cases.add(op, x, exact=True)
        for op in FUNCTIONS:
            cases.add(op, x)
        for op, attrs in SHAPED:
            cases.add(op, x, **attrs)
    cases.check()
