"""Scalars in kernel texts: how an element type is stored, what it is computed in, and how literals are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphs import dtypes


@dataclass(frozen=True, slots=True)
class Scalar:
    """An element type in a kernel. `storage` is the C type in memory, `compute` the one of registers: 16-bit floats
    are computed in float32 and rounded by the store, which for + - * / and the square root gives the correctly
    rounded 16-bit result (24 >= 2 * 11 + 2 bits)."""

    dtype: str
    storage: str
    compute: str
    bits: int
    is_float: bool = False
    is_signed: bool = False

    @staticmethod
    def of(dtype: str) -> Scalar:
        """The scalar of an element type. Raises KeyError where kernels do not compute with it."""
        return _TABLE[dtype]

    @property
    def is_integer(self) -> bool:
        """An integer, not bool."""
        return not self.is_float and self.dtype != "bool"

    @property
    def accumulator(self) -> str:
        """The C type that sums are kept in."""
        return self.compute if self.is_float else "long long" if self.is_signed else "unsigned long long"

    def load(self, pointer: str, index: str) -> str:
        """The element at an index, in the compute type."""
        got = f"EG_GET({pointer}, {index})"
        return {"float16": f"eg_f16_to_float({got})", "bfloat16": f"eg_bf16_to_float({got})",
                "bool": f"({got} != 0)"}.get(self.dtype, got)

    def stored(self, value: str) -> str:
        """A value of the compute type as it is stored."""
        return {"float16": f"eg_float_to_f16({value})", "bfloat16": f"eg_float_to_bf16({value})",
                "bool": f"(unsigned char)(({value}) != 0)"}.get(self.dtype, f"({self.storage})({value})")

    def store(self, pointer: str, index: str, value: str) -> str:
        """The statement that writes an element."""
        return f"EG_PUT({pointer}, {index}, {self.stored(value)});"

    def store_row(self, pointer: str, index: str, value: str) -> str:
        """The same inside EG_ROWS, where the last row may be a copy of another."""
        return f"EG_PUT_ROW({pointer}, {index}, {self.stored(value)});"

    def literal(self, value: float | int | bool) -> str:
        """A number in the compute type, exactly."""
        if self.dtype == "bool":
            return "true" if value else "false"
        if not self.is_float:
            number = int(value)
            if self.compute == "unsigned long long":
                return f"{number}ull"
            if self.compute == "long long":
                return "(-9223372036854775807ll - 1)" if number == -(1 << 63) else f"{number}ll"
            return "(-2147483647 - 1)" if number == -(1 << 31) else f"{number}{'u' if not self.is_signed else ''}"
        real = float(value)
        single = self.compute == "float"
        if math.isnan(real):
            return "EG_NAN" if single else "(double)EG_NAN"
        if math.isinf(real):
            text = "EG_INFINITY" if single else "(double)EG_INFINITY"
            return text if real > 0 else f"(-{text})"
        text = _hexadecimal(float(np.float32(real)) if single else real)
        return f"({text}f)" if single else f"({text})"


def _hexadecimal(number: float) -> str:
    """A float that loses no bit, short where decimal is exact too."""
    short = repr(number)
    return short if len(short) <= 8 and "e" not in short else number.hex()


def _integer(dtype: str, name: str) -> Scalar:
    bits = int(dtype.lstrip("uint"))
    signed = dtype in dtypes.SIGNED
    wide = "long long" if bits == 64 else "int"
    return Scalar(dtype, name, wide if signed else f"unsigned {wide}", bits, False, signed)


_TABLE: dict[str, Scalar] = {
    "float32": Scalar("float32", "float", "float", 32, True, True),
    "float64": Scalar("float64", "double", "double", 64, True, True),
    "float16": Scalar("float16", "unsigned short", "float", 16, True, True),
    "bfloat16": Scalar("bfloat16", "unsigned short", "float", 16, True, True),
    "bool": Scalar("bool", "unsigned char", "bool", 8),
    "int8": _integer("int8", "signed char"), "int16": _integer("int16", "short"),
    "int32": _integer("int32", "int"), "int64": _integer("int64", "long long"),
    "uint8": _integer("uint8", "unsigned char"), "uint16": _integer("uint16", "unsigned short"),
    "uint32": _integer("uint32", "unsigned int"), "uint64": _integer("uint64", "unsigned long long"),
}  # fmt: skip

DTYPES = frozenset(_TABLE)
