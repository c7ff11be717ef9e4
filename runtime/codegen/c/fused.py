"""A graph of ONNX operators as one fused kernel: planned for the sizes of a call, compiled once for its text."""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.types import TensorType

from .compiler import Function, compiled
from .lowering import Lowering, Values
from .text import BUFFER, Writer, Written, row_loops
from .views import Cut, Domain, NotFusable, Refine

MOST_PIECES = 16  # of a kernel with Concat
MOST_STEPS = 64  # how often lowering starts again
MOST_PLANS = 64  # sets of sizes that are kept
SHARE_BYTES = 1 << 19  # what each of several threads has to move at least
_ALIGNED = 64
NAME = "eg_fused"


@dataclass(frozen=True)
class Launch:
    """One compiled kernel with its sizes. `sources` are, for each pointer, (argument, or -1 for a row buffer; bytes
    into it)."""

    written: Written
    function: Function
    sizes: array[int]
    sources: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]  # bytes that each pointer moves with the loop that is split
    room: int  # bytes of row buffers


@dataclass(frozen=True)
class Plan:
    """What a call does: launches, on outputs of these shapes and dtypes."""

    launches: tuple[Launch, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    moved: int  # bytes of all arguments

    @property
    def text(self) -> str:
        """The texts of all launches."""
        return "\n".join(each.written.text for each in self.launches)


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
        self._held = [np.ascontiguousarray(graph.constants[name].array).reshape(graph.constants[name].shape)
                      for name in self.constants]
        self._addresses = [address_of(each) for each in self._held]
        self._plans: dict[tuple[Any, ...], Plan | NotFusable] = {}

    def __call__(self, *arrays: np.ndarray, threads: int = 1, out: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """The outputs. Raises NotFusable where no kernel can be generated for these sizes. `out`: row-major arrays
        of the right shapes and dtypes, apart from the inputs, to write into."""
        key = tuple([(each.shape, each.strides, each.dtype) for each in arrays])
        plan = self._plans.get(key)
        given = arrays
        if plan is None or not all(each.flags.aligned for each in arrays):
            given = tuple(each if is_readable(each) else np.ascontiguousarray(each).reshape(each.shape)
                          for each in arrays)
            plan = self._planned(tuple([(each.shape, each.strides, each.dtype) for each in given]), given)
        if isinstance(plan, NotFusable):
            raise plan
        outputs = list(out) or [np.empty(shape, dtype) for shape, dtype in plan.outputs]
        addresses = [*map(address_of, given), *self._addresses, *map(address_of, outputs)]
        threads = min(threads, plan.moved // SHARE_BYTES)
        for launch in plan.launches:
            if threads < 2:
                _run(launch, addresses, None, 0, 0)
            else:
                _share(launch, addresses, threads)
        return outputs

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

    def _planned(self, key: tuple[Any, ...], arrays: Sequence[np.ndarray]) -> Plan | NotFusable:
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


def plan_of(graph: Graph, shapes: Mapping[str, Sequence[int]], strides: Mapping[str, Sequence[int]] | None = None,
            exact: bool = False) -> Plan:
    """The plan for inputs of these shapes and strides (elements; row-major where not given). Raises NotFusable."""
    try:
        values = Values.of(graph, shapes, strides or {})
    except EgraftError as reason:
        raise NotFusable(str(reason)) from reason
    whole = values.shapes[graph.outputs[0]]
    if any(0 in shape for shape in values.shapes.values()):
        raise NotFusable("a tensor without elements")
    groups = _groups(_pieces(values, whole, exact))
    launches = tuple(_launch(values, Writer(NAME, group).made, exact) for group in groups)
    outputs = tuple((values.shapes[name], dtypes.numpy_dtype(values.dtypes[name])) for name in graph.outputs)
    used = [*graph.inputs, *graph.outputs]
    moved = sum(prod(values.shapes[name]) * dtypes.numpy_dtype(values.dtypes[name]).itemsize for name in used)
    return Plan(launches, outputs, moved)


def _pieces(values: Values, shape: tuple[int, ...], exact: bool) -> list[Lowering]:
    """The graph lowered over its result, in pieces where a Concat ends in the middle of a loop."""
    waiting, found = [Domain.of(shape)], []
    for _ in range(MOST_STEPS):
        if not waiting:
            break
        domain = waiting.pop()
        try:
            found.append(Lowering(values, domain, exact))
        except Refine as need:
            waiting.append(_loop_of_result(domain, need).refined(need))
        except Cut as need:
            waiting.extend(reversed(_loop_of_result(domain, need).cut(need)))
    if waiting or len(found) > MOST_PIECES:
        raise NotFusable("too many pieces")
    if len(found) > 1 and any(each.columns is not None for each in found):
        raise NotFusable("a Concat beside a reduction")
    return found


def _loop_of_result(domain: Domain, need: Refine | Cut) -> Domain:
    if need.loop not in domain.loops:
        raise NotFusable("a Reshape or Concat of what is reduced")
    return domain


def _groups(pieces: list[Lowering]) -> list[list[Lowering]]:
    """Pieces that one kernel walks through together: those that have all loops but the last in common."""
    found: dict[tuple[Any, ...], list[Lowering]] = {}
    for piece in pieces:
        rows = row_loops(piece, len(pieces) > 1)
        found.setdefault(tuple((loop, piece.trips[loop]) for loop in rows), []).append(piece)
    return list(found.values())


def _launch(values: Values, written: Written, exact: bool) -> Launch:
    graph = values.graph
    held = [name for name, each in graph.constants.items() if not each.size or each.facts.splat is None]
    place = {name: index for index, name in enumerate([*graph.inputs, *held, *graph.outputs])}
    sources, steps, room = [], [], 0
    for number, ((tensor, start), dtype) in enumerate(zip(written.pointers, written.dtypes)):
        size = dtypes.numpy_dtype(dtype).itemsize
        if tensor == BUFFER:
            sources.append((-1, room))
            room += -(-start * size // _ALIGNED) * _ALIGNED
        else:
            sources.append((place[tensor], start * size))
        steps.append(written.shares.get(number, 0) * size)
    return Launch(written, compiled(NAME, written.text, exact), array("q", written.sizes.values()), tuple(sources),
                  tuple(steps), room)


def _share(launch: Launch, addresses: Sequence[int], threads: int) -> None:
    split = launch.written.split
    trips = launch.sizes[split] if split is not None else 1
    if trips < 2:
        _run(launch, addresses, None, 0, 0)
        return
    parts = min(threads, trips)
    ends = [trips * part // parts for part in range(parts + 1)]
    waiting = [_pool().submit(_run, launch, addresses, split, first, last)
               for first, last in itertools.pairwise(ends[1:])]
    _run(launch, addresses, split, 0, ends[1])
    for each in waiting:
        each.result()


def _run(launch: Launch, addresses: Sequence[int], split: int | None, first: int, last: int) -> None:
    """Run the kernel, or (with `split`) some trips of the loop that threads share."""
    sizes, base = launch.sizes, 0
    if launch.room:
        room = np.empty(launch.room + _ALIGNED, np.uint8)
        base = -(-address_of(room) // _ALIGNED) * _ALIGNED
    pointers = array("q", [(base if argument < 0 else addresses[argument]) + start
                           for argument, start in launch.sources])
    if split is not None:
        sizes = array("q", sizes)
        sizes[split] = last - first
        for place, step in enumerate(launch.steps):
            pointers[place] += first * step
    launch.function(pointers.buffer_info()[0], sizes.buffer_info()[0])


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that help the caller's. ctypes lets go of the interpreter's lock while a kernel runs."""
    return ThreadPoolExecutor(thread_name_prefix="egraft")


def is_readable(array: np.ndarray) -> bool:
    """Whether a kernel can read it where it lies: strides of whole elements, aligned, in native byte order."""
    size = array.dtype.itemsize
    return array.flags.aligned and array.dtype.isnative and all(each % size == 0 for each in array.strides)


_pointer_at = ctypes.c_void_p.from_address
_DATA = object.__basicsize__  # of an array object: where the pointer to its elements is


def _told_address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _read_address(array: np.ndarray) -> int:
    return _pointer_at(id(array) + _DATA).value or 0


def _reader() -> Callable[[np.ndarray], int]:
    """Reading the pointer takes an eighth of the time of asking; where it lies is part of NumPy's C interface."""
    samples: list[np.ndarray] = [np.zeros(3), np.zeros((2, 3), np.float32)[1:, ::2]]
    right = all(_read_address(each) == _told_address(each) for each in samples)
    return _read_address if right else _told_address


address_of = _reader()


def _elements(array: np.ndarray) -> tuple[int, ...]:
    return tuple(each // array.dtype.itemsize for each in array.strides)

