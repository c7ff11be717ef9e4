"""A graph that grows at random: values so far, how to choose among them, and how to add a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphs.builder import Builder, Value
from graphs.constants import Constant
from graphs.dims import DimLike, depends_on_data, evaluate, symbol, symbols
from graphs.dtypes import FLOATS, numpy_dtype
from graphs.errors import EgraftError
from graphs.ir import Node
from graphs.operators import accepts, find
from graphs.types import TensorType, Type
from graphs.versions import write_node

FLOAT = ("float32", "float16", "float64")
INTEGER = ("int32", "int64")
NUMBER = (*FLOAT, *INTEGER)
ANY = (*NUMBER, "bool")
LIKELY = ("float32", "float32", "float32", "float32", "float16", "float64", "int64", "int32", "bool")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 6.0, 1e-5, np.inf, -np.inf, np.nan)
# ONNX Runtime gives garbage, whatever was in its memory, where these sum over nothing or see no step of a sequence.
UNWRITTEN = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "LSTM", "GRU", "RNN")
MAX_ELEMENTS = 4096
MAX_RANK = 5
TYPICAL = 4  # size of a symbol, to bound what grows


class Refused(Exception):
    """A recipe that found no operands; another one is tried."""


class Maker:
    """A builder with a memory of values and a source of chance.

    `smooth`: results are compared up to rounding. Then nothing discontinuous (comparisons, Floor, casts to integers)
    may read a value that rounding can move; `rough` holds the names of those.
    """

    def __init__(self, seed: int, smooth: bool, opset: int = 0) -> None:
        self.rng = np.random.default_rng((seed, 77))
        self.smooth = smooth
        self.opset = int(self.rng.integers(13, 22))
        self.opset = opset or self.opset
        self.depth = 0  # of nested graphs around this one
        self.b = Builder(f"fuzz {seed}", opset=self.opset)
        self.values: list[Value] = []
        self.rough: set[str] = set()
        sizes: list[DimLike] = [1, 2, 3, 4, 5]
        if self.chance(0.4):
            sizes += [symbol("n"), symbol("m"), symbol("n")]
        if self.chance(0.08):
            sizes.append(0)
        self.sizes = sizes
        self.dtypes = LIKELY if self.chance(0.7) else ("float32",)

    # Chance

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < share)

    def one_of(self, items: Sequence[Any]) -> Any:
        """Any of the items."""
        if not len(items):
            raise Refused
        return items[int(self.rng.integers(0, len(items)))]

    def number(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        if high < low:
            raise Refused
        return int(self.rng.integers(low, high + 1))

    def axis(self, value: Value, negative: bool = True) -> int:
        """An axis of a value, counted from either end."""
        rank = rank_of(value)
        axis = self.number(0, rank - 1)
        return axis - rank if negative and self.chance(0.4) else axis

    def permutation(self, count: int) -> list[int]:
        """An order of axes."""
        return [int(axis) for axis in self.rng.permutation(count)]

    # Operands

    def shape(self, rank: int) -> tuple[DimLike, ...]:
        """Sizes out of those of this graph."""
        return tuple(self.one_of(self.sizes) for _ in range(rank))

    def input(self, dtype: str, shape: Sequence[DimLike]) -> Value:
        """A new input; none has a size that data decides."""
        if any(map(depends_on_data, shape)):
            raise Refused
        value = self.b.input(f"x{len(self.b._graph.inputs)}", dtype, list(shape))
        self.values.append(value)
        return value

    def pick(self, dtypes: Sequence[str] = ANY, low: int = 0, high: int = MAX_RANK, sure: bool = False,
             where: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value of these types and ranks, the newest more often; a new input where there is none, or by chance.

        `sure`: a discontinuous operator is going to read it.
        """
        fit = [value for value in self.values if value.dtype in dtypes and value.shape is not None
               and low <= rank_of(value) <= high and not (sure and self.smooth and value.name in self.rough)
               and where(value)]
        if fit and self.chance(0.95):
            return fit[-1] if self.chance(0.45) else self.one_of(fit)
        likely = [each for each in self.dtypes if each in dtypes] or list(dtypes)
        for _ in range(4):
            shape = self.shape(self.number(low, min(high, max(low, self.one_of([0, 1, 2, 2, 3, 3, 4])))))
            if where(Value(_Pretend(self.one_of(likely), shape), "")):  # type: ignore[arg-type]
                return self.input(self.one_of(likely), shape)
        raise Refused

    def beside(self, value: Value, constant: float = 0.5) -> Value:
        """A second operand that broadcasts with the first: another value, an input, or a constant."""
        assert value.shape is not None and value.dtype is not None
        if self.chance(constant):
            return self.constant(value.dtype, self.part_of(value.shape))
        fit = [each for each in self.values if each.dtype == value.dtype and each.shape is not None
               and _broadcasts(each.shape, value.shape)]
        if fit and self.chance(0.8):
            return self.one_of(fit)
        return self.input(value.dtype, self.part_of(value.shape, static=False))

    def part_of(self, shape: Sequence[DimLike], static: bool = True) -> tuple[DimLike, ...]:
        """A shape that broadcasts to another one."""
        kind = self.number(0, 4)
        if kind == 0:
            return ()
        if kind == 1 and shape and (not static or isinstance(shape[-1], int)):
            return (shape[-1],)
        cut = shape[self.number(0, len(shape)) :] if kind == 2 else shape
        return tuple(1 if (static and not isinstance(dim, int)) or self.chance(0.3) else dim for dim in cut)

    def constant(self, dtype: str, shape: Sequence[DimLike]) -> Value:
        """A constant: splats and special numbers as often as ordinary ones."""
        sizes = tuple(dim if isinstance(dim, int) else 1 for dim in shape)
        kind = self.number(0, 9)
        if dtype == "bool":
            array = np.asarray(self.rng.random(sizes) < 0.5)
        elif dtype in INTEGER:
            array = np.asarray(self.rng.integers(-3, 5, sizes)) if kind < 5 else np.full(sizes, self.number(-2, 3))
        elif kind < 4:
            array = np.asarray(self.rng.standard_normal(sizes)) * self.one_of([1, 1, 4])
        elif kind < 9:
            array = np.full(sizes, self.one_of(SPECIAL[:9]))
        else:
            array = np.asarray(self.rng.choice(SPECIAL, sizes))
        return self.b.constant(Constant.of(np.asarray(array).astype(numpy_dtype(dtype))))

    def weights(self, dtype: str, shape: Sequence[DimLike], scale: float = 1.0) -> Value:
        """A constant of ordinary numbers."""
        sizes = [dim for dim in shape if isinstance(dim, int)]
        if len(sizes) < len(shape):
            raise Refused
        array = np.asarray(self.rng.standard_normal(sizes) * scale)
        return self.b.constant(Constant.of(array.astype(numpy_dtype(dtype))))

    # Nodes

    def op(self, op: str, *inputs: Any, **attrs: Any) -> Value:
        """Add a node of one output."""
        made = self.ops(op, *inputs, **attrs)
        assert isinstance(made, Value)
        return made

    def ops(self, op: str, *inputs: Any, **attrs: Any) -> Any:
        """Add a node; refused where this opset or this operator has no such form."""
        domain = attrs.get("domain", "")
        for position, each in enumerate(inputs):
            if isinstance(each, Value) and not (each.dtype and accepts(op, self.opset, each.dtype, position, domain)):
                raise Refused
        if op in UNWRITTEN and any(isinstance(each, Value) and each.shape and 0 in each.shape for each in inputs):
            raise Refused
        if op in ("Div", "Mod") and any(isinstance(each, Value) and each.dtype not in FLOATS for each in inputs):
            raise Refused  # ONNX Runtime ends the process where an integer is divided by zero
        try:
            made = self.b.op(op, *inputs, **attrs)
        except (EgraftError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise Refused from error
        several = tuple(value for value in (made if isinstance(made, tuple) else (made,)) if value.name)
        node = self.b._graph.nodes[-1]
        if node.is_opaque or not all(_usable(value.type) for value in several) or not self._writable(node):
            self.b._graph.nodes.pop()
            raise Refused
        self._roughen(op, node.inputs, several)
        self.values += several
        return made

    def _writable(self, node: Node) -> bool:
        def type_of(name: str) -> Type | None:
            return self.b.scope.lookup(name)[0]

        return bool(node.domain) or not isinstance(write_node(node, self.opset, type_of), str)

    def _roughen(self, op: str, inputs: Sequence[str], outputs: Sequence[Value]) -> None:
        record = find(op)
        moved = record is not None and record.movement
        for value in outputs:
            computed = value.dtype in FLOATS and not moved
            if computed or any(name in self.rough for name in inputs):
                self.rough.add(value.name)


class _Scope:
    def __init__(self, type_: TensorType) -> None:
        self.type = type_

    def lookup(self, name: str) -> tuple[TensorType, None, None]:
        return self.type, None, None


class _Pretend:
    """Just enough of a builder for a Value that is not there yet."""

    def __init__(self, dtype: str, shape: tuple[DimLike, ...]) -> None:
        self.scope = _Scope(TensorType(dtype, shape))


def rank_of(value: Value) -> int:
    """Number of axes."""
    if value.shape is None:
        raise Refused
    return len(value.shape)


def size_of(value: Value, axis: int) -> int:
    """A size that must be a number."""
    assert value.shape is not None
    dim = value.shape[axis]
    if not isinstance(dim, int):
        raise Refused
    return dim


def typical(shape: Sequence[DimLike]) -> int:
    """Elements where every symbol has its typical size."""
    count = 1
    for dim in shape:
        size = evaluate(dim, dict.fromkeys(symbols(dim), TYPICAL))
        count *= TYPICAL if size is None else size
    return count


def _usable(type_: object) -> bool:
    return (isinstance(type_, TensorType) and type_.shape is not None and len(type_.shape) <= MAX_RANK
            and typical(type_.shape) <= MAX_ELEMENTS)


def _broadcasts(part: Sequence[DimLike], whole: Sequence[DimLike]) -> bool:
    if len(part) > len(whole) + 1:
        return False
    return all(a == b or a == 1 or b == 1 for a, b in zip(reversed(part), reversed(whole)))
