"""`ai.onnx.preview.training`, the training operators of ONNX, written by ordinary nodes.

`Gradient` names values of the graph it stands in, so that what it computes is not a function of its inputs alone;
`Adagrad`, `Adam` and `Momentum` are formulas. All is as the operators' specification has it (ONNX 1.7 on).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphs.builder import Builder, Value
from graphs.errors import NotDifferentiable
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from runtime.gradients.modernize import WORKING_OPSET
from runtime.gradients.reverse import accumulate, reverse
from runtime.gradients.shapes import cast_like, full_like, scalar, zeros_like
from runtime.gradients.tape import finish, tape

DOMAIN = "ai.onnx.preview.training"
_DEFAULTS: dict[str, dict[str, float]] = {
    "Adagrad": {"decay_factor": 0.0, "epsilon": 1e-6, "norm_coefficient": 0.0},
    "Adam": {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0},
    "Momentum": {},  # all of its attributes are required
}


def has_training_operators(graph: Graph) -> bool:
    """Whether `without_training_operators` has something to do."""
    return any(_is_ours(node) for node in graph.nodes)


def _is_ours(node: Node) -> bool:
    return node.domain == DOMAIN and (node.op == "Gradient" or node.op in _DEFAULTS)


def without_training_operators(graph: Graph) -> Graph:
    """The graph with ordinary nodes for those of this domain, the graph itself if there are none.

    Raises NotDifferentiable where a Gradient passes an operator that has no gradient row.
    """
    if not has_training_operators(graph):
        return graph
    if not graph.opset:  # it has only operators of this domain
        graph = graph.copy()
        graph.opsets = {**graph.opsets, "": WORKING_OPSET}
    b, nodes = tape(graph)
    made = b.unfinished.nodes
    made.clear()
    for node in nodes:
        if not _is_ours(node):
            b.place(node)
            continue
        found = _gradient(b, node) if node.op == "Gradient" else _update(b, node)
        for name, value in zip(node.outputs, found):
            if name:
                b.Identity(value)
                made[-1].outputs, fresh = (name,), made[-1].outputs[0]
                if fresh in b.unfinished.types:
                    b.unfinished.types[name] = b.unfinished.types.pop(fresh)
    b.unfinished.opsets.pop(DOMAIN, None)
    return finish(b, 0, [], graph)


def _names(node: Node, attribute: str) -> list[str]:
    return [str(name) for name in node.attrs.get(attribute) or ()]  # type: ignore[attr-defined]


def _gradient(b: Builder, node: Node) -> list[Value]:
    """The gradients of y by each of xs, at the values that are fed for xs and zs."""
    xs, zs, y = _names(node, "xs"), _names(node, "zs"), str(node.attrs["y"])
    between = _between(b, y, {*xs, *zs})
    fed = dict(zip([*xs, *zs], node.inputs))
    if any(name != other for name, other in fed.items()):
        between, fed = _again(b, node, between, fed)
    top = fed.get(y, y)
    adjoints: dict[str, Value] = {}
    accumulate(adjoints, top, full_like(b, Value(b, top), 1.0))
    wrt = [fed[name] for name in xs]
    reverse(b, between, adjoints, wrt)
    return [adjoints.get(name) or zeros_like(b, Value(b, name)) for name in wrt]


def _between(b: Builder, y: str, ends: set[str]) -> list[Node]:
    """The nodes that y is computed by from the values `ends`, in order."""
    needed, found = {y} - ends, list[Node]()
    for node in reversed(b.unfinished.nodes):
        if not needed.isdisjoint(node.outputs):
            found.append(node)
            needed.update(name for name in node.uses if name not in ends)
    return found[::-1]


def _again(b: Builder, node: Node, between: Sequence[Node], fed: dict[str, str]) -> tuple[list[Node], dict[str, str]]:
    """The nodes once more, on what is fed; the new names of all values."""
    names, start = dict(fed), len(b.unfinished.nodes)
    for each in between:
        if not is_pure(each):
            raise NotDifferentiable(node.label, f"{each.label} would not give the same for the values that are fed",
                                    "feed the values that xs and zs name")
        copied = each.copy()
        copied.rename_uses(names)
        fresh = [b.fresh(name) if name else "" for name in each.outputs]
        names.update(zip(each.outputs, fresh))
        copied.outputs = tuple(fresh)
        b.place(copied)
    return b.unfinished.nodes[start:], names


def _update(b: Builder, node: Node) -> list[Value]:
    """All new tensors, then all new states, of an optimizer that updates several tensors at once."""
    rate, count, *rest = (Value(b, name) for name in node.inputs)
    attrs = {**_DEFAULTS[node.op], **node.attrs}
    kinds = 4 if node.op == "Adam" else 3  # X, G and states
    size = len(rest) // kinds
    groups = [[rest[kind * size + index] for kind in range(kinds)] for index in range(size)]
    found = [_RULES[node.op](_Numbers(b, attrs, rate, count, group[0]), *group) for group in groups]
    return [each[kind] for kind in range(kinds - 1) for each in found]


class _Numbers:
    """Attributes, learning rate R and update count T as scalars of the type of one tensor."""

    def __init__(self, b: Builder, attrs: dict[str, object], rate: Value, count: Value, like: Value) -> None:
        self.b, self.attrs, self.like = b, attrs, like
        self.rate = cast_like(b, b.Reshape(rate, []), like)
        number = b.Reshape(count, [])
        self.later = b.Greater(number, b.constant(0))
        self.count = cast_like(b, number, like)

    def __getitem__(self, name: str) -> Value:
        return scalar(self.b, float(self.attrs[name]), self.like)  # type: ignore[arg-type]


def _adagrad(n: _Numbers, x: Value, g: Value, h: Value) -> list[Value]:
    rate = n.rate / (1.0 + n.count * n["decay_factor"])
    g = n["norm_coefficient"] * x + g
    h = h + g * g
    return [x - rate * g / (n.b.Sqrt(h) + n["epsilon"]), h]


def _adam(n: _Numbers, x: Value, g: Value, v: Value, h: Value) -> list[Value]:
    b, alpha, beta = n.b, n["alpha"], n["beta"]
    g = n["norm_coefficient"] * x + g
    v = alpha * v + (1.0 - alpha) * g
    h = beta * h + (1.0 - beta) * g * g
    corrected = n.rate * b.Sqrt(1.0 - b.Pow(beta, n.count)) / (1.0 - b.Pow(alpha, n.count))
    rate = b.Where(n.later, corrected, n.rate)
    x = x - rate * v / (b.Sqrt(h) + n["epsilon"])
    return [(1.0 - n["norm_coefficient_post"]) * x, v, h]


def _momentum(n: _Numbers, x: Value, g: Value, v: Value) -> list[Value]:
    alpha = n["alpha"]
    g = n["norm_coefficient"] * x + g
    beta = n.b.Where(n.later, n["beta"], scalar(n.b, 1.0, x))
    v = alpha * v + beta * g
    step = g + alpha * v if n.attrs["mode"] == "nesterov" else v
    return [x - n.rate * step, v]


_RULES: dict[str, Callable[..., list[Value]]] = {"Adagrad": _adagrad, "Adam": _adam, "Momentum": _momentum}
