"""Texts that name what is measured: a node's signature and a graph's digest. Names of values are in
neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from graphs.axes import from_front
from graphs.canonical import version_at
from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.onnx_io.stated import stated
from graphs.operators import find
from graphs.text import is_default, print_attribute, print_constant
from graphs.types import TensorType

from .costs import ABSENT, NodeInput, NodeSpec
from .sizes import static_type

# Contents are part of a signature up to these sizes: an exponent, slopes; indices, pads, scales of Resize.
MAX_FLOATS, MAX_INTEGERS = 4, 64


def small_array(constant: Constant) -> np.ndarray | None:
    """The elements of a constant if they are few enough to matter for the signature."""
    limit = MAX_FLOATS if constant.dtype.startswith(("float", "bfloat", "complex")) else MAX_INTEGERS
    return constant.array if constant.size <= limit else None


def spec_of(graph: Graph, node: Node, sizes: Mapping[str, int]) -> NodeSpec:
    """The description of a node of a graph, at sizes of its symbols. Types must have been inferred."""
    inputs = tuple(input_of(graph, name, sizes) for name in node.inputs)
    return NodeSpec(
        node.op,
        node.domain,
        node.attrs,
        inputs,
        len(node.outputs),
        graph.opset,
        node.version,
        dict(graph.opsets),
    )


def input_of(graph: Graph, name: str, sizes: Mapping[str, int]) -> NodeInput:
    """The description of one value as an input of a node."""
    if not name:
        return ABSENT
    constant = graph.constants.get(name)
    if constant is not None:
        return NodeInput(constant.type, True, small_array(constant))
    return NodeInput(static_type(graph.type_of(name), sizes))


def alike(graph: Graph, node: Node) -> tuple[object, ...] | None:
    """What `spec_of` depends on, given sizes and operator sets: equal for nodes of equal description.

    None for nodes whose attributes are graphs or tensors.
    """
    if node.holds_graphs or any(isinstance(value, Constant) for value in node.attrs.values()):
        return None
    inputs: list[object] = []
    for name in node.inputs:
        constant = graph.constants.get(name)
        if constant is None:
            inputs.append(graph.type_of(name) if name else "")
        else:
            inputs.append((constant.type, None if small_array(constant) is None else constant.digest))
    attrs = tuple((name, type(value).__name__, repr(value)) for name, value in sorted(node.attrs.items()))
    return node.op, node.domain, node.version, len(node.outputs), attrs, *inputs


def each_kind(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, but of those that are alike only the first."""
    seen: set[object] = set()
    for node in graph.nodes:
        same = alike(graph, node)
        if same is None or same not in seen:
            seen.add(same)
            yield node


def node_key(spec: NodeSpec, threads: int) -> str:
    """The signature of a node: operator and its schema's version, attributes, input types, outputs, threads.

    `MatMul@13 (float32[8, 768], const float32[768, 768]) -> 1 threads=1`

    The same operation has one key, however the node spells it: axes count from the front (`from_front`), and of two
    inputs in either order a constant is the second, as in the search.
    """
    record = find(spec.op, spec.domain) if spec.version != 0 else None
    inputs, stated = _trimmed(spec.inputs), spec.attrs
    if record is not None:
        stated = from_front(spec.op, spec.domain, stated, inputs[0].type if inputs else None)
        if record.commutative and len(inputs) == 2 and inputs[0].constant and not inputs[1].constant:
            inputs = inputs[::-1]
    attrs = [f"{name}={_attribute(value)}" for name, value in sorted(stated.items())
             if not is_default(record, name, value)]
    version = spec.version if spec.version > 0 else version_at(spec.op, spec.domain, spec.opset)
    if version <= 0:  # unknown to egraft: the operator set's version is all that is known
        version = spec.opsets.get(spec.domain, spec.opset) if spec.domain else spec.opset
    braces = f" {{{', '.join(attrs)}}}" if attrs else ""
    items = ", ".join(map(_input, inputs))
    return f"{spec.label}@{version}{braces} ({items}) -> {spec.output_count} threads={threads}"


def _attribute(value: object) -> str:
    return graph_digest(value) if isinstance(value, Graph) else print_attribute(value)


def _trimmed(inputs: tuple[NodeInput, ...]) -> tuple[NodeInput, ...]:
    """Without absent inputs at the end: they mean the same as no input."""
    count = len(inputs)
    while count and inputs[count - 1].absent:
        count -= 1
    return inputs[:count]


def _input(each: NodeInput) -> str:
    if each.absent:
        return "-"
    if each.type is None:
        return "?"
    prefix = "const " if each.constant else ""
    if each.array is None:
        return f"{prefix}{each.type}"
    return prefix + print_constant(Constant.of(each.array, each.type.dtype))


def graph_digest(graph: Graph) -> str:
    """SHA-256 of what a graph computes: nodes in order, attributes, constants by content, input and output
    types; and of the types that its file states inside of it (`stated`), by which a runtime may choose kernels.

    Values are numbered in the order in which they appear, so that their names do not matter; neither do
    names of nodes, documentation or metadata.
    """
    hasher = hashlib.sha256(_structure(graph, {}).encode())
    for part in graph.walk():
        known = {info.name: info.type for info in stated(part)}
        values = [name for node in part.nodes for name in node.outputs] if known else []
        for place, name in enumerate(values):
            if name in known:
                hasher.update(f"\n{place} ".encode() + known[name].SerializeToString(deterministic=True))
    return hasher.hexdigest()


def _structure(graph: Graph, outer: Mapping[str, str]) -> str:
    number = dict(outer)

    def label(name: str) -> str:
        if name not in number:
            constant = graph.constants.get(name)
            number[name] = constant.digest + str(constant.type) if constant is not None else f"v{len(number)}"
        return number[name]

    lines = [str(sorted(graph.opsets.items()))]
    for name in graph.inputs:
        lines.append(f"in {label(name)} {_type_text(graph, name)}")
    for node in graph.nodes:
        reads = [label(name) if name else "-" for name in node.inputs]
        attrs = []
        for name, value in sorted(node.attrs.items()):
            values = value if isinstance(value, tuple) else (value,)
            if any(isinstance(item, Graph) for item in values):
                # hashed at once: text inside text would double its quotes at each level of nesting
                inner = [hashlib.sha256(_structure(item, number).encode()).hexdigest()
                         for item in values if isinstance(item, Graph)]
                attrs.append(f"{name}={inner}")
            else:
                attrs.append(f"{name}={print_attribute(value)}")
        makes = [label(name) if name else "-" for name in node.outputs]
        lines.append(f"{makes} = {node.domain}.{node.op}:{node.version} {attrs} {reads}")
    lines.append(f"out {[label(name) for name in graph.outputs]}")
    return "\n".join(lines)


def _type_text(graph: Graph, name: str) -> str:
    found = graph.type_of(name)
    return str(found) if isinstance(found, TensorType) else "?"
