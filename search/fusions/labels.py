"""What people call a fused body. For reports only: nothing is found, generated or chosen by its name."""

from __future__ import annotations

from collections.abc import Callable

from graphs.dtypes import is_float
from graphs.ir import Graph, Node
from graphs.operators import find
from graphs.types import Shape, TensorType
from runtime.codegen.c.recurrent import is_recurrent

_NORMS = {"LayerNormalization": "LayerNorm", "RMSNormalization": "RMSNorm", "SimplifiedLayerNormalization": "RMSNorm",
          "SkipLayerNormalization": "residual + LayerNorm", "GroupNormalization": "GroupNorm",
          "InstanceNormalization": "InstanceNorm"}
_WINDOWS = {"MaxPool": "pooling", "AveragePool": "pooling", "LpPool": "pooling", "Resize": "resize",
            "Upsample": "resize"}
_PASSED = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Cast", "Dropout", "Identity"})  # see `_Body.near`
_GATES = frozenset({"Sigmoid", "Swish", "SiLU"})


def label_of(body: Graph) -> str:
    """`LayerNorm`, `softmax with scale and mask`, ...; else what kind of kernel it is; and how many results it has."""
    seen = _Body(body)
    names = [name for rule in _RULES if (name := rule(seen))]
    several = f" ({len(body.outputs)} results)" if len(body.outputs) > 1 else ""
    if names:
        return " + ".join(dict.fromkeys(names)) + several
    reducing = [_WINDOWS.get(node.op, "reduction") for node in body.nodes if _is_reduction(node)]
    if reducing:
        return " + ".join(dict.fromkeys(reducing)) + several
    work = sum(not _is_movement(node) for node in body.nodes)
    return ("pointwise chain" if work > 1 else "pointwise" if work else "movement") + several


class _Body:
    """A body with who makes and who reads each value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.producers()
        self.ops = {node.op for node in graph.nodes}

    def splat(self, name: str) -> float | None:
        """The number that a value is everywhere."""
        constant = self.graph.constants.get(name)
        found = None if constant is None else constant.facts.splat
        return None if found is None else float(found)

    def above(self, name: str) -> list[Node]:
        """The nodes that a value is computed by, the nearest first."""
        found: dict[int, Node] = {}
        waiting = [name]
        while waiting:
            node = self.makers.get(waiting.pop(0))
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting += [each for each in node.inputs if each]
        return list(found.values())

    def of(self, *ops: str) -> list[Node]:
        """The nodes of these operators."""
        return [node for node in self.graph.nodes if node.op in ops]

    def shape(self, name: str) -> Shape | None:
        """The shape of a value, None where it is not known."""
        type_ = self.graph.type_of(name)
        return type_.shape if isinstance(type_, TensorType) else None

    def near(self, name: str) -> list[Node]:
        """The nodes above a value that only move its elements, or change each by adding, scaling or choosing."""
        found: dict[int, Node] = {}
        waiting = [name]
        while waiting:
            node = self.makers.get(waiting.pop(0))
            if node is None or id(node) in found or not (node.op in _PASSED or _is_movement(node)):
                continue
            found[id(node)] = node
            whole = self.shape(node.outputs[0])
            waiting += [each for each in node.inputs if each and (node.op not in _PASSED or self.shape(each) == whole)]
        return list(found.values())


def _softmax(seen: _Body) -> str:
    if _loss(seen):
        return ""
    reduced = {"ReduceMax", "ReduceSum", "Exp"} <= seen.ops
    roots = seen.of("Softmax", "LogSoftmax") or (seen.of("ReduceMax") if reduced else [])
    if not roots:
        return ""
    before = seen.near(roots[0].inputs[0])
    factors = [name for node in seen.of("MatMul") if any(node.outputs[0] in each.inputs for each in [*before, roots[0]])
               for name in node.inputs]
    scaled = any(node.op in ("Mul", "Div") and any(seen.splat(name) is not None for name in node.inputs)
                 for node in [*before, *(each for name in factors for each in seen.near(name))])
    masked = any(node.op == "Where" or _is_mask(seen, node) for node in before)
    name = "log-softmax" if roots[0].op == "LogSoftmax" else "softmax"
    extras = [word for word, there in (("scale", scaled), ("mask", masked)) if there]
    return f"{name} with {' and '.join(extras)}" if extras else name


def _is_mask(seen: _Body, node: Node) -> bool:
    """Is something added that is the same along an axis of the scores? What has one axis is a bias, and what has as
    many elements as they have may be anything."""
    whole = seen.shape(node.outputs[0])
    shapes = [seen.shape(name) for name in node.inputs]
    return node.op in ("Add", "Sub") and whole in shapes and any(
        shape is not None and shape != whole and len(shape) > 1 and any(size != 1 for size in shape)
        for shape in shapes)


def _norm(seen: _Body) -> str:
    for op, name in _NORMS.items():
        for node in seen.of(op):
            return _with_residual(seen, name, node.inputs[0])
    roots = [node for node in seen.of("Sqrt", "Pow", "Reciprocal", "Rsqrt")
             if any(each.op in ("ReduceMean", "ReduceSum", "ReduceSumSquare") for each in seen.above(node.inputs[0]))]
    means = seen.of("ReduceMean", "ReduceSum", "ReduceSumSquare")
    if not roots or not means or not seen.ops & {"Div", "Mul", "Reciprocal"}:
        return ""
    first = means[0]
    centred = any(first.outputs[0] in node.inputs for node in seen.of("Sub"))
    return _with_residual(seen, "LayerNorm" if centred else "RMSNorm", first.inputs[0])


def _with_residual(seen: _Body, name: str, value: str) -> str:
    added = any(node.op == "Add" and all(
        each not in seen.graph.constants and seen.shape(each) == seen.shape(node.outputs[0]) is not None
        for each in node.inputs) for node in seen.near(value))
    return f"residual + {name}" if added else name


def _gelu(seen: _Body) -> str:
    by_erf = bool(seen.of("Erf")) and any(node.op == "Mul" for node in seen.graph.nodes)
    by_tanh = any(len(seen.above(node.inputs[0])) >= 3 and any(
        (each.op == "Pow" and seen.splat(each.inputs[1]) == 3) or each.op == "Mul"
        for each in seen.above(node.inputs[0])) for node in seen.of("Tanh"))
    return "GELU" if by_erf or by_tanh or seen.of("Gelu", "FastGelu", "BiasGelu") else ""


def _swiglu(seen: _Body) -> str:
    for gate in seen.of(*_GATES):
        gated = gate.outputs[0] if gate.op != "Sigmoid" else next(
            (node.outputs[0] for node in seen.of("Mul")
             if gate.outputs[0] in node.inputs and gate.inputs[0] in node.inputs), "")
        if gated:
            times = any(gated in node.inputs and not any(seen.splat(name) is not None for name in node.inputs)
                        for node in seen.of("Mul"))
            return "SwiGLU" if times else "SiLU"
    return ""


def _rotary(seen: _Body) -> str:
    turned = seen.of("Neg") and seen.of("Concat") and seen.of("Slice", "Split")
    return "rotary" if (turned and {"Mul", "Add"} <= seen.ops) or seen.of("RotaryEmbedding") else ""


def _batch_norm(seen: _Body) -> str:
    channels = [node for node in seen.of("Mul", "Add") for name in node.inputs
                if name in seen.graph.inputs and _is_by_channel(seen, name)]
    scaled = seen.of("BatchNormalization") or {"Mul", "Add"} <= {node.op for node in channels}
    if not scaled:
        return ""
    return "BatchNorm-ReLU" if seen.of("Relu") else "BatchNorm"


def _is_by_channel(seen: _Body, name: str) -> bool:
    """[1, c, 1, 1] or [c, 1, 1]: a number for each channel."""
    type_ = seen.graph.type_of(name)
    shape = type_.shape if type_ is not None else None
    if shape is None or len(shape) < 3:
        return False
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    return len(wide) == 1 and wide[0] in (len(shape) - 3, 1) and wide[0] != len(shape) - 1


def _is_movement(node: Node) -> bool:
    record = find(node.op, node.domain)
    return record is not None and record.movement


def _is_reduction(node: Node) -> bool:
    record = find(node.op, node.domain)
    return record is not None and not record.pointwise and not record.movement


def _product(seen: _Body) -> str:
    if seen.of("Conv", "ConvTranspose"):
        return "convolution"
    return "product" if seen.of("MatMul", "Gemm") else ""


def _recurrent(seen: _Body) -> str:
    return next((node.op for node in seen.graph.nodes if is_recurrent(node)), "")


def _embedding(seen: _Body) -> str:
    tables = any(_is_table(seen, node.inputs[0]) and node.attrs.get("axis") in (0, -2)
                 and node.inputs[1] not in seen.graph.constants for node in seen.of("Gather"))
    return "embedding" if tables and not _loss(seen) else ""


def _is_table(seen: _Body, name: str) -> bool:
    """Rows of numbers, which an embedding looks up; no list of sizes."""
    type_ = seen.graph.type_of(name)
    return name in seen.graph.inputs and isinstance(type_, TensorType) and type_.rank == 2 and is_float(type_.dtype)


def _loss(seen: _Body) -> str:
    if seen.of("SoftmaxCrossEntropyLoss"):
        return "cross-entropy"
    picked = [each.op for node in seen.of("GatherElements") for each in seen.above(node.inputs[0])]
    if "LogSoftmax" in picked:
        return "cross-entropy"
    return "negative log-likelihood" if seen.of("NegativeLogLikelihoodLoss") else ""


_RULES: tuple[Callable[[_Body], str], ...] = (
    _recurrent, _product, _loss, _embedding, _softmax, _norm, _gelu, _swiglu, _rotary, _batch_norm)
