"""If, Loop, Scan and SequenceMap by nested execution.

A function gets the node's inputs and after them the values that the nested graphs capture, in the order of first
use over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphs.dtypes import numpy_dtype
from graphs.ir import Graph, Node
from graphs.nested import seeing
from graphs.types import TensorType

from .execute import Context, Hooks, NodeFunction, Values
from .program import Program
from .settled import precomputed

_NO_LIMIT = (1 << 31) - 1  # a trip count from here on is how exporters write that only the condition ends a Loop


def prepare_control_flow(node: Node, context: Context) -> NodeFunction:
    """The function of a control-flow node, its nested graphs prepared."""
    maker: dict[str, Callable[[Node, Context], NodeFunction]] = {
        "If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
    return maker[node.op](node, context)


class Body:
    """A nested graph with the positions of what it captures among the node's values."""

    def __init__(self, node: Node, attribute: str, context: Context) -> None:
        graph = node.attrs[attribute]
        assert isinstance(graph, Graph)
        if context.hooks == Hooks() and context.around is not None:  # else a hook wants to see each constant and node
            graph = precomputed(seeing(context.around, graph), context.model)
        self.graph = graph
        self.program = Program(graph, context)
        order = list(dict.fromkeys(name for inner in node.graphs for name in inner.captured()))
        self.positions = [len(node.inputs) + order.index(name) for name in self.program.captured]

    def outer(self, values: Values) -> list[Any]:
        """The captured values out of all that the node was given."""
        return [values[position] for position in self.positions]


def _if(node: Node, context: Context) -> NodeFunction:
    then, other = Body(node, "then_branch", context), Body(node, "else_branch", context)

    def call(values: Values) -> Values:
        body = then if bool(np.asarray(values[0]).reshape(-1)[0]) else other
        return body.program.run(body.outer(values))

    return call


def _loop(node: Node, context: Context) -> NodeFunction:
    body = Body(node, "body", context)
    given = [*map(bool, node.inputs), False, False]  # whether there is a limit, and a condition
    carried_count = max(0, len(node.inputs) - 2)
    scan_names = body.graph.outputs[1 + carried_count:]
    most = context.most_turns

    def call(values: Values) -> Values:
        limit = None if not given[0] or values[0] is None else int(np.asarray(values[0]).reshape(-1)[0])
        going = not given[1] or values[1] is None or bool(np.asarray(values[1]).reshape(-1)[0])
        carried, outer = list(values[2: 2 + carried_count]), body.outer(values)
        collected: list[list[Any]] = [[] for _ in scan_names]
        turn = 0
        last = most if limit is None or limit >= _NO_LIMIT else None
        while going and (limit is None or turn < limit):
            if turn == last:
                raise ValueError(f"its condition still holds after {turn} turns")
            found = body.program.run([np.asarray(turn, np.int64), np.asarray(True), *carried, *outer])
            going = bool(np.asarray(found[0]).reshape(-1)[0])
            carried = found[1: 1 + carried_count]
            for items, item in zip(collected, found[1 + carried_count:]):
                items.append(np.asarray(item))
            turn += 1
        return [*carried, *(_stack(items, body.graph, name, 0) for items, name in zip(collected, scan_names))]

    return call


def _stack(items: list[np.ndarray], graph: Graph, name: str, axis: int) -> np.ndarray:
    if items:
        return np.stack(items, axis=axis)
    known = graph.type_of(name)
    declared = graph.declared.get(name)
    if known is None and isinstance(declared, TensorType):
        known = declared
    if known is None:
        raise ValueError(f"a loop without a turn, and the type of its output {name!r} is not known")
    sizes = [dim if isinstance(dim, int) else 0 for dim in known.shape or ()]
    sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, 0)
    return np.empty(sizes, numpy_dtype(known.dtype))


def _per_item(value: object, count: int) -> list[int]:
    return [int(item) for item in value] if value else [0] * count  # type: ignore[attr-defined]


def _scan(node: Node, context: Context) -> NodeFunction:
    if node.is_opaque:
        return _batched_scan(node, context)
    body = Body(node, "body", context)
    scanned = int(node.attrs["num_scan_inputs"])  # type: ignore[call-overload]
    states = len(node.inputs) - scanned
    outputs = body.graph.outputs[states:]
    in_axes = _per_item(node.attrs.get("scan_input_axes"), scanned)
    backward = _per_item(node.attrs.get("scan_input_directions"), scanned)
    out_axes = _per_item(node.attrs.get("scan_output_axes"), len(outputs))
    prepend = _per_item(node.attrs.get("scan_output_directions"), len(outputs))

    def call(values: Values) -> Values:
        state, outer = list(values[:states]), body.outer(values)
        sequences = [np.moveaxis(value, axis, 0)[::-1 if back else 1]
                     for value, axis, back in zip(values[states: states + scanned], in_axes, backward)]
        lengths = {len(each) for each in sequences}
        if len(lengths) != 1:
            raise ValueError(f"scan inputs of different lengths {sorted(lengths)}")
        collected: list[list[Any]] = [[] for _ in outputs]
        for turn in range(lengths.pop()):
            found = body.program.run([*state, *(each[turn] for each in sequences), *outer])
            state = found[:states]
            for items, item in zip(collected, found[states:]):
                items.append(np.asarray(item))
        stacked = [_stack(items[::-1] if back else items, body.graph, name, axis)
                   for items, name, axis, back in zip(collected, outputs, out_axes, prepend)]
        return [*state, *stacked]

    return call


def _batched_scan(node: Node, context: Context) -> NodeFunction:
    """Opset 8: axis 0 is the batch, axis 1 is scanned, the first input has the length of each sequence."""
    body = Body(node, "body", context)
    scanned = int(node.attrs["num_scan_inputs"])  # type: ignore[call-overload]
    states = len(node.inputs) - 1 - scanned
    backward = _per_item(node.attrs.get("directions"), scanned)
    names = body.graph.outputs[states:]

    def one(state: list[Any], sequences: list[Any], length: int, outer: list[Any]) -> list[Any]:
        collected: list[list[Any]] = [[] for _ in names]
        for turn in range(length):
            items = [each[length - 1 - turn if back else turn] for each, back in zip(sequences, backward)]
            found = body.program.run([*state, *items, *outer])
            state = found[:states]
            for kept, item in zip(collected, found[states:]):
                kept.append(np.asarray(item))
        return [*state, *(_stack(items, body.graph, name, 0) for items, name in zip(collected, names))]

    def call(values: Values) -> Values:
        first, sequences = values[1: 1 + states], values[1 + states: 1 + states + scanned]
        (batch, longest), outer = sequences[0].shape[:2], body.outer(values)
        lengths = [longest] * batch if values[0] is None else [int(length) for length in values[0]]
        rows = [one([each[b] for each in first], [each[b] for each in sequences], lengths[b], outer)
                for b in range(batch)]
        return [np.stack(column) if position < states else _padded(column, longest)
                for position, column in enumerate(zip(*rows))]

    return call


def _padded(rows: Sequence[np.ndarray], longest: int) -> np.ndarray:
    """Sequences of different lengths as one array, with zeros behind the shorter ones."""
    item = max((row.shape[1:] for row in rows if len(row)), default=rows[0].shape[1:])
    padded = np.zeros((len(rows), longest, *item), rows[0].dtype)
    for place, row in zip(padded, rows):
        place[: len(row)] = row
    return padded


def _sequence_map(node: Node, context: Context) -> NodeFunction:
    body = Body(node, "body", context)
    count = len(node.inputs)

    def call(values: Values) -> Values:
        first, rest, outer = values[0], values[1:count], body.outer(values)
        found: list[list[Any]] = [[] for _ in body.graph.outputs]
        for turn, item in enumerate(first):
            others = [value[turn] if isinstance(value, list) else value for value in rest]
            for items, result in zip(found, body.program.run([item, *others, *outer])):
                items.append(np.asarray(result))
        return found

    return call
