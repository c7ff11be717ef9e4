"""What the inputs of a graph may hold, read off the places that they flow to.

A place that wants certain values (indices of a Gather, a shape, a mask) raises a demand on a value; demands move
backwards through operators that hand values on (casts, reshapes, adding a constant) until they reach an input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphs import dims, dtypes
from graphs.dims import DimLike
from graphs.ir import Graph, Node, is_fused
from graphs.operators import RUNTIME, find
from graphs.types import TensorType

from .execute import FUSED_DOMAIN

# Operators whose first output holds elements of these inputs, whatever their order and shape.
HANDS_ON: dict[str, tuple[int, ...]] = {
    "Cast": (0,), "CastLike": (0,), "Identity": (0,), "Reshape": (0,), "Unsqueeze": (0,), "Squeeze": (0,),
    "Flatten": (0,), "Transpose": (0,), "Expand": (0,), "Tile": (0,), "Slice": (0,), "Gather": (0,),
    "GatherElements": (0,), "GatherND": (0,), "Split": (0,), "Where": (1, 2), "Trilu": (0,), "Compress": (0,),
    "ReduceMax": (0,), "ReduceMin": (0,), "Max": (0, 1), "Min": (0, 1), "Dropout": (0,), "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
}  # fmt: skip
# (operator, input) whose elements are positions along an axis of input 0.
INDICES = {("Gather", 1), ("GatherElements", 1), ("ScatterElements", 1), ("Scatter", 1),
           ("SoftmaxCrossEntropyLoss", 1), ("NegativeLogLikelihoodLoss", 1)}
_LABELS = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")  # they count along axis 1
# (domain, operator) -> positions of indices, each with the input whose first axis they count along.
TABLES: dict[tuple[str, str], dict[int, int]] = {
    ("com.microsoft", "EmbedLayerNormalization"): {0: 2, 1: 4, 8: 3},
    ("com.microsoft", "GroupQueryAttention"): {9: 7},
    ("com.microsoft", "RotaryEmbedding"): {1: 2},
    ("", "RotaryEmbedding"): {3: 1},
}
RECURRENT = ("LSTM", "GRU", "RNN")
ROOTS = ("Sqrt", "Log")  # of a number below 0 they are NaN
_BOOL = dtypes.ONNX_NUMBER["bool"]
FREE = ("nonzero", "count")  # constraints that leave most numbers
MAX_STEPS = 20_000
MOST_NUMBERS = 8  # that one comparison asks for
# Operators that compare -> what to draw for the first or second operand, from the number that the other one is.
_COMPARED = {"Equal": ((0,), (0,)), "Less": ((0, -1), (0, 1)), "Greater": ((0, 1), (0, -1)),
             "LessOrEqual": ((0, 1), (0, -1)), "GreaterOrEqual": ((0, -1), (0, 1))}


@dataclass(frozen=True, slots=True)
class Constraint:
    """What one input must hold: `kind` is 'index' (low <= x < high), 'mask' (0 or 1), 'nonzero', 'choice', 'count'
    (low <= x) or 'structural'.

    A choice decides which branch of an If runs, by a comparison with one of `values`, which an index or a mask may
    have, too. A structural input decides shapes or counts; `role` says which (`Reshape.shape`), `direct` whether the
    very input arrives there. `reason` names the place.
    """

    kind: str
    low: DimLike = 0
    high: DimLike | None = None
    role: str = ""
    direct: bool = True
    reason: str = ""
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"one of {', '.join(map(str, self.values))}, or another ({self.reason})"
        bounds = {"index": f" in [{self.low}, {self.high})", "count": f" from {self.low}"}.get(self.kind, "")
        return f"{self.kind}{bounds}{' ' + self.role if self.role else ''} ({self.reason})"


def constraints(graph: Graph) -> dict[str, Constraint]:
    """The strictest constraint of each input that has one."""
    if any(domain == FUSED_DOMAIN for domain, _, _ in graph.functions):
        from .fused_functions import unfused

        graph = unfused(graph)
    finder = _Finder(graph)
    for node in finder.nodes:
        for name, demand in _demands(node, finder):
            finder.push(name, demand)
    for name in graph.inputs:
        type_ = graph.types.get(name)
        if "mask" in name.lower() and isinstance(type_, TensorType) and type_.dtype != "string":
            present = finder.found.get(name)
            if present is None or present.kind in FREE:
                finder.found[name] = Constraint("mask", 0, 2, reason="its name")
    return finder.found


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        graphs = list(_walk(graph))
        self.nodes = [node for each in graphs for node in each.nodes]
        self.producers = {out: node for node in self.nodes for out in node.outputs if out}
        self.constants = {name: value for each in graphs for name, value in each.constants.items()}
        self.types = {name: type_ for each in graphs for name, type_ in each.types.items()}
        self.types.update((name, value.type) for name, value in self.constants.items())
        self.inputs = set(graph.inputs)
        self.found: dict[str, Constraint] = {}
        self.steps = 0

    @cached_property
    def deciding(self) -> set[str]:
        """Values that decide which branch of an If runs."""
        waiting = [node.inputs[0] for node in self.nodes if node.op == "If" and not node.domain]
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = self.producers.get(name)
            if name in found or node is None:
                continue
            found.add(name)
            if node.op in ("Not", "And", "Or", "Xor", "Where") or node.op in HANDS_ON:
                waiting += [each for each in node.inputs if each]
        return found

    def type(self, name: str) -> TensorType | None:
        found = self.types.get(name)
        return found if isinstance(found, TensorType) else None

    def dtype(self, name: str) -> str:
        found = self.type(name)
        return found.dtype if found else ""

    def made(self, name: str) -> Node | None:
        """The node of ONNX's own that computes a value which others only hand on, None where there is none."""
        node = self.producers.get(name)
        while node is not None and len(HANDS_ON.get(node.op, ())) == 1 and not node.domain:
            node = self.producers.get(node.inputs[HANDS_ON[node.op][0]])
        return node if node is not None and not node.domain else None

    def splat(self, name: str) -> float | None:
        constant = self.constants.get(name)
        value = constant.facts.splat if constant is not None and constant.dtype != "string" else None
        return None if value is None else float(value)

    def numbers(self, name: str) -> list[float]:
        """The elements of a constant of few finite ones, whole numbers exactly."""
        constant = self.constants.get(name)
        if constant is None or constant.size > MOST_NUMBERS or constant.dtype not in (*dtypes.FLOATS, *dtypes.INTEGERS):
            return []
        array = constant.array if constant.dtype in dtypes.INTEGERS else constant.array.astype(np.float64)
        found: list[float] = [each for each in array.reshape(-1).tolist() if math.isfinite(each)]
        return [int(each) if each == int(each) else each for each in dict.fromkeys(found)]

    def range(self, name: str) -> tuple[int, int] | None:
        constant = self.constants.get(name)
        if constant is None or constant.facts.low is None or not constant.facts.integral:
            return None
        return int(constant.facts.low), int(constant.facts.high or 0)

    def push(self, name: str, demand: Constraint) -> None:
        waiting = [(name, demand)]
        visited = set()
        while waiting and self.steps < MAX_STEPS:
            self.steps += 1
            name, demand = waiting.pop()
            if (name, demand) in visited:
                continue
            visited.add((name, demand))
            if name in self.inputs:
                if demand.kind == "count" and self.dtype(name) not in dtypes.INTEGERS:
                    continue
                self.found[name] = _stricter(self.found.get(name), demand)
            elif name in self.producers:
                node = self.producers[name]
                waiting.extend(_inside(node, name, demand) if is_fused(node) else _through(node, demand, self))


def _walk(graph: Graph) -> Iterator[Graph]:
    """A graph and those nested in it, apart from bodies of Fused nodes: those have names of their own."""
    yield graph
    for node in graph.nodes:
        for nested in () if is_fused(node) else node.graphs:
            yield from _walk(nested)


def _inside(node: Node, name: str = "", demand: Constraint | None = None) -> Iterator[tuple[str, Constraint]]:
    """The demands on a Fused node's inputs that its body has, or that a demand on one of its outputs amounts to."""
    body = node.attrs["body"]
    assert isinstance(body, Graph)
    if demand is None:
        found = constraints(body)
    else:
        finder = _Finder(body)
        finder.push(body.outputs[node.outputs.index(name)], demand)
        found = finder.found
    yield from ((outer, found[own]) for own, outer in zip(body.inputs, node.inputs) if own in found)


def _stricter(a: Constraint | None, b: Constraint) -> Constraint:
    order = {"structural": 0, "mask": 1, "index": 2, "choice": 3, "count": 4, "nonzero": 5}
    if a is None:
        return b
    if a.values or b.values:
        values = tuple(dict.fromkeys([*a.values, *b.values]))
        return replace(_stricter(replace(a, values=()), replace(b, values=())), values=values)
    if order[b.kind] < order[a.kind]:
        return b
    if a.kind == b.kind == "count":
        return replace(a, low=dims.largest(a.low, b.low))
    if a.kind != b.kind or a.kind != "index" or a.high is None or b.high is None:
        return a
    return Constraint("index", dims.largest(a.low, b.low), dims.smallest(a.high, b.high), reason=a.reason)


def _through(node: Node, demand: Constraint, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    """The demands on a node's inputs that a demand on its output amounts to."""
    if node.op == "Concat" or node.op in HANDS_ON:
        moved = node.op not in ("Cast", "Identity")
        passed = replace(demand, direct=demand.direct and not moved)
        positions = range(len(node.inputs)) if node.op == "Concat" else HANDS_ON[node.op]
        yield from ((node.inputs[k], passed) for k in positions if k < len(node.inputs) and node.inputs[k])
    elif demand.kind == "index" and node.op in ("Add", "Sub", "Mul") and demand.high is not None:
        for position in (0, 1):
            known = finder.range(node.inputs[1 - position])
            if known is not None:
                shifted = _undo(node.op, position, demand, *known)
                if shifted is not None:
                    yield node.inputs[position], shifted
    elif demand.kind == "count" and node.op in ("Add", "Sub"):
        for position in (0, 1) if node.op == "Add" else (0,):
            known = finder.range(node.inputs[1 - position])
            if known is not None:
                low = dims.sub(demand.low, known[0]) if node.op == "Add" else dims.add(demand.low, known[1])
                yield node.inputs[position], replace(demand, low=low)


def _undo(op: str, position: int, demand: Constraint, least: int, most: int) -> Constraint | None:
    """Bounds of x where x + c, x - c or x * c must stay inside those of `demand`, for all c from least to most."""
    low, high = demand.low, demand.high
    assert high is not None
    if op == "Add":
        return Constraint("index", dims.sub(low, least), dims.sub(high, most), reason=demand.reason)
    if op == "Sub" and position == 0:
        return Constraint("index", dims.add(low, most), dims.add(high, least), reason=demand.reason)
    if op == "Sub":  # least - x < high and most - x >= low
        return Constraint("index", dims.sub(most + 1, high), dims.sub(least + 1, low), reason=demand.reason)
    if least >= 1 and low == 0:
        return Constraint("index", 0, dims.ceildiv(high, most), reason=demand.reason)
    return None


def _demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    if is_fused(node):
        yield from _inside(node)
        return
    yield from _index_demands(node, finder)
    yield from _mask_demands(node, finder)
    yield from _structural_demands(node, finder)
    yield from _choice_demands(node, finder)
    yield from _count_demands(node, finder)
    if node.op in ("Div", "Mod") and len(node.inputs) == 2 and finder.dtype(node.inputs[1]) in dtypes.INTEGERS:
        yield node.inputs[1], Constraint("nonzero", reason=node.label)


def _axis_size(type_: TensorType | None, axis: object) -> DimLike | None:
    if type_ is None or not type_.shape or not isinstance(axis, int):
        return None
    return type_.shape[axis] if -len(type_.shape) <= axis < len(type_.shape) else None


def _index_demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    for position, name in enumerate(node.inputs):
        if (node.op, position) in INDICES:
            size = _axis_size(finder.type(node.inputs[0]), node.attrs.get("axis", 1 if node.op in _LABELS else 0))
            yield name, Constraint("index", 0, size, reason=node.label)
    for position, table in TABLES.get((node.domain, node.op), {}).items():
        if max(position, table) < len(node.inputs) and node.inputs[position]:
            size = _axis_size(finder.type(node.inputs[table]), 0)
            yield node.inputs[position], Constraint("index", 0, size, reason=node.label)
    if node.op in ("GatherND", "ScatterND") and len(node.inputs) > 1:
        data, indices = finder.type(node.inputs[0]), finder.type(node.inputs[1])
        skip = node.attrs.get("batch_dims") or 0
        if data is not None and data.shape and indices is not None and indices.shape:
            last = indices.shape[-1]
            sizes = data.shape[skip: skip + last] if isinstance(last, int) else data.shape  # type: ignore
            size = sizes[0] if sizes else None
            for other in sizes[1:]:
                size = dims.smallest(size, other)  # type: ignore[arg-type]
            yield node.inputs[1], Constraint("index", 0, size, reason=node.label)
    if node.op == "OneHot":
        depth: object = node.attrs.get("depth", RUNTIME)
        if not isinstance(depth, int | float) and len(node.inputs) > 1:
            depth = (finder.range(node.inputs[1]) or (None,))[0]
        high = int(depth) if isinstance(depth, int | float) else None
        yield node.inputs[0], Constraint("index", 0, high, reason=node.label)


def _mask_demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    mask = Constraint("mask", 0, 2, reason=node.label)
    if node.op == "Cast" and node.attrs.get("to") == _BOOL and finder.dtype(node.inputs[0]) in dtypes.INTEGERS:
        yield node.inputs[0], mask
    elif node.op == "Sub" and finder.splat(node.inputs[0]) == 1.0:
        source = finder.producers.get(node.inputs[1])
        cast = source is not None and source.op == "Cast" and finder.dtype(source.inputs[0]) in dtypes.INTEGERS
        if cast or finder.dtype(node.inputs[1]) in dtypes.INTEGERS:
            yield node.inputs[1], mask
    elif node.op == "Equal":
        for position in (0, 1):
            is_integer = finder.dtype(node.inputs[position]) in dtypes.INTEGERS
            if is_integer and finder.splat(node.inputs[1 - position]) == 0.0:
                yield node.inputs[position], mask


def _choice_demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    """What is compared with a constant, and an If with the outcome: without such a number one branch may never run."""
    if node.op not in _COMPARED or node.domain or node.outputs[0] not in finder.deciding:
        return
    for position in (0, 1):
        values = tuple(number + offset for number in finder.numbers(node.inputs[1 - position])
                       for offset in _COMPARED[node.op][position])
        if values:
            yield node.inputs[position], Constraint("choice", reason=node.label, values=values)


def _count_demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    """The n of a root of 1 - c^n, c between 0 and 1, as Adam counts its updates: NaN for each n below 0, and 0, which
    Adam divides by, for n = 0."""
    if node.domain or node.op not in ROOTS:
        return
    rest = finder.made(node.inputs[0])
    if rest is None or rest.op != "Sub" or finder.splat(rest.inputs[0]) != 1.0:
        return
    power = finder.made(rest.inputs[1])
    if power is not None and power.op == "Pow" and 0 < (finder.splat(power.inputs[0]) or 0) < 1:
        yield power.inputs[1], Constraint("count", 1, reason=node.label)


def _structural_demands(node: Node, finder: _Finder) -> Iterator[tuple[str, Constraint]]:
    def structural(role: str, high: DimLike | None = None) -> Constraint:
        return Constraint("structural", 1, high, f"{node.op}.{role}", True, node.label)

    record = None if node.is_opaque else find(node.op, node.domain)
    for attribute, position in record.static.items() if record else ():
        if node.attrs.get(attribute) is RUNTIME and position < len(node.inputs):
            type_ = finder.type(node.inputs[0])
            rank = None if type_ is None else type_.rank
            yield node.inputs[position], structural(attribute, rank)
    if node.op == "Loop" and any(node.inputs[:1]):
        yield node.inputs[0], structural("M")
    elif node.op == "Range":
        yield from ((name, structural(role)) for role, name in zip(("start", "limit", "delta"), node.inputs))
    elif node.op == "ConstantOfShape":
        yield node.inputs[0], structural("shape")
    elif node.op in RECURRENT and len(node.inputs) > 4 and node.inputs[4]:
        axis = 1 if node.attrs.get("layout") else 0
        yield node.inputs[4], structural("sequence_lens", _axis_size(finder.type(node.inputs[0]), axis))
    elif node.op == "ReverseSequence":
        size = _axis_size(finder.type(node.inputs[0]), node.attrs.get("time_axis", 0))
        yield node.inputs[1], structural("sequence_lens", size)
    elif node.op == "GroupQueryAttention":
        new, past = _axis_size(finder.type(node.inputs[0]), 1), _axis_size(finder.type(node.inputs[3]), 2)
        total = dims.add(new or 1, past or 0)  # every sequence fills its cache, then come the new keys
        for position, low in ((5, dims.sub(total, 1)), (6, total)):
            role = "GroupQueryAttention.sequence_lens"
            yield node.inputs[position], Constraint("structural", low, dims.add(low, 1), role, True, node.label)


def bounds(constraint: Constraint, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Lowest and highest + 1 value for given sizes of the symbols; [0, 1) where the limit is not known."""
    low = dims.evaluate(constraint.low, sizes) or 0
    high = None if constraint.high is None else dims.evaluate(constraint.high, sizes)
    return low, max(low + 1, high if high is not None else low + 1)
