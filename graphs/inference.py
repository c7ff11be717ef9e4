"""Type inference: element types and shapes of every value, and the elements of small integer tensors.

Types flow from the graph's inputs and constants through the operator records. What the model declares of outputs and
intermediate values is not trusted, except the element type of an opaque node's outputs. Unknown stays unknown (None)
and never stops the walk; only an operator that refuses its inputs does (InferenceError).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from . import dtypes, ml_types
from .constants import Constant
from .dims import data_dim
from .errors import InferenceError
from .ir import Graph, Node, is_fused
from .operators import Contents, Operator, Site, find, schema
from .types import OtherType, TensorType, Type

MAX_CONTENTS = 64  # elements of a tensor that are followed one by one
_MAX_ROUNDS = 8  # of one loop body until its state types settle
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Inferred:
    """What is known of a node's outputs: a type each, and the elements of the first one."""

    types: list[Type | None]
    contents: Contents | None = None


KnownInput = tuple[Type | None, Contents | None, Constant | None]


class Seen:
    """What a node's types were inferred from, and what came out. While a graph is changed at some places, the others
    keep theirs; nodes and their copies remember them.

    Attributes and constants count as the same where they are the same objects: a copy of a node has them too.
    """

    __slots__ = ("inputs", "key", "result", "values")

    def __init__(self, node: Node, inputs: list[KnownInput], label: str, result: Inferred) -> None:
        self.key = (node.op, node.domain, label, len(node.outputs), tuple(node.attrs))
        self.values, self.result = (*node.attrs.values(), *(found[2] for found in inputs)), result
        self.inputs = [found[:2] for found in inputs]

    def holds(self, node: Node, inputs: list[KnownInput], label: str) -> bool:
        """Nothing that the types follow from has changed."""
        values = (*node.attrs.values(), *(found[2] for found in inputs))
        return (self.inputs == [found[:2] for found in inputs] and all(map(operator.is_, self.values, values))
                and self.key == (node.op, node.domain, label, len(node.outputs), tuple(node.attrs)))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a node that is sent elsewhere takes nothing of its graph along


@dataclass(slots=True)
class Scope:
    """Values that a graph sees: its own and those of the graphs around it."""

    types: dict[str, Type]
    constants: Mapping[str, Constant]
    contents: dict[str, Contents] = field(default_factory=dict)
    parent: Scope | None = None
    path: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)

    def lookup(self, name: str) -> KnownInput:
        """Type, contents and constant of a name, from the innermost graph that has it."""
        if not name:
            return None, None, None
        scope: Scope | None = self
        while scope is not None:
            if name in scope.constants:
                constant = scope.constants[name]
                return constant.type, contents_of(constant), constant
            if name in scope.types or name in scope.contents:
                return scope.types.get(name), scope.contents.get(name), None
            scope = scope.parent
        return None, None, None


def contents_of(constant: Constant) -> Contents | None:
    """The elements of a small integer or bool constant, else None."""
    kind = constant.dtype
    if (kind not in dtypes.INTEGERS and kind != "bool") or constant.size > MAX_CONTENTS:
        return None
    return tuple(int(item) for item in constant.array.reshape(-1).tolist())


def infer(graph: Graph) -> None:
    """Fill `types` of a graph (in topological order) and of its nested graphs, from the types of its inputs.

    Raises InferenceError where an operator does not accept its inputs.
    """
    _infer_graph(graph, None, "", graph.opsets)


def contents(graph: Graph) -> dict[str, Contents]:
    """Known elements of small integer values of the outermost graph, constants included. Fills types as well."""
    scope = _infer_graph(graph, None, "", graph.opsets)
    known = {name: found for name, constant in graph.constants.items() if (found := contents_of(constant))}
    return {**known, **scope.contents}


def _infer_graph(graph: Graph, parent: Scope | None, path: str, opsets: Mapping[str, int]) -> Scope:
    inputs = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    scope = Scope(inputs, graph.constants, {}, parent, path, opsets)
    for node in graph.nodes:
        found = _visit(node, scope, graph.declared)
        for name, type_ in zip(node.outputs, found.types):
            if name and type_ is not None:
                scope.types[name] = type_
        if found.contents is not None and node.outputs and node.outputs[0]:
            scope.contents[node.outputs[0]] = found.contents
    for name in graph.outputs if parent is not None else ():  # a value of the graph around, handed through
        handed = scope.lookup(name)[0]
        if handed is not None and name not in scope.constants:
            scope.types.setdefault(name, handed)
    graph.types = scope.types
    return scope


def _label(node: Node, path: str) -> str:
    return path + next((name for name in node.outputs if name), node.name or node.op)


def _visit(node: Node, scope: Scope, declared: Mapping[str, Type]) -> Inferred:
    looked_up = [scope.lookup(name) for name in node.inputs]
    label = _label(node, scope.path)
    if node.is_opaque or node.holds_graphs:
        return _inferred(node, looked_up, scope, declared, label)
    seen = node.seen
    if isinstance(seen, Seen) and seen.holds(node, looked_up, label):
        return seen.result
    result = _inferred(node, looked_up, scope, declared, label)
    node.seen = Seen(node, looked_up, label, result)
    return result


def _inferred(node: Node, looked_up: list[KnownInput], scope: Scope, declared: Mapping[str, Type],
              label: str) -> Inferred:
    types = [found[0] for found in looked_up]
    infer_nested_of(node, types, scope, label)
    try:
        result = infer_node(node, types, [found[1] for found in looked_up], [found[2] for found in looked_up], label)
    except InferenceError as error:
        if scope.parent is None:
            raise
        # A branch that is never taken may be ill-typed for these sizes (a guarded Squeeze): it stays as it is.
        _log.info("inside a nested graph, types of %s stay unknown: %s", label, error.found)
        result = Inferred([None] * len(node.outputs))
    if is_fused(node):
        result.types = [node.attrs["body"].types.get(name) for name in node.attrs["body"].outputs]  # type: ignore[attr-defined]
    elif node.is_opaque:
        result.types = opaque_types(node, types, result.types, declared, scope.opsets)
    return result


def infer_node(
    node: Node,
    types: Sequence[Type | None],
    contents: Sequence[Contents | None],
    constants: Sequence[Constant | None],
    label: str,
) -> Inferred:
    """Output types and contents of one node of given inputs. Nested graphs must have their types already.

    `label` makes sizes that only data decide unique; inside one graph it is the name of the first output.
    """
    unknown = Inferred([None] * len(node.outputs))
    record = None if node.is_opaque else find(node.op, node.domain)
    if record is None:
        return unknown
    site = Site(node.op, node.attrs, types, contents, constants, len(node.outputs), label)  # type: ignore[arg-type]
    return infer_site(record, site)


def infer_site(record: Operator, site: Site) -> Inferred:
    """Run a record on a site. A defect in a record is logged and leaves the outputs unknown."""
    result = Inferred([None] * site.outputs)
    try:
        types = list(record.infer(site))
        if len(types) < site.outputs:
            _log.warning("the record of %s gives %d types for %d outputs of %s", record.name, len(types),
                         site.outputs, site.label)
        result.types = (types + [None] * site.outputs)[: site.outputs]
        for type_ in result.types:
            if isinstance(type_, TensorType) and any(isinstance(dim, int) and dim < 0 for dim in type_.shape or ()):
                raise site.fail(f"its output would have the shape {list(type_.shape or ())}")
        if record.contents is not None:
            result.contents = _checked(record.contents(site), result.types[0] if result.types else None)
    except InferenceError:
        raise
    except Exception:
        # A model must not be refused because a record has a defect: go on around the node.
        _log.warning("the record of %s failed on %s", record.name, site.label, exc_info=True)
    return result


def _checked(found: Contents | None, type_: Type | None) -> Contents | None:
    if found is None or len(found) > MAX_CONTENTS:
        return None
    if isinstance(type_, TensorType) and isinstance(type_.elements, int) and type_.elements != len(found):
        _log.warning("%d elements were inferred for a %s", len(found), type_)
        return None
    return tuple(found)


def opaque_types(node: Node, types: Sequence[Type | None], known: list[Type | None], declared: Mapping[str, Type],
                  opsets: Mapping[str, int]) -> list[Type | None]:
    """Element types of an opaque node: from the ONNX schema, else from what the model declares; never a shape, except
    of `ai.onnx.ml`, whose operators are opaque without being unknown."""
    result = list(known)
    for index, name in enumerate(node.outputs):
        stated = declared.get(name)
        dtype = schema_dtype(node, index, types, opsets.get(node.domain, 0))
        if dtype is not None:
            result[index] = TensorType(dtype)
        elif isinstance(stated, TensorType):
            result[index] = TensorType(stated.dtype)
        elif isinstance(stated, OtherType):
            result[index] = stated
    if node.domain == ml_types.DOMAIN:
        for index, type_ in enumerate(ml_types.ml_types(node.op, node.attrs, types)[: len(result)]):
            result[index] = type_ or result[index]
    return result


def schema_dtype(node: Node, index: int, types: Sequence[Type | None], opset: int) -> str | None:
    """The element type of an output where the operator's ONNX schema ties it to an input or fixes it."""
    found = schema(node.op, opset, node.domain) if opset else None
    if found is None or index >= len(found.outputs) or opset > onnx.defs.onnx_opset_version():
        return None
    formal = found.outputs[index]
    if formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        return None
    allowed = list(formal.types)
    if len(allowed) == 1:
        return _FROM_SCHEMA.get(allowed[0])
    for position, parameter in enumerate(found.inputs):
        if parameter.type_str == formal.type_str and position < len(types):
            type_ = types[position]
            if isinstance(type_, TensorType):
                return type_.dtype
    return None


_FROM_SCHEMA = {dtypes.schema_type(name): name for name in dtypes.ONNX_NUMBER}


# Nested graphs


def infer_nested_of(node: Node, types: Sequence[Type | None], scope: Scope, label: str) -> None:
    """Fill the types of a node's nested graphs, whose surroundings are `scope`."""
    body = node.attrs.get("body")
    if is_fused(node):  # its body stands for itself: it sees nothing of the graph around
        assert isinstance(body, Graph)
        body.types = {name: type_ for name, type_ in zip(body.inputs, types) if type_ is not None}
        _infer_graph(body, None, f"{label}/", scope.opsets)
        return
    if not node.is_opaque and node.domain == "" and isinstance(body, Graph):
        if node.op == "Loop":
            first: list[Type | None] = [TensorType("int64", ()), TensorType("bool", ())]
            return _infer_loop(body, [*first, *types[2:]], 2, 1, scope, label)
        if node.op == "Scan" and node.version >= 9:
            return _infer_scan(node, body, types, scope, label)
    for index, graph in enumerate(node.graphs):
        for name in graph.inputs:  # of an operator that nobody knows: only element types
            stated = graph.declared.get(name, graph.types.get(name))
            if stated is not None:
                graph.types[name] = TensorType(stated.dtype) if isinstance(stated, TensorType) else stated
        _infer_graph(graph, scope, f"{label}/{index}/", scope.opsets)


def _infer_scan(node: Node, body: Graph, types: Sequence[Type | None], scope: Scope, label: str) -> None:
    count = node.attrs.get("num_scan_inputs")
    states = len(types) - count if isinstance(count, int) else len(types)
    axes = node.attrs.get("scan_input_axes") or ()
    inputs = list(types)
    for index in range(states, len(types)):
        type_ = types[index]
        axis = axes[index - states] if isinstance(axes, tuple) and index - states < len(axes) else 0
        if isinstance(type_, TensorType) and type_.shape is not None and -len(type_.shape) <= axis < len(type_.shape):
            axis %= len(type_.shape)
            inputs[index] = type_.with_shape(type_.shape[:axis] + type_.shape[axis + 1 :])
        elif isinstance(type_, TensorType):
            inputs[index] = type_.with_shape(None)
    _infer_loop(body, inputs, 0, 0, scope, label, states)


def _infer_loop(body: Graph, inputs: list[Type | None], first: int, first_output: int, scope: Scope, label: str,
                states: int | None = None) -> None:
    """Infer a body whose state inputs `first..` take its outputs `first_output..` again, until the types settle."""
    states = len(inputs) - first if states is None else states
    for index in range(min(first, len(body.inputs))):  # ONNX Runtime feeds [1] where the body declares rank 1
        stated = body.declared.get(body.inputs[index])
        if isinstance(stated, TensorType) and stated.rank == 1:
            inputs[index] = TensorType("int64" if index == 0 else "bool", (1,))
    for round_ in range(_MAX_ROUNDS):
        for name, type_ in zip(body.inputs, inputs):
            if type_ is None:
                body.types.pop(name, None)
            else:
                body.types[name] = type_
        inner = _infer_graph(body, scope, f"{label}/", scope.opsets)
        settled = True
        for index in range(first, min(first + states, len(inputs), len(body.inputs))):
            position = index - first + first_output
            out = inner.lookup(body.outputs[position])[0] if position < len(body.outputs) else None
            joined = _joined(inputs[index], out, f"{label}/{body.inputs[index]}")
            if round_ == _MAX_ROUNDS - 2 and isinstance(joined, TensorType):
                joined = joined.with_shape(None)  # it does not settle: give up on shapes, which then holds
            settled = settled and joined == inputs[index]
            inputs[index] = joined
        if settled:
            return


def _joined(a: Type | None, b: Type | None, label: str) -> Type | None:
    """The type of a value that is `a` at first and `b` in later rounds."""
    if a == b:
        return a
    if not isinstance(a, TensorType):
        return None
    if not isinstance(b, TensorType):
        return TensorType(a.dtype)
    if a.dtype != b.dtype:
        return None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype)
    dims = [x if x == y else data_dim(label, axis) for axis, (x, y) in enumerate(zip(a.shape, b.shape))]
    return TensorType(a.dtype, tuple(dims))
