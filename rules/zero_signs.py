"""Where the sign of a zero shows: rules that may change it (`@rule(..., zero_sign=True)`) are not used there.

0.0 and -0.0 are equal, but 1 / 0.0 and 1 / -0.0 are infinities of different signs. A guard sees what a node reads and
not who reads it; so this looks at the whole graph, once, for values that are divided by and whose zeros could change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphs.constants import Constant
from graphs.ir import Graph, Node

from .values import FLOATS

# Their results do not depend on the sign of a zero.
_BLIND = frozenset({
    "Abs", "Cos", "Cosh", "Equal", "Exp", "Greater", "GreaterOrEqual", "HardSigmoid", "Less", "LessOrEqual", "Log",
    "LogSoftmax", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "Shape", "Sigmoid", "Softmax",
    "Softplus",
})
# They hand a zero on with its sign, and no rule that changes signs applies to them.
_CARRIERS = frozenset({
    "Cast", "Clip", "Concat", "Div", "Expand", "Flatten", "Gather", "Identity", "Mul", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
})


def showing_places(graph: Graph) -> list[str]:
    """Labels of the nodes of a graph, nested graphs included, through which a changed sign of a zero could show."""
    return [node.label for each in graph.walk() for node in _showing(each, nested=each is not graph)]


def _showing(graph: Graph, nested: bool) -> Iterator[Node]:
    producers = graph.producers()
    yield from (node for node, name in _shown(graph) if _may_change(graph, producers, name, nested))


def _shown(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Nodes that tell 0.0 from -0.0, with the value that they look at."""
    for node in graph.nodes:
        if node.is_opaque:
            yield from ((node, name) for name in node.inputs if name)
        elif node.domain:
            continue
        elif node.op == "Div":
            yield node, node.inputs[1]
        elif node.op in ("Reciprocal", "BitCast") or (node.op == "Cast" and _becomes_text(graph, node)):
            yield node, node.inputs[0]
        elif node.op == "Pow":
            exponent = graph.constants.get(node.inputs[1])
            if exponent is None or exponent.facts.low is None or exponent.facts.low < 0:
                yield node, node.inputs[0]


def _becomes_text(graph: Graph, node: Node) -> bool:
    type_ = graph.type_of(node.outputs[0])
    return type_ is not None and type_.dtype == "string"


def _may_change(graph: Graph, producers: Mapping[str, Node], start: str, nested: bool) -> bool:
    """Does the value depend on a node to which a rule that changes the sign of a zero could apply?"""
    waiting, seen = [start], {start}
    while waiting:
        name = waiting.pop()
        type_ = graph.type_of(name)
        if name in graph.constants or (type_ is not None and type_.dtype not in FLOATS):
            continue
        node = producers.get(name)
        if node is None:
            if nested:
                return True  # it comes from a graph around this one, or from the iteration before
            continue
        if _is_blind(graph, node):
            continue
        if node.domain or node.op not in _CARRIERS or _may_be_negation(graph, node):
            return True
        for each in node.inputs:
            if each and each not in seen:
                seen.add(each)
                waiting.append(each)
    return False


def _may_be_negation(graph: Graph, node: Node) -> bool:
    """A product with negative constants: rules move its sign over the sums around it."""
    factors = [graph.constants[name] for name in node.inputs if name in graph.constants]
    return node.op == "Mul" and any(each.facts.low is None or each.facts.low < 0 for each in factors)


def _is_blind(graph: Graph, node: Node) -> bool:
    """The result is the same for 0.0 and -0.0."""
    if node.domain:
        return False
    constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
    if node.op == "Add":
        return any(_has_no_zero(each) for each in constants)
    if node.op == "Max" or (node.op == "Clip" and len(node.inputs) > 1 and node.inputs[1] in graph.constants):
        bounds = constants if node.op == "Max" else [graph.constants[node.inputs[1]]]
        return any(each.facts.low is not None and each.facts.low > 0 for each in bounds)
    return node.op in _BLIND or (node.op == "Mul" and node.inputs[0] == node.inputs[1])


def _has_no_zero(constant: Constant) -> bool:
    low, high = constant.facts.low, constant.facts.high
    return low is not None and high is not None and (low > 0 or high < 0)
