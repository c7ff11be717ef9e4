"""If, Loop and Scan: bodies grow like the graph around them, out of what they capture, their inputs and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphs.builder import Value
from graphs.dims import DimLike
from graphs.ir import Graph

from .maker import ANY, FLOAT, INTEGER, Maker, Refused, rank_of
from .motifs import step

DEEPEST = 2


class Inside(Maker):
    """A nested graph that grows. New inputs are inputs of the whole graph; all it sees of it can be captured."""

    def __init__(self, outer: Maker, name: str) -> None:
        self.outer, self.rng, self.smooth, self.opset = outer, outer.rng, outer.smooth, outer.opset
        self.rough, self.sizes, self.dtypes = outer.rough, outer.sizes, outer.dtypes
        self.depth = outer.depth + 1
        self.b = outer.b.nested(name)
        self.values = list(outer.values)

    def input(self, dtype: str, shape: Sequence[DimLike]) -> Value:
        """An input of the outermost graph, captured here."""
        value = self.outer.input(dtype, shape)
        self.values.append(value)
        return value

    def parameter(self, stem: str, dtype: str, shape: Sequence[DimLike], rough: bool = False) -> Value:
        """An input of the body."""
        taken = self.b._names.taken
        name = next(f"{stem}{k}" for k in range(len(taken) + 1) if f"{stem}{k}" not in taken)
        value = self.b.input(name, dtype, list(shape))
        self.values.append(value)
        if rough or dtype in FLOAT:
            self.rough.add(name)
        return value

    def grow(self, most: int) -> None:
        """Some nodes, other control flow among them."""
        wanted, failures = self.number(0, most), 0
        while len(self.b._graph.nodes) < wanted and failures < 30:
            try:
                if self.depth < DEEPEST and self.chance(0.12):
                    self.one_of([branching, looping, scanning])(self)
                else:
                    step(self)
            except Refused:
                failures += 1

    def made(self) -> list[Value]:
        """What nodes in here gave."""
        own = {name for node in self.b._graph.nodes for name in node.outputs}
        return [value for value in self.values if value.name in own]

    def any(self, fits: Callable[[Value], bool] = lambda value: True) -> Value:
        """A value to give: computed in here, or captured."""
        own = [value for value in self.made() if value.dtype in ANY and fits(value)]
        if own and self.chance(0.8):
            return own[-1] if self.chance(0.6) else self.one_of(own)
        known = [each for each in self.values if each.dtype in ANY and each.shape is not None]
        return self.one_of([each for each in known if fits(each)])  # type: ignore[no-any-return]

    def alike(self, value: Value, sure: bool) -> Value:
        """A value of the same type; a constant of this nested graph where there is none."""
        def fits(each: Value) -> bool:
            return each.dtype == value.dtype and each.shape == value.shape and not (sure and each.name in self.rough)
        if any(map(fits, self.values)) and self.chance(0.9):
            return self.any(fits)
        if not all(isinstance(dim, int) for dim in value.shape or ()):
            raise Refused
        return self.constant(str(value.dtype), value.shape or ())

    def give(self, value: Value, through: bool = True) -> None:
        """Make it an output; not `through`: ONNX Runtime gives garbage where a Scan hands on an input as it is."""
        graph = self.b._graph
        made_here = (through and value.name in graph.inputs) or any(value.name in node.outputs for node in graph.nodes)
        own_constant = value.name in graph.constants and self.chance(0.3)
        if (not made_here and not own_constant) or value.name in graph.outputs:
            value = self.b.value("Identity", value)
        self.b.output(value)


def _add(m: Maker, op: str, inputs: Sequence[Value | None], bodies: dict[str, Inside], results: int,
         **attrs: object) -> list[Value]:
    """The node; what comes out is rough where it is in a body."""
    graphs: dict[str, Graph] = {name: inside.b.graph() for name, inside in bodies.items()}
    made = m.ops(op, *inputs, outputs=results, **graphs, **attrs)
    several = list(made) if isinstance(made, tuple) else [made]
    for graph in graphs.values():
        for value, name in zip(several, graph.outputs[len(graph.outputs) - results:]):
            if name in m.rough or value.dtype in FLOAT:
                m.rough.add(value.name)
    return several


def condition(m: Maker) -> Value:
    """Known, an input, or computed."""
    kind = m.number(0, 7)
    if kind == 0:
        return m.b.constant(np.array(m.chance(0.5)))
    if kind <= 3:
        return m.input("bool", () if m.chance(0.9) else (1,))
    if kind == 4:
        return m.op("Not", m.input("bool", ()))
    if kind == 5:
        return m.op("Less", m.input("int64", ()), m.b.constant(np.array(m.number(0, 3), np.int64)))
    value = m.pick(ANY, low=1)
    return m.op("Equal", m.op("Size", value), m.b.constant(np.array(m.number(1, 6), np.int64)))


def branching(m: Maker) -> object:
    """An If of one or two outputs; a branch that gives what it captures, or a constant of its own."""
    test = condition(m)
    then, other = Inside(m, "then"), Inside(m, "else")
    then.grow(4)
    other.grow(4)
    results = [then.any() for _ in range(m.number(1, 2))]
    for value in results:
        then.give(value)
        other.give(other.alike(value, sure=value.name not in m.rough))
    return _add(m, "If", [test], {"then_branch": then, "else_branch": other}, len(results))


def _trips(m: Maker) -> Value | None:
    kind = m.number(0, 5)
    if kind <= 1:
        return m.b.constant(np.array(m.one_of([0, 1, 2, 3, 3]), np.int64))
    if kind == 2:
        return m.input("int64", ())
    if kind == 3:
        value = m.pick(ANY, low=1)
        return m.op("Gather", m.op("Shape", value), m.b.constant(np.array(m.number(0, rank_of(value) - 1))), axis=0)
    return None if kind == 4 else m.op("Min", m.input("int64", ()), m.b.constant(np.array(3, np.int64)))


def _goes_on(body: Inside, index: Value, before: Value, bounded: bool) -> Value:
    limit = body.b.constant(np.array(body.number(0, 3), np.int64))
    kind = body.number(0, 4) if bounded else 4
    if kind == 0:
        return before
    if kind == 1:
        return body.b.constant(np.array(True))
    if kind == 2:
        return body.op("And", before, body.op("Less", index, limit))
    return body.input("bool", ()) if kind == 3 else body.op("Less", index, limit)


def _states(m: Maker, body: Inside, values: Sequence[Value]) -> list[Value]:
    return [body.parameter("s", str(each.dtype), each.shape or (), each.name in m.rough) for each in values]


def looping(m: Maker) -> object:
    """A Loop by count, by condition, or both, with states and what each round gives."""
    trips = _trips(m)
    start = None if m.chance(0.5) else m.b.constant(np.array(m.chance(0.8))) if m.chance(0.6) else condition(m)
    values = [m.pick((*FLOAT, *INTEGER), high=3) for _ in range(m.number(0, 2))]
    body = Inside(m, "body")
    index, before = body.parameter("i", "int64", ()), body.parameter("c", "bool", ())
    states = _states(m, body, values)
    body.grow(5)
    after = _goes_on(body, index, before, trips is not None)
    nexts = [body.alike(state, sure=state.name not in m.rough) for state in states]
    scans = [body.any(lambda each: rank_of(each) <= 3) for _ in range(m.number(0 if states else 1, 2))]
    for value in (after, *nexts, *scans):
        body.give(value)
    return _add(m, "Loop", [trips, start, *values], {"body": body}, len(nexts) + len(scans))


def scanning(m: Maker) -> object:
    """A Scan over one or two values along any axis, forwards or backwards."""
    def solid(value: Value) -> bool:  # ONNX Runtime ends the process where elements of a Scan are empty
        return all(dim in m.sizes and dim != 0 for dim in value.shape or ())

    first = m.pick((*FLOAT, *INTEGER), low=1, high=3, where=solid)
    axes = [m.number(0, rank_of(first) - 1)]
    scanned = [first]
    length = (first.shape or ())[axes[0]]
    others = [(each, axis) for each in m.values if each.dtype in ANY and each.shape is not None and solid(each)
              for axis, dim in enumerate(each.shape) if dim == length]
    if others and m.chance(0.4):
        other, axis = m.one_of(others)
        scanned, axes = [first, other], [*axes, axis]
    values = [m.pick((*FLOAT, *INTEGER), high=3, where=solid) for _ in range(m.number(0, 2))]
    body = Inside(m, "body")
    states = _states(m, body, values)
    for value, axis in zip(scanned, axes):
        shape = list(value.shape or ())
        del shape[axis]
        body.parameter("e", str(value.dtype), shape, value.name in m.rough)
    body.grow(5)
    nexts = [body.alike(state, sure=state.name not in m.rough) for state in states]
    scans = [body.any(lambda each: rank_of(each) <= 3 and solid(each)) for _ in range(m.number(0 if states else 1, 2))]
    for value in (*nexts, *scans):
        body.give(value, through=False)
    attrs: dict[str, object] = {"num_scan_inputs": len(scanned), "scan_input_axes": tuple(axes)}
    if m.chance(0.4):
        attrs["scan_input_directions"] = tuple(m.number(0, 1) for _ in scanned)
    if scans and m.chance(0.4):
        attrs["scan_output_directions"] = tuple(m.number(0, 1) for _ in scans)
    if scans and m.chance(0.4):
        attrs["scan_output_axes"] = tuple(m.number(0, rank_of(each)) for each in scans)
    return _add(m, "Scan", [*values, *scanned], {"body": body}, len(nexts) + len(scans), **attrs)
