"""Lowerings of the elementwise operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphs import dtypes
from runtime.codegen import elementwise, functions
from runtime.codegen.elementwise import ROWS, Operand
from runtime.codegen.scalar import DTYPES, Scalar

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows

LOWERINGS, lowering = rows()
_VARIANTS = ("Mod", "Gelu", "BitShift", "com.microsoft.FastGelu")
MOST_OPERANDS = 64


def scalars_of(tensors: Sequence[Tensor], *results: str) -> list[Scalar]:
    """The scalars of tensors. Raises NoKernel for element types that kernels do not compute with."""
    for dtype in (*(each.dtype for each in tensors), *results):
        if dtype not in DTYPES:
            raise NoKernel(f"element type {dtype}")
    return [Scalar.of(each.dtype) for each in tensors]


def emit_pointwise(emitter: Emitter, name: str, operands: Sequence[Tensor], result: str, expression: str, *,
                   bits: bool = False, calls: str = "", shape: Sequence[int] | None = None, index: int = 0) -> Tensor:
    """Emit one pointwise kernel over broadcast operands into an output (`elementwise.pointwise` explains the rest)."""
    scalars_of(operands, result)
    whole = np.broadcast_shapes(*(each.shape for each in operands)) if shape is None else tuple(shape)
    made = emitter.output(index, whole, result)
    compute_into(emitter, name, operands, made, expression, bits=bits, calls=calls)
    return made


def compute_into(emitter: Emitter, name: str, operands: Sequence[Tensor], made: Tensor, expression: str, *,
                 bits: bool = False, calls: str = "") -> None:
    """The same into a row-major tensor."""
    read = [each.broadcast(made.shape) for each in operands]
    described = [Operand(each.dtype, each.strides) for each in read]
    kernel = elementwise.pointwise(name, made.shape, described, made.dtype, expression, bits=bits, calls=calls)
    emitter.launch(kernel, *read, made)


def literal(value: object, dtype: str) -> str:
    """A number as an element type holds it, in the compute type."""
    with np.errstate(all="ignore"):
        held = np.asarray(value).astype(dtypes.numpy_dtype(dtype)).reshape(-1)[0]
    return Scalar.of(dtype).literal(held.item() if dtype != "bfloat16" else float(held))


def _variant(name: str, emitter: Emitter) -> str:
    attrs = emitter.attrs
    if name == "Mod":
        return "Mod fmod" if attrs["fmod"] else "Mod"
    if name == "Gelu":
        return "Gelu tanh" if attrs["approximate"] == "tanh" else "Gelu"
    if name == "BitShift":
        return f"BitShift {attrs['direction']}"
    return f"{name} bias" if emitter.has(1) else name


def _row(emitter: Emitter) -> None:
    node = emitter.node
    name = f"{node.domain}.{node.op}" if node.domain else node.op
    if name in _VARIANTS:
        name = _variant(name, emitter)
    row = ROWS[name]
    operands = [emitter.tensor(index) for index in range(len(emitter.inputs)) if emitter.has(index)]
    scalars = scalars_of(operands)
    if len({each.dtype for each in operands}) > 1 or len(operands) > MOST_OPERANDS:
        raise NoKernel(f"inputs of {', '.join(each.dtype for each in operands)}")
    attrs: dict[str, Any] = {"alpha": 1.702} if name == "com.microsoft.QuickGelu" else {}
    expression = row.expression(scalars[0], {**attrs, **emitter.attrs}, len(operands))
    if expression is None:
        raise NoKernel(f"{node.op} of {operands[0].dtype}")
    emit_pointwise(emitter, node.op.lower(), operands, row.result or operands[0].dtype, expression)


lowering(*dict.fromkeys(name.partition(" ")[0] for name in ROWS))(_row)


@lowering("Pow")
def _power(emitter: Emitter) -> None:
    operands = [emitter.tensor(0), emitter.tensor(1)]
    base, exponent = scalars_of(operands)
    if "bool" in (base.dtype, exponent.dtype):
        raise NoKernel("Pow of bool")
    expression, calls = elementwise.power(base, exponent)
    emit_pointwise(emitter, "pow", operands, base.dtype, expression, calls=calls)


@lowering("Where")
def _where(emitter: Emitter) -> None:
    operands = [emitter.tensor(index) for index in range(3)]
    scalars_of(operands)
    if operands[0].dtype != "bool" or operands[1].dtype != operands[2].dtype:
        raise NoKernel(f"Where of {', '.join(each.dtype for each in operands)}")
    emit_pointwise(emitter, "where", operands, operands[1].dtype, "a0 ? a1 : a2", bits=True)


@lowering("Clip")
def _clip(emitter: Emitter) -> None:
    """Bounds are literals, or tensors of one element where only the run gives them. The upper one wins."""
    operands = [emitter.tensor(0)]
    scalars_of(operands)
    expression = "a0"
    for position, (name, function) in enumerate((("min", "eg_max"), ("max", "eg_min")), 1):
        if emitter.attrs.is_late(name):
            operands.append(one_element(emitter.tensor(position)))
            bound = f"a{len(operands) - 1}"
        else:
            value = emitter.attrs[name]
            if value is None:
                continue
            bound = literal(value, operands[0].dtype)
        expression = f"{function}({bound}, {expression})"  # of two zeros the second: -0.0 stays
    if operands[0].dtype == "bool" or len({each.dtype for each in operands}) > 1:
        raise NoKernel(f"Clip of {', '.join(each.dtype for each in operands)}")
    emit_pointwise(emitter, "clip", operands, operands[0].dtype, expression, shape=operands[0].shape)


def one_element(tensor: Tensor) -> Tensor:
    """A tensor of one element as a scalar. Raises NoKernel where it has another number of elements."""
    if tensor.size != 1:
        raise NoKernel(f"a tensor of {tensor.size} elements for a scalar")
    return tensor.viewed((), ())


@lowering("Cast", "CastLike")
def _cast(emitter: Emitter) -> None:
    if emitter.node.op == "CastLike":
        like = emitter.inputs[1]
        target = "" if like is None else like.dtype
    else:
        target = dtypes.FROM_ONNX.get(int(emitter.attrs["to"]), "")
    value = emitter.tensor(0)
    if value.dtype == target:
        return emitter.view(0, value)
    (source,) = scalars_of([value], target)
    expression = functions.conversion(source, Scalar.of(target), "a0")
    emit_pointwise(emitter, f"cast_{target}", [value], target, expression)


@lowering("Dropout")
def _dropout(emitter: Emitter) -> None:
    attrs = emitter.attrs
    if attrs["training_mode"]:
        raise NoKernel("Dropout in training mode")
    value = emitter.tensor(0)
    if emitter.wants(1):
        mask = value.dtype if attrs["legacy_mask"] else "bool"
        emit_pointwise(emitter, "ones", [], mask, "1", shape=value.shape, index=1)
    emitter.view(0, value)
