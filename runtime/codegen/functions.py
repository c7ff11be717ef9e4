"""Functions of scalars that C lacks, and the expressions of operators as texts for one element type.

Texts are templates: `$T` is the compute type, `$U` the unsigned integer of its size, `$f` the suffix of C's functions
(`exp$f` is `expf` for float), `$low` that up to which exp(-x) is a normal number; other names are attributes, written
as exact literals. Where a text calls one of the functions of `FUNCTIONS`, `device_functions` gives the texts that have
to stand above the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Any

from .scalar import Scalar

FUNCTIONS: dict[str, str] = {
    # 1 / (1 + exp(-x)) without overflow and with full relative precision on both sides. Beyond $low the exponential may
    # be subnormal: nothing is computed with it, which would take 100 times as long.
    "eg_sigmoid": """EG_DEVICE $T eg_sigmoid($T x) {
  const $T e = exp$f(-fabs$f(x)), s = fabs$f(x) > $low ? 0 : e, y = (x >= 0 ? 1 : s) / (1 + s);
  return x < -$low ? e : y;
}""",
    "eg_silu": "EG_DEVICE $T eg_silu($T x) { return EG_SILU$f(x, eg_sigmoid(x)); }",
    "eg_softplus": "EG_DEVICE $T eg_softplus($T x) { return eg_max(x, ($T)0) + log1p$f(exp$f(-fabs$f(x))); }",
    "eg_gelu": "EG_DEVICE $T eg_gelu($T x) { return ($T)0.5 * x * (1 + erf$f(x * ($T)0.7071067811865476)); }",
    "eg_gelu_tanh": """EG_DEVICE $T eg_gelu_tanh($T x) {
  return ($T)0.5 * x * (1 + tanh$f(($T)0.7978845608028654 * (x + ($T)0.044715 * (x * x * x))));
}""",
    "eg_power": """EG_DEVICE $T eg_power($T a, $T b) { return b == 1 ? a : b == 2 ? a * a : pow$f(a, b); }""",
    "eg_modulo": """EG_DEVICE $T eg_modulo($T a, $T b) {
  const $T m = fmod$f(a, b);
  return m == 0 ? copysign$f(m, b) : (m < 0) != (b < 0) ? m + b : m;
}""",
    # Integers. A zero divisor gives 0, as NumPy has it, and the one quotient that overflows wraps around.
    "eg_quotient": """EG_DEVICE $T eg_quotient($T a, $T b) {
  return b == 0 ? ($T)0 : ($T)-1 < 0 && b == ($T)-1 ? ($T)(0 - ($U)a) : ($T)(a / b);
}""",
    "eg_remainder": """EG_DEVICE $T eg_remainder($T a, $T b) {
  return b == 0 || (($T)-1 < 0 && b == ($T)-1) ? ($T)0 : ($T)(a % b);
}""",
    "eg_modulo_integer": """EG_DEVICE $T eg_modulo_integer($T a, $T b) {
  const $T m = eg_remainder(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}""",
    "eg_power_integer": """EG_DEVICE $T eg_power_integer($T a, long long b) {
  const bool is_minus_one = ($T)-1 < 0 && a == ($T)-1;
  if (b < 0) return a == 1 || (is_minus_one && b % 2 == 0) ? ($T)1 : is_minus_one ? a : ($T)0;
  $U power = 1, square = ($U)a;
  for (unsigned long long left = (unsigned long long)b; left; left >>= 1) {
    if (left & 1) power *= square;
    square *= square;
  }
  return ($T)power;
}""",
    # To float so that a second rounding to 16 bits is the only one: inexact results get an odd last bit.
    "eg_to_odd": """EG_DEVICE float eg_to_odd(double x) {
  const float f = (float)x;
  const unsigned bits = eg_float_bits(f);
  if (x != x || (double)f == x || (bits & 1)) return f;
  return eg_bits_float(fabs((double)f) > fabs(x) ? bits - 1 : bits + 1);
}""",
    # What C leaves undefined below zero, NumPy wraps around.
    "eg_to_unsigned": """EG_DEVICE unsigned long long eg_to_unsigned(double x) {
  return x < 9223372036854775808.0 ? (unsigned long long)(long long)x : (unsigned long long)x;
}""",
}
_CALLED = re.compile(r"\beg_\w+")


def written(text: str, scalar: Scalar, attrs: Mapping[str, Any] | None = None) -> str:
    """A template for one element type. Attributes of integer operators are written in double."""
    known = {"T": scalar.compute, "U": _unsigned(scalar), "f": "f" if scalar.compute == "float" else "",
             "bits": str(scalar.bits), "low": "87.3f" if scalar.compute == "float" else "708.3"}
    numbers = scalar if scalar.is_float else Scalar.of("float64")
    for name, value in (attrs or {}).items():
        if isinstance(value, int | float):
            known[name] = numbers.literal(value)
    return Template(text).substitute(known)


def device_functions(text: str, scalar: Scalar) -> tuple[str, ...]:
    """The texts of all functions that a text calls, each before its callers."""
    found: dict[str, str] = {}

    def visit(part: str) -> None:
        for name in _CALLED.findall(part):
            if name in FUNCTIONS and name not in found:
                own = written(FUNCTIONS[name], scalar)
                visit(own.replace(name, ""))
                found[name] = own

    visit(text)
    return tuple(found.values())


def conversion(source: Scalar, target: Scalar, value: str) -> str:
    """A value of the compute type of `source` as one of the compute type of `target`, as Cast converts.

    Floats are cut to integers; what does not fit is undefined (a GPU saturates it).
    """
    if source.dtype == target.dtype:
        return value
    if target.dtype == "bool":
        return f"{value} != 0"
    if target.dtype == "float16" and source.dtype == "float64":
        return f"eg_to_odd({value})"
    if target.is_float or not source.is_float:
        return f"({target.compute}){value}"
    if target.dtype == "uint64":
        return f"eg_to_unsigned({value})"
    if target.is_signed and target.bits >= 32:
        return f"({target.compute}){value}"
    return f"({target.storage})({'int' if target.bits < 32 else 'long long'}){value}"


def _unsigned(scalar: Scalar) -> str:
    return "unsigned long long" if scalar.compute.endswith("long long") else "unsigned int"
