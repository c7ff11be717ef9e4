"""A graph of ONNX operators as expressions over the loops of one kernel.

`Lowering` starts at the results and asks for each value where it is needed and through which view. Movement operators
only change the view; elementwise operators become expressions; reductions run over the *columns*, which all of them
share. What an expression does not depend on is not in its loops: a row's mean is computed once for the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import prod

import numpy as np

from graphs import dtypes
from graphs.dims import Expr
from graphs.errors import EgraftError
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.types import TensorType

from .. import address
from ..scalar import Scalar
from .views import ZERO, Coordinate, Domain, NotFusable, View, broadcast, digits, loops_of

FAMILIES = ("elementwise", "indexing", "losses", "movement", "normalization", "pooling", "product", "reduction",
            "resampling")
DTYPES = frozenset({"float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                    "bool", "float16", "bfloat16"})  # fmt: skip
# Each operator's result is rounded, as without fusion; inside of an operator, and in sums, there are floats of 32 bits.
_ROUNDED = {"float16": "eg_f16_to_float(eg_float_to_f16(a0))", "bfloat16": "eg_bf16_to_float(eg_float_to_bf16(a0))"}
MOST_ITEMS = 400  # of one kernel: beyond, views multiply what is computed


@dataclass(frozen=True, slots=True)
class Address:
    """An element of an input (or output) for each trip of the loops: `start + sum(stride * loop)`, in elements. Loops
    below 0 stand for indices (`Lowering.index`)."""

    tensor: str
    place: Coordinate


@dataclass(frozen=True, slots=True)
class Item:
    """A number that a kernel computes. `kind` is `load` (of `address`), `literal`, `op` (an expression over the values
    `a0`, `a1`, ... of `args`), `fold` (`text` names how the columns of its argument are combined), `count` (of the
    columns) or `index` (its argument as a place on an axis: negative ones count from the end, those outside of it
    are a fault). The `args` of a load are the indices that its address reads. `cost` is about how many instructions it
    takes; `helper`: the dtype whose functions the text calls."""

    kind: str
    dtype: str
    text: str = ""
    args: tuple[int, ...] = ()
    address: Address | None = None
    cost: int = 1
    helper: str = ""


@dataclass(frozen=True)
class Held:
    """A product's element at `place` (of its result, row-major) lies at `address`."""

    place: Coordinate
    address: Address


Lower = Callable[["Lowering", Node, int, View], int]


@dataclass
class Values:
    """A graph whose sizes are known: shapes and strides (in elements) of what it reads. `guarded`: an index outside of
    its axis picks 0, since nobody can be told of it."""

    graph: Graph
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    strides: dict[str, tuple[int, ...]]
    guarded: bool = False
    producers: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.producers = self.graph.producers()

    @staticmethod
    def of(graph: Graph, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]]) -> Values:
        """Infer all shapes from those of the inputs."""
        known = graph.copy()
        known.types = {name: TensorType(_dtype(graph, name), tuple(shapes[name])) for name in graph.inputs}
        known.declared = {}
        infer(known)
        found: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, str] = {}
        for name in {*known.types, *known.constants}:
            type_ = known.type_of(name)
            if type_ is None or type_.shape is None or any(isinstance(dim, Expr) for dim in type_.shape):
                raise NotFusable(f"the shape of {name!r} is unknown")
            found[name], kinds[name] = type_.shape, type_.dtype  # type: ignore[assignment]
        steps = {name: tuple(strides.get(name, address.contiguous(found[name]))) for name in found}
        return Values(known, found, kinds, steps)

    @staticmethod
    def for_kernels(graph: Graph, shapes: Mapping[str, Sequence[int]],
                    strides: Mapping[str, Sequence[int]]) -> Values:
        """The same for a graph that kernels are made of. Raises NotFusable where there can be none."""
        try:
            found = Values.of(graph, shapes, strides)
        except EgraftError as reason:
            raise NotFusable(str(reason)) from reason
        if any(name not in found.shapes for name in graph.outputs):
            raise NotFusable("an output of unknown size")
        if any(0 in shape for shape in found.shapes.values()):
            raise NotFusable("a tensor without elements")
        return found


def whole_shape(values: Values) -> tuple[int, ...]:
    """The shape that a kernel walks over: that of its largest output. Others have it too, or are 1 where it is not."""
    shapes = [values.shapes[name] for name in values.graph.outputs]
    whole = max(shapes, key=prod)
    if any(len(each) != len(whole) or any(size not in (1, own) for size, own in zip(each, whole)) for each in shapes):
        raise NotFusable("outputs of different shapes")
    return whole


def _dtype(graph: Graph, name: str) -> str:
    type_ = graph.type_of(name)
    if type_ is None:
        raise NotFusable(f"the type of {name!r} is unknown")
    return type_.dtype


class Lowering:
    """The items of one kernel for one domain. `results` are those of the graph's outputs.

    A matrix product is no item: the kernel reads what has been computed before it. `product` is its node, and `held`
    says where its result lies, if that is elsewhere than in a tensor of its own.
    """

    def __init__(self, values: Values, domain: Domain, exact: bool, held: Held | None = None) -> None:
        self.values, self.domain, self.exact, self.held = values, domain, exact, held
        self.trips = domain.trips
        self.product: Node | None = None
        self.columns: tuple[int, ...] | None = None  # loops that reductions run over, once there is one
        self.items: list[Item] = []
        self.dependent: list[frozenset[int]] = []  # loops that each item depends on
        self._numbers: dict[Item, int] = {}
        self._known: dict[tuple[str, View], int] = {}
        self.indices: list[int] = []  # the item of each index: the loop `~number` stands for it
        self.whole = whole_shape(values)
        self.results = []
        for name in values.graph.outputs:
            if name not in values.producers:
                raise NotFusable("an output that no node makes")
            self.results.append(self.value(name, self.stored(name)))
        for name in values.graph.outputs:  # one of a row is written once, after the walks over the columns
            apart = set(domain.loops) - loops_of(self.stored(name))
            if apart and apart != set(domain.loops) & set(self.columns or ()):
                raise NotFusable("outputs of different shapes")
        if not set(self.indices) <= self.needed():
            raise NotFusable("an index that nothing is read by: it would not be checked")

    def stored(self, name: str) -> View:
        """Through which view an output is written."""
        return broadcast(self.domain.view, self.values.shapes[name], self.whole)

    def value(self, name: str, view: View) -> int:
        """The item that holds a value's element."""
        key = name, view
        if key not in self._known:
            self._known[key] = self._value(name, view)
        return self._known[key]

    def _value(self, name: str, view: View) -> int:
        values = self.values
        dtype = values.dtypes[name]
        if dtype not in DTYPES:
            raise NotFusable(f"elements of type {dtype}")
        node = values.producers.get(name)
        if node is not None:
            lower = rules().get((node.domain, node.op)) if not node.is_opaque else None
            if lower is None:
                raise NotFusable(f"operator {node.op}")
            found = lower(self, node, node.outputs.index(name), view)
            text = _ROUNDED.get(dtype)
            if text is None or self.items[found].kind in ("load", "literal") or self.items[found].text == text:
                return found
            return self.op(text, dtype, found, cost=2)
        constant = values.graph.constants.get(name)
        if constant is not None and constant.facts.splat is not None and constant.size:
            return self.literal(constant.facts.splat, dtype)
        return self._load(name, dtype, view, values.strides[name])

    def _load(self, tensor: str, dtype: str, view: View, strides: Sequence[int]) -> int:
        return self._load_at(Address(tensor, self.place(view, strides)), dtype)

    def _load_at(self, address: Address, dtype: str) -> int:
        indices = tuple(self.indices[~loop] for loop, _ in address.place.terms if loop < 0)
        return self._add(Item("load", dtype, args=indices, address=address), self.loops_of((address.place,)))

    @staticmethod
    def place(view: View, strides: Sequence[int]) -> Coordinate:
        """Where the element of a tensor lies."""
        place = ZERO
        for coordinate, stride in zip(view, strides):
            place = place.plus(coordinate.scaled(stride))
        return place

    def product_of(self, node: Node, view: View) -> int:
        """The element of a matrix product without what its operator adds to it."""
        if self.product not in (None, node):
            raise NotFusable("two products")
        self.needs_rounding(node.op)
        self.product = node
        (name,) = node.outputs
        place = self.place(view, address.contiguous(self.shape(name)))
        if self.held is None:
            return self._load_at(Address(name, place), self.dtype(name))
        assert place == self.held.place
        return self._load_at(self.held.address, self.dtype(name))

    def literal(self, value: float | int | bool, dtype: str) -> int:
        """A number."""
        return self._add(Item("literal", dtype, Scalar.of(dtype).literal(value), cost=0), frozenset())

    def op(self, text: str, dtype: str, *args: int, cost: int = 1, helper: str = "") -> int:
        """An expression over `a0`, `a1`, ..., whose value is one of `dtype`."""
        depends = frozenset[int]().union(*(self.dependent[each] for each in args))
        return self._add(Item("op", dtype, text, args, cost=cost, helper=helper or dtype), depends)

    def fold(self, how: str, arg: int) -> int:
        """The columns of an item combined: `how` is `sum`, `product`, `larger` or `smaller`."""
        depends = self.dependent[arg] - set(self.columns or ())
        return self._add(Item("fold", self.items[arg].dtype, how, (arg,)), depends)

    def index(self, item: int, size: int) -> Coordinate:
        """A place on an axis of `size` that only the run knows, as a coordinate."""
        if not Scalar.of(self.items[item].dtype).is_integer:
            raise NotFusable(f"an index of type {self.items[item].dtype}")
        if size == 1:  # a view reads nothing of it: there would be no check
            raise NotFusable("an index of an axis of one element")
        found = self._add(Item("index", "int64", str(size), (item,), cost=2), self.dependent[item])
        if found not in self.indices:
            self.indices.append(found)
        loop = ~self.indices.index(found)
        self.trips[loop] = size
        return Coordinate(0, ((loop, 1),))

    def picked(self, item: int, place: Coordinate) -> int:
        """What is read at an index: the item, or 0 where a guarded index lies outside of its axis."""
        if not self.values.guarded:
            return item
        dtype = self.items[item].dtype
        index = self.indices[~place.terms[0][0]]
        return self.op("EG_INSIDE(a0) ? a1 : a2", dtype, index, item, self.literal(0, dtype))

    def needed(self) -> set[int]:
        """The items that results are made of."""
        found: set[int] = set()
        stack = list(self.results)
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                stack.extend(self.items[number].args)
        return found

    def loops_of(self, view: View) -> frozenset[int]:
        """The loops that a view depends on, those of its indices among them."""
        found: set[int] = set()
        for loop in loops_of(view):
            found |= self.dependent[self.indices[~loop]] if loop < 0 else {loop}
        return frozenset(found)

    def count(self, dtype: str) -> int:
        """How many columns there are."""
        return self._add(Item("count", dtype), frozenset())

    def _add(self, item: Item, depends: frozenset[int]) -> int:
        if item not in self._numbers:
            if len(self.items) >= MOST_ITEMS:
                raise NotFusable(f"more than {MOST_ITEMS} expressions")
            self._numbers[item] = len(self.items)
            self.items.append(item)
            self.dependent.append(depends)
        return self._numbers[item]

    def reduced(self, view: View, shape: Sequence[int], axes: Sequence[int], kept: bool = True) -> View:
        """How the operand of a reduction over `axes` is read where its result is read through `view` (with the reduced
        dimensions if `kept`): the loops that the result does not depend on are the columns."""
        rows = self.loops_of(view)
        free = tuple(loop for loop in self.domain.loops if loop not in rows)
        wanted = [shape[axis] for axis in axes]
        if not free and prod(wanted) != 1:
            own = tuple(loop for loop in self.columns or () if loop not in self.domain.loops and loop not in rows)
            free = own or self._new_columns(wanted)
        if prod(self.trips[loop] for loop in free) != prod(wanted):
            raise NotFusable("a reduction over other columns than the kernel's")
        if self.columns is None:
            self.columns = free
        if self.columns != free:
            raise NotFusable("reductions over different columns")
        flat, stride = ZERO, 1
        for loop in reversed(free):
            flat = flat.plus(Coordinate(0, ((loop, stride),)))
            stride *= self.trips[loop]
        inside = iter(digits(flat, wanted, self.trips))
        outside = iter(view)
        found = []
        for axis in range(len(shape)):
            if axis in axes:
                found.append(next(inside))
                if kept:
                    next(outside)
            else:
                found.append(next(outside))
        return tuple(found)

    def _new_columns(self, sizes: Sequence[int]) -> tuple[int, ...]:
        if self.columns:
            raise NotFusable("reductions over different columns")
        first = max(self.trips, default=-1) + 1
        for loop, size in enumerate(sizes, first):
            self.trips[loop] = size
        return tuple(range(first, first + len(sizes)))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values.shapes[name]

    def dtype(self, name: str) -> str:
        """The element type of a value."""
        return self.values.dtypes[name]

    def operand(self, node: Node, index: int, view: View) -> int:
        """An operand of an elementwise operator whose result is read through `view`."""
        name = node.inputs[index]
        return self.value(name, broadcast(view, self.shape(name), self.shape(node.outputs[0])))

    def needs_rounding(self, what: str) -> None:
        """Refuse what differs from the unfused kernels in the last bits, where that is not allowed."""
        if self.exact:
            raise NotFusable(f"{what}, whose bits would not be those of the unfused kernel")


@cache
def rules() -> dict[tuple[str, str], Lower]:
    """How each operator is lowered, by (domain, name)."""
    found: dict[tuple[str, str], Lower] = {}
    for family in FAMILIES:
        for name, lower in import_module(f"{__package__}.{family}").LOWERINGS.items():
            domain, _, op = name.rpartition(".")
            found[domain, op] = lower
    return found


def is_floating(dtype: str) -> bool:
    """A float of any size."""
    return dtypes.is_float(dtype)


def computed(dtype: str) -> np.dtype:
    """What floats of an element type are computed in."""
    return np.dtype(np.float64 if dtype == "float64" else np.float32)
