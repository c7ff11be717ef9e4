"""Lowerings of the elementwise operators."""

from __future__ import annotations

import numpy as np

from runtime.codegen import elementwise, scalar
from runtime.codegen.elementwise import Operand

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor
from . import rows

LOWERINGS, lowering = rows()


def emit_pointwise(emitter: Emitter, name: str, operands: list[Tensor], result: str, expression: str) -> None:
    """Emit one pointwise kernel over broadcast operands into output 0."""
    if any(each.dtype not in scalar.DTYPES for each in operands) or result not in scalar.DTYPES:
        raise NoKernel(f"element types {[each.dtype for each in operands]}")
    shape = np.broadcast_shapes(*(each.shape for each in operands))
    read = [each.broadcast(shape) for each in operands]
    made = emitter.output(0, shape, result)
    operands_read = [Operand(each.dtype, each.strides) for each in read]
    kernel = elementwise.pointwise(name, shape, operands_read, result, expression)
    emitter.launch(kernel, *read, made)


@lowering(*elementwise.BINARY)
def _binary(emitter: Emitter) -> None:
    operands = [emitter.tensor(0), emitter.tensor(1)]
    if any(each.dtype not in scalar.DTYPES for each in operands):
        raise NoKernel(f"element type {operands[0].dtype}")
    of = scalar.Scalar.of(operands[0].dtype)
    text = elementwise.BINARY[emitter.node.op](of, ["a0", "a1"], emitter.attrs)
    emit_pointwise(emitter, emitter.node.op.lower(), operands, operands[0].dtype, text)
