"""Sizes that follow from the input sizes: constants and attributes instead of Shape, Gather, Concat chains."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from graphs.constants import Constant
from graphs.dims import is_static
from graphs.inference import contents
from graphs.ir import Graph, Node
from graphs.operators import RUNTIME, Contents, available, find
from graphs.operators._resampling import resized_axes
from graphs.types import TensorType
from graphs.versions import write_node
from rules.form import spell_reshape

CROPS = "tf_crop_and_resize"
_HAS_AXES = 18  # the version of Resize


def resolve_shapes(graph: Graph) -> list[str]:
    """Replace known integer values by constants, and runtime shape inputs by attributes where they can be stated."""
    known = contents(graph)
    changed: list[str] = []
    for node in graph.nodes:
        if node.is_opaque or node.domain != "":
            continue
        if any(value is RUNTIME for value in node.attrs.values()) and _state_attributes(graph, node, known):
            changed.append(node.outputs[0])
    return changed + _known_constants(graph, known)


def _known_constants(graph: Graph, known: Mapping[str, Contents]) -> list[str]:
    changed: dict[str, None] = {}
    for node in graph.nodes:
        outs = [out for out in node.outputs if out]
        if node.is_opaque or len(outs) != 1 or any(True for _ in node.graphs):
            continue
        type_, found = graph.type_of(outs[0]), known.get(outs[0])
        if found is None or type_ is None or not type_.is_static or not all(map(is_static, found)):
            continue
        graph.constants[outs[0]] = Constant.of(np.array(found).reshape(type_.shape), type_.dtype)  # type: ignore[arg-type]
        graph.types.pop(outs[0], None)
        changed[outs[0]] = None
    if changed:
        graph.nodes = [node for node in graph.nodes if changed.keys().isdisjoint(node.outputs)]
    return list(changed)


def _state_attributes(graph: Graph, node: Node, known: Mapping[str, Contents]) -> bool:
    record = find(node.op, node.domain)
    if record is None:
        return False
    changed = False
    for name, position in record.static.items():
        if node.attrs.get(name) is not RUNTIME:
            continue
        source = node.inputs[position] if position < len(node.inputs) else ""
        value = _statable(graph, node, name, source, known.get(source))
        if value is None:
            continue
        inputs = list(node.inputs)
        inputs[position] = ""
        while inputs and not inputs[-1]:
            inputs.pop()
        stated = node.copy()
        stated.attrs.update(value)
        stated.inputs = tuple(inputs)
        if isinstance(write_node(stated, graph.opset, graph.type_of), str):
            continue  # a file has an input there, of an element type that is not known (Clip of a value without type)
        node.attrs, node.inputs = stated.attrs, stated.inputs
        changed = True
    return changed


def _statable(graph: Graph, node: Node, name: str, source: str, found: Contents | None) -> dict[str, object] | None:
    """The attribute's value, None where it depends on the data or cannot be written as integers."""
    result = graph.type_of(node.outputs[0])
    if node.op == "Reshape" and name == "shape":
        return _reshape(graph, node, found, result)
    if found is None:
        return None
    if node.op == "Expand" and name == "shape":
        return _expand(graph, node, found)
    if node.op == "Resize" and name == "sizes":
        return _resize(graph, node, found)
    if not all(map(is_static, found)):
        return None
    type_ = graph.type_of(source)
    scalar = type_ is not None and type_.rank == 0
    return {name: int(found[0]) if scalar else tuple(int(item) for item in found)}  # type: ignore[arg-type]


def _reshape(graph: Graph, node: Node, found: Contents | None, result: TensorType | None) -> dict[str, object] | None:
    """-1 and 0 inside a runtime target mean what they say only if they are stated; take the inferred result."""
    data = graph.type_of(node.inputs[0])
    if found is not None and all(map(is_static, found)):
        return {"shape": tuple(int(item) for item in found)}  # type: ignore[arg-type]
    if data is None or data.shape is None or result is None or not result.is_known or result.shape is None:
        return None
    spelled = spell_reshape(data.shape, result.shape)
    if isinstance(spelled, str) or spelled.op != "Reshape":
        return _with_one_free(data, result)
    if spelled.attrs.get("allowzero") and not _has_allowzero(graph):
        return None
    return dict(spelled.attrs)


def _with_one_free(data: TensorType, result: TensorType) -> dict[str, object] | None:
    """Integers as they are, sizes that stay in place as 0, at most one other as -1."""
    assert data.shape is not None and result.shape is not None
    spelled: list[int] = []
    for index, dim in enumerate(result.shape):
        if isinstance(dim, int):
            if dim == 0:
                return None
            spelled.append(dim)
        else:
            spelled.append(0 if index < len(data.shape) and data.shape[index] == dim else -1)
    return {"shape": tuple(spelled), "allowzero": 0} if spelled.count(-1) <= 1 else None


def _expand(graph: Graph, node: Node, found: Contents) -> dict[str, object] | None:
    data = graph.type_of(node.inputs[0])
    if data is None or data.shape is None:
        return None
    spelled: list[int] = []
    offset = len(found) - len(data.shape)
    for index, dim in enumerate(found):
        if isinstance(dim, int):
            spelled.append(dim)
        elif index >= offset and data.shape[index - offset] == dim:
            spelled.append(1)
        else:
            return None
    return {"shape": tuple(spelled)}


def _resize(graph: Graph, node: Node, found: Contents) -> dict[str, object] | None:
    """Sizes of the axes that change, where these are known; before opset 18, which has no axes, their exact ratios."""
    if all(map(is_static, found)):
        return {"sizes": tuple(int(item) for item in found)}  # type: ignore[arg-type]
    data, attrs = graph.type_of(node.inputs[0]), node.attrs
    plain = attrs["keep_aspect_ratio_policy"] == "stretch" and attrs["roi"] is None
    if data is None or data.shape is None or not plain or attrs["coordinate_transformation_mode"] == CROPS:
        return None
    axes = resized_axes(attrs["axes"], len(data.shape))
    changed = [(axis, data.shape[axis], size) for axis, size in zip(axes, found) if data.shape[axis] != size]
    if not all(isinstance(before, int) and isinstance(after, int) and before > 0 for _, before, after in changed):
        return None
    if node.version >= _HAS_AXES:
        ordered = {axis: int(after) for axis, _, after in changed}  # type: ignore[arg-type]
        return {"axes": tuple(ordered), "sizes": tuple(ordered.values())} if ordered else None
    scales = [1.0] * len(data.shape)
    for axis, before, after in changed:
        ratio = np.float32(after) / np.float32(before)  # type: ignore[arg-type]
        if Fraction(float(ratio)) != Fraction(int(after), int(before)):  # type: ignore[arg-type]
            return None
        scales[axis] = float(ratio)
    return {"scales": tuple(scales), "sizes": None}


def _has_allowzero(graph: Graph) -> bool:
    return available("Reshape", graph.opset) and graph.opset >= 14
