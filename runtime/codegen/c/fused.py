"""A graph of ONNX operators as one fused kernel: planned for the sizes of a call, compiled once for its text."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.text import parse_graph
from graphs.types import TensorType

from .launch import CHAINED, NAME, Launch, Made, address_of, at, first_line, launch_of, lines, workspace
from .losses import parted
from .lowering import Lowering, Values
from .native import engine
from .operands import operands_of
from .pieces import grouped, pieces_of
from .recurrent import Recurrent, recurrent_of
from .stages import chain, cuts
from .strided import trips_of_a_row, with_turned
from .text import FAULT, Writer
from .tiles import Packs, Product, product_of
from .views import NotFusable, OutOfRange

MOST_PLANS = 64  # sets of sizes that are kept
SHARE_BYTES = 1 << 19  # what each of several threads has to move at least


@dataclass(frozen=True)
class Plan:
    """What a call does: `before`, a product or a recurrent node if there is one, then launches, on outputs of these
    shapes and dtypes."""

    launches: tuple[Launch, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    moved: int  # bytes of all arguments
    product: Product | None = None
    rooms: tuple[int, ...] = ()  # bytes of what `before` and the product write, where that is no output
    before: tuple[Launch, ...] = ()
    indexed: bool = False  # it reads by indices, or up to lengths, which may be wrong
    recurrent: Recurrent | None = None
    by_engine: str = ""  # the operator that the engine computes, with a kernel that was written by hand

    @property
    def told(self) -> str:
        """The texts for people, with a line on what has none."""
        done = (f"// {self.by_engine}: computed by the engine's own kernel, which is written by hand"
                f"{'' if self.text else '; nothing else is left to do'}") if self.by_engine else ""
        return "\n".join(filter(None, [done, self.text]))

    @property
    def text(self) -> str:
        """The texts of all kernels."""
        texts = [self.product.text] if self.product else []
        return "\n".join([*texts, *(each.written.text for each in (*self.before, *self.launches))])

    @property
    def in_tiles(self) -> bool:
        """Not a product whose whole result lies in memory for a kernel that runs after it."""
        return self.product is None or not self.rooms[-1]


_UNUSED = np.zeros(1, np.int64)  # where kernels that read nothing by indices would tell of one outside


class FusedKernel:
    """`kernel(*arrays)` computes a graph's outputs from the values of its inputs, in order.

    The graph holds plain ONNX operators; inputs have known dtypes. Every output is row-major and of its own memory.
    Sizes are those of the arrays: a plan is made for each set of shapes and strides (NotFusable where there is none),
    and texts, which hold no sizes, are compiled once. `exact`: the bits are those of the unfused NumPy kernels, apart
    from the signs and payloads of NaN. May be called by several threads at once.
    """

    def __init__(self, graph: Graph, exact: bool = False) -> None:
        self.graph, self.exact = graph, exact
        self.constants = [name for name, each in graph.constants.items()
                          if not each.size or each.facts.splat is None]
        self._kept = [np.ascontiguousarray(graph.constants[name].array).reshape(graph.constants[name].shape)
                      for name in self.constants]
        self.held = [address_of(each) for each in self._kept]
        self._plans: dict[tuple[Any, ...], Plan | NotFusable] = {}
        self._packs = Packs()  # of callers who know nothing of their arguments

    def __call__(self, *arrays: np.ndarray, threads: int = 1, out: Sequence[np.ndarray] = (),
                 packs: Packs | None = None) -> list[np.ndarray]:
        """The outputs. Raises NotFusable where no kernel can be generated for these sizes, OutOfRange (one of it) where
        an index lies outside of its axis; `out` holds anything then. `out`: row-major arrays
        of the right shapes and dtypes, apart from the inputs, to write into. `packs` says which arguments never
        change, and keeps what is made of them: it belongs to calls with those."""
        packs = packs or self._packs
        given: Sequence[np.ndarray] = _as_arrays(arrays)
        call = packs.calls.get((_layouts(given), threads))
        if call is None or not all(each.flags.aligned for each in given):
            call, given = self._called(given, threads, packs)
        plan = call.plan
        outputs = list(out) or [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        outside = np.zeros(1, np.int64) if plan.indexed else _UNUSED
        call.run([*map(address_of, given), *self.held, *map(address_of, outputs), address_of(outside)])
        if plan.indexed and outside[0]:
            raise OutOfRange("an index outside of its axis")
        return outputs

    def _called(self, arrays: Sequence[np.ndarray], threads: int, packs: Packs) -> tuple[Call, Sequence[np.ndarray]]:
        """The call for these arguments, and the arguments as it reads them: where they cannot be read as they lie, or
        there is no kernel for that, copies."""
        given = [each if is_readable(each) else np.ascontiguousarray(each).reshape(each.shape) for each in arrays]
        plan = self._planned(given)
        if isinstance(plan, NotFusable):  # perhaps only for how the arguments lie
            given = [np.ascontiguousarray(each).reshape(each.shape) for each in given]
            plan = self._planned(given)
        if isinstance(plan, NotFusable):
            raise plan
        given = [each if each is one or place not in packs.fixed else packs.copies.setdefault(place, each)
                 for place, (each, one) in enumerate(zip(given, arrays))]  # calls know where these lie
        own = _layouts(given), threads
        call = packs.calls.get(own)
        if call is None:
            if len(packs.calls) >= MOST_PLANS:
                packs.calls.clear()
            addresses = [*map(address_of, given), *self.held]
            call = packs.calls[own] = Call.of(plan, addresses, threads, packs)
        return call, given

    def call_of(self, arrays: Sequence[np.ndarray], threads: int, packs: Packs | None = None) -> Call | None:
        """How the engine is called with arrays that lie like these; None where it would read copies."""
        if not all(isinstance(each, np.ndarray) and is_readable(each) for each in arrays):
            return None
        try:
            call, given = self._called(arrays, threads, packs or self._packs)
        except NotFusable:
            return None
        return call if all(one is other for one, other in zip(given, arrays)) else None

    def bound(self, arrays: Sequence[np.ndarray], threads: int = 1, packs: Packs | None = None) -> Callable[[], None]:
        """A function that runs the kernel on these arrays, without what a call does around the engine's part: as it is
        among others (`runtime.joined`). Raises NotFusable."""
        call, given = self._called(_as_arrays(arrays), threads, packs or self._packs)
        made = [np.empty(shape, dtype) for shape, dtype in call.plan.outputs]
        outside = np.zeros(1, np.int64)
        addresses = [*map(address_of, given), *self.held, *map(address_of, made), address_of(outside)]
        kept = [given, made, outside]

        def run(kept: object = kept) -> None:
            call.run(addresses)

        return run

    def plan(self, *arrays: np.ndarray) -> Plan:
        """What a call with these arrays does."""
        typed = self.graph.copy()
        for name, each in zip(self.graph.inputs, arrays):
            type_ = self.graph.type_of(name)
            if type_ is not None and dtypes.numpy_dtype(type_.dtype) != each.dtype:
                raise NotFusable(f"{name} is {each.dtype}, the graph wants {type_}")
            typed.types[name] = TensorType(dtypes.name_of(each.dtype), each.shape)
        return plan_of(typed, {name: each.shape for name, each in zip(typed.inputs, arrays)},
                       {name: _elements(each) for name, each in zip(typed.inputs, arrays)}, self.exact)

    def _planned(self, arrays: Sequence[np.ndarray]) -> Plan | NotFusable:
        key = _layouts(arrays)
        known = self._plans.get(key)
        if known is not None:
            return known
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        try:
            found: Plan | NotFusable = self.plan(*arrays)
        except NotFusable as reason:
            found = reason
        self._plans[key] = found
        return found


def copying(source: np.ndarray, copies: Sequence[np.ndarray]) -> FusedKernel | None:
    """The kernel that copies an array into a row-major one of another shape, as a Reshape does that is no view; None
    where that is not it."""
    if len(copies) != 1 or source.dtype.kind in "OUS" or copies[0].dtype != source.dtype \
            or copies[0].size != source.size or not copies[0].flags.c_contiguous:
        return None
    return _copying(dtypes.name_of(source.dtype), source.shape, copies[0].shape)


@lru_cache(maxsize=256)
def _copying(dtype: str, shape: tuple[int, ...], to: tuple[int, ...]) -> FusedKernel:
    node = f"y = Reshape(x, shape={list(to)})"
    return FusedKernel(parse_graph(f'graph "copy" opset 18 (x: {dtype}{list(shape)}) -> (y) {{\n{node}\n}}'))


def _as_arrays(values: Sequence[Any]) -> list[np.ndarray]:
    """NumPy's functions give scalars, which have no memory to read, in place of arrays of rank 0."""
    return [each if isinstance(each, np.ndarray) else np.asarray(each) for each in values]


def _layouts(arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    return tuple([(each.shape, each.strides, each.dtype) for each in arrays])


@dataclass(frozen=True)
class Call:
    """A plan as the engine follows it. `room`: bytes of what it writes beside its outputs, first what goes from one
    step to the next (at `rooms`), then the memory of the steps."""

    plan: Plan
    steps: array[int]
    count: int
    rooms: tuple[int, ...]
    memory: int
    room: int
    made: tuple[Made, ...]

    @staticmethod
    def of(plan: Plan, addresses: Sequence[int], threads: int, packs: Packs) -> Call:
        """A call of a plan by so many threads, with arguments at these addresses; only those of what `packs` calls
        fixed are kept."""
        few = min(threads, plan.moved // SHARE_BYTES)
        made = [each.step(few) for each in plan.before]
        if plan.product is not None:
            made.append(plan.product.step(addresses, threads, packs))
        if plan.recurrent is not None:
            made.append(plan.recurrent.step(addresses, threads, packs))
        made += [each.step(few) for each in plan.launches]
        ends = list(accumulate((lines(each) for each in plan.rooms), initial=0))
        memory = len(addresses) + len(plan.outputs) + 1 + len(plan.rooms)  # behind all arguments
        made = [each.with_memory(memory) for each in made]
        return Call(plan, array("q", [word for each in made for word in each.words]), len(made), tuple(ends[:-1]),
                    ends[-1], ends[-1] + max((each.room for each in made), default=0),
                    tuple(made))

    def run(self, addresses: list[int]) -> None:
        """Run it on arguments, outputs and, as the last one, a fault at these addresses."""
        memory = workspace(self.room)
        start = first_line(memory)
        arguments = array("q", [*addresses, *(start + each for each in self.rooms), start + self.memory])
        engine().eg_follow(at(self.steps), self.count, at(arguments), len(addresses) - 1)


def plan_of(graph: Graph, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]] | None = None,
            exact: bool = False) -> Plan:
    """The plan for inputs of these shapes and strides (elements; row-major where not given). Raises NotFusable."""
    graph = parted(graph)
    values = Values.for_kernels(graph, shapes, strides or {})
    held = [name for name, each in graph.constants.items() if not each.size or each.facts.splat is None]
    place = {name: index for index, name in enumerate([*graph.inputs, *held, *graph.outputs, FAULT])}
    recurrent = recurrent_of(values, place, place[FAULT], exact)
    if recurrent is not None:
        made = Plan((), _outputs(values), 0, indexed=recurrent.told, recurrent=recurrent,
                    by_engine=graph.nodes[-1].op)
    else:
        made = _lowered(graph, values, place, exact)
    written = sum(_bytes(values, name) for name in graph.outputs)
    read = [_bytes(values, name) for name in graph.inputs]
    if made.indexed:  # of a table it reads no more than it picks
        read = [min(each, written) for each in read]
    return replace(made, moved=sum(read) + written)


def _outputs(values: Values) -> tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]:
    return tuple((values.shapes[name], dtypes.numpy_dtype(values.dtypes[name])) for name in values.graph.outputs)


def _lowered(graph: Graph, values: Values, place: Mapping[str, int], exact: bool) -> Plan:
    """A plan of expressions over loops, in two steps where one will not do."""
    try:
        return _planned(values, dict(place), exact)  # it numbers a product's result as well
    except NotFusable as reason:
        found = _chained(graph, values, place, exact) or _staged(graph, values, place, exact)
        if found is None:
            raise reason
        return found


def _planned(values: Values, place: dict[str, int], exact: bool) -> Plan:
    outputs = _outputs(values)
    pieces = pieces_of(values, exact)
    product, done, room = _product(values, pieces, place, exact)
    left = [piece for piece in pieces if piece is not done]
    launches = tuple(_launched(group, place, exact) for group in grouped(left))
    by_engine = next((each.product.op for each in pieces if each.product is not None), "")
    return Plan(launches, outputs, 0, product, (room,) if product else (), by_engine=by_engine,
                indexed=any(each.indices for each in pieces))


def _launched(pieces: Sequence[Lowering], place: Mapping[str, int], exact: bool) -> Launch:
    """A kernel for pieces with the same loops. What a single one reads across memory is turned around where it can be
    called for some rows at a time."""
    piece, turned = with_turned(pieces[0]) if len(pieces) == 1 else (pieces[0], {})
    if turned:
        written = Writer(NAME, [piece]).made
        if trips_of_a_row(turned.values(), written) is not None:
            return launch_of(written, place, exact, turned)
    return launch_of(Writer(NAME, pieces).made, place, exact)


def _chained(graph: Graph, values: Values, place: Mapping[str, int], exact: bool) -> Plan | None:
    """A depthwise convolution and the product that makes its planes as one; None where it is none."""
    found = chain(graph)
    if found is None:
        return None
    name, first, rest = found
    shapes = {each: values.shapes[each] for each in (*graph.inputs, name)}
    strides = {each: values.strides[each] for each in graph.inputs}
    rest.types[name] = TensorType(values.dtypes[name], values.shapes[name])
    try:
        before = _planned(Values.of(first, shapes, strides), {**place, name: CHAINED}, exact)
        after = _planned(Values.of(rest, shapes, strides), {**place, name: CHAINED}, exact)
    except (NotFusable, EgraftError):
        return None
    whole = all(each.product is not None and each.in_tiles and not each.launches and not each.indexed
                for each in (before, after))
    if not whole or before.product is None or after.product is None:
        return None
    product = after.product.chained(before.product)
    told = f"{before.by_engine} and {after.by_engine}"
    return None if product is None else replace(after, product=product, by_engine=told)


def _staged(graph: Graph, values: Values, place: Mapping[str, int], exact: bool) -> Plan | None:
    """A plan in two steps; None where there is none."""
    for name, first, rest in cuts(graph):
        shapes = {each: values.shapes[each] for each in (*graph.inputs, name)}
        strides = {each: values.strides[each] for each in graph.inputs}
        rest.types[name] = TensorType(values.dtypes[name], values.shapes[name])
        own = {**place, name: len(place)}
        try:
            before = _planned(Values.of(first, shapes, strides), dict(own), exact)
            if before.product is not None:
                continue
            after = _planned(Values.of(rest, shapes, strides), own, exact)
        except (NotFusable, EgraftError):
            continue
        return replace(after, before=before.launches, rooms=(_bytes(values, name), *after.rooms),
                       indexed=before.indexed or after.indexed)
    return None


def _product(values: Values, pieces: Sequence[Lowering], place: dict[str, int],
             exact: bool) -> tuple[Product | None, Lowering | None, int]:
    """The product that pieces read, the piece of which nothing is left to do after it, and bytes of room for its
    result."""
    readers = [each for each in pieces if each.product is not None]
    nodes = {id(each.product): each.product for each in readers}
    if not nodes:
        return None, None, 0
    if len(nodes) > 1:
        raise NotFusable("two products")
    (node,) = nodes.values()
    assert node is not None
    name = node.outputs[0]
    place.setdefault(name, len(place))
    if len(readers) > 1:
        return Product(operands_of(values, node), place, place[name], None), None, _bytes(values, name)
    product, done = product_of(values, readers[0], place, exact)
    return product, readers[0] if done else None, 0 if done else _bytes(values, name)


def _bytes(values: Values, name: str) -> int:
    return prod(values.shapes[name]) * dtypes.numpy_dtype(values.dtypes[name]).itemsize


def is_readable(array: np.ndarray) -> bool:
    """Whether a kernel can read it where it lies: strides of whole elements, aligned, in native byte order."""
    size = array.dtype.itemsize
    return array.flags.aligned and array.dtype.isnative and all(each % size == 0 for each in array.strides)


def _elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(each // array.dtype.itemsize for each in array.strides)

