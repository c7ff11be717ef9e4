"""Kernels that compute each element of the output from one element of each input, broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar

WIDE = 1 << 31
Expression = Callable[[Scalar, Sequence[str], Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a pointwise kernel as it is read: dtype, and strides over the output's shape."""

    dtype: str
    strides: tuple[int, ...]


def pointwise(name: str, shape: tuple[int, ...], operands: Sequence[Operand], result: str, expression: str,
              *, exact: bool = True) -> Kernel:
    """y = expression over the values `a0`, `a1`, ... of the operands, for every element of a row-major `shape`.

    The values have the compute types of their dtypes; the expression's value is stored as `result`.
    """
    sizes, strides = address.collapse(shape, [each.strides for each in operands] + [address.contiguous(shape)])
    lines = [f"EG_PARALLEL(i, {prod(shape)})"]
    for index, (operand, own) in enumerate(zip(operands, strides)):
        scalar = Scalar.of(operand.dtype)
        value = scalar.load(f"x{index}", address.offset("i", sizes, own))
        lines.append(f"  const {scalar.compute} a{index} = {value};")
    lines.append(f"  {Scalar.of(result).store('y', 'i', expression)}")
    lines.append("EG_END")
    parameters = [Parameter(f"x{index}", each.dtype) for index, each in enumerate(operands)]
    reach = max([prod(shape), *(address.extent(shape, each.strides)[1] for each in operands)])
    return Kernel(f"eg_{name}", (*parameters, Parameter("y", result, True)), "\n".join(lines), prod(shape),
                  in_place=True, exact=exact, wide=reach >= WIDE)


def _plain(operator: str) -> Expression:
    def write(scalar: Scalar, values: Sequence[str], attrs: Mapping[str, Any]) -> str:
        left, right = values
        if scalar.is_integer:  # wraps around, as ONNX Runtime and NumPy do; signed overflow is undefined in C
            wide = "unsigned long long" if scalar.bits == 64 else "unsigned int"
            return f"({scalar.compute})(({wide}){left} {operator} ({wide}){right})"
        return f"{left} {operator} {right}"

    return write


BINARY: dict[str, Expression] = {"Add": _plain("+"), "Sub": _plain("-"), "Mul": _plain("*")}
