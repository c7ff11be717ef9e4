"""Kernels that compute each element of the output from one element of each input, broadcast."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from . import address, functions
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a pointwise kernel as it is read: dtype, and strides over the output's shape."""

    dtype: str
    strides: tuple[int, ...]


def pointwise(name: str, shape: tuple[int, ...], operands: Sequence[Operand], result: str, expression: str,
              *, exact: bool = True, bits: bool = False, calls: str = "") -> Kernel:
    """y = expression over the values `a0`, `a1`, ... of the operands, for every element of a row-major `shape`.

    The values have the compute types of their dtypes; the expression's value is stored as `result`. With `bits`
    16-bit floats are moved as they are stored. The functions that the expression calls are those of the element type
    `calls`, by default that of the first operand.
    """
    return _pointwise(name, tuple(shape), tuple(operands), result, expression, exact, bits, calls)


@lru_cache(maxsize=4096)
def _pointwise(name: str, shape: tuple[int, ...], operands: tuple[Operand, ...], result: str, expression: str,
               exact: bool, bits: bool, calls: str) -> Kernel:
    strides = [each.strides for each in operands] + [address.contiguous(shape)]
    sizes, collapsed = address.collapse(shape, strides)
    lines = [f"EG_PARALLEL(i, {prod(shape)})"]
    for index, (operand, steps) in enumerate(zip(operands, collapsed)):
        scalar = as_stored(operand.dtype) if bits else Scalar.of(operand.dtype)
        value = scalar.load(f"x{index}", address.offset("i", sizes, steps))
        lines.append(f"  const {scalar.compute} a{index} = {value};")
    target = as_stored(result) if bits else Scalar.of(result)
    lines.append(f"  {target.store('y', 'i', expression)}")
    lines.append("EG_END")
    parameters = [Parameter(f"x{index}", each.dtype) for index, each in enumerate(operands)]
    main = Scalar.of(calls or (operands[0].dtype if operands else result))
    # A kernel must not hide the function that it calls.
    own = f"eg_{name}" if f"eg_{name}(" not in expression else f"eg_{name}_kernel"
    return Kernel(own, (*parameters, Parameter("y", result, True)), "\n".join(lines), prod(shape),
                  in_place=True, exact=exact, wide=address.is_wide(shape, *strides),
                  helpers=functions.device_functions(expression, main))


def as_stored(dtype: str) -> Scalar:
    """A scalar that moves elements without looking at them."""
    return Scalar.of("uint16" if dtype in ("float16", "bfloat16") else dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """What an operator computes from `a0`, `a1`, ...: templates (see `functions`) for floats, integers and bool, None
    where there is none. `result`: the output's dtype, that of the first input if empty. `folds`: any number of
    inputs, of which `a0` is what came out so far; `last` is done to the total, `$count` being the number of inputs.
    """

    floats: str | None
    integers: str | None = None
    bools: str | None = None
    result: str = ""
    folds: bool = False
    last: str = ""

    def expression(self, scalar: Scalar, attrs: Mapping[str, Any], count: int) -> str | None:
        """The text for so many inputs of an element type."""
        text = self.floats if scalar.is_float else self.bools if scalar.dtype == "bool" else self.integers
        if text is None:
            return None
        if self.folds:
            total = "a0"
            for index in range(1, count):
                total = _renamed(text, {"a0": f"({total})", "a1": f"a{index}"})
            text = _renamed(self.last, {"a0": f"({total})"}) if self.last else total
        return functions.written(text, scalar, {**attrs, "count": count})


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\ba\d\b", lambda found: names.get(found.group(), found.group()), text)


def _compare(operator: str) -> Row:
    text = f"a0 {operator} a1"
    return Row(text, text, text, "bool")


def _wrapping(operator: str, **more: Any) -> Row:
    # Integers wrap around, as ONNX Runtime and NumPy do; signed overflow is undefined in C.
    return Row(f"a0 {operator} a1", f"($T)(($U)a0 {operator} ($U)a1)", **more)


ROWS: dict[str, Row] = {
    # Arithmetic
    "Add": _wrapping("+"), "Sub": _wrapping("-"), "Mul": _wrapping("*"),
    "Div": Row("a0 / a1", "eg_quotient(a0, a1)"),
    "Mod": Row("eg_modulo(a0, a1)", "eg_modulo_integer(a0, a1)"),
    "Mod fmod": Row("fmod$f(a0, a1)", "eg_remainder(a0, a1)"),
    "Max": Row("eg_max(a0, a1)", "eg_max(a0, a1)", folds=True),
    "Min": Row("eg_min(a0, a1)", "eg_min(a0, a1)", folds=True),
    "Sum": _wrapping("+", folds=True),
    "Mean": Row("a0 + a1", folds=True, last="a0 / $count"),
    "Neg": Row("-a0", "($T)(0 - ($U)a0)"),
    "Abs": Row("fabs$f(a0)", "a0 < 0 ? ($T)(0 - ($U)a0) : a0"),
    "Sign": Row("a0 > 0 ? ($T)1 : a0 < 0 ? ($T)-1 : a0 + ($T)0", "a0 > 0 ? ($T)1 : a0 < 0 ? ($T)-1 : ($T)0"),
    # Functions
    "Sqrt": Row("sqrt$f(a0)"), "Reciprocal": Row("1 / a0"), "Exp": Row("exp$f(a0)"), "Log": Row("log$f(a0)"),
    "Ceil": Row("ceil$f(a0)"), "Floor": Row("floor$f(a0)"), "Round": Row("rint$f(a0)"), "Erf": Row("erf$f(a0)"),
    "Sin": Row("sin$f(a0)"), "Cos": Row("cos$f(a0)"), "Tan": Row("tan$f(a0)"),
    "Asin": Row("asin$f(a0)"), "Acos": Row("acos$f(a0)"), "Atan": Row("atan$f(a0)"),
    "Sinh": Row("sinh$f(a0)"), "Cosh": Row("cosh$f(a0)"), "Tanh": Row("tanh$f(a0)"),
    "Asinh": Row("asinh$f(a0)"), "Acosh": Row("acosh$f(a0)"), "Atanh": Row("atanh$f(a0)"),
    # Activations
    "Relu": Row("a0 < 0 ? ($T)0 : a0", "a0 < 0 ? ($T)0 : a0"),  # NaN and -0.0 stay
    "LeakyRelu": Row("a0 >= 0 ? a0 : $alpha * a0"),
    "PRelu": Row("a0 < 0 ? a1 * a0 : a0", "a0 < 0 ? ($T)(($U)a1 * ($U)a0) : a0"),
    "ThresholdedRelu": Row("a0 > $alpha ? a0 : ($T)0"),
    "Sigmoid": Row("eg_sigmoid(a0)"),
    "HardSigmoid": Row("eg_min(eg_max($alpha * a0 + $beta, ($T)0), ($T)1)"),
    "HardSwish": Row("a0 * eg_min(eg_max(a0 / 6 + ($T)0.5, ($T)0), ($T)1)"),
    "Elu": Row("a0 >= 0 ? a0 : $alpha * expm1$f(a0)"),
    "Selu": Row("$gamma * (a0 > 0 ? a0 : $alpha * expm1$f(a0))"),
    "Celu": Row("eg_max(a0, ($T)0) + eg_min($alpha * expm1$f(a0 / $alpha), ($T)0)"),
    "Softplus": Row("eg_softplus(a0)"),
    "Softsign": Row("a0 / (1 + fabs$f(a0))"),
    "Mish": Row("a0 * tanh$f(eg_softplus(a0))"),
    "Swish": Row("a0 * eg_sigmoid($alpha * a0)"),
    "Gelu": Row("eg_gelu(a0)"), "Gelu tanh": Row("eg_gelu_tanh(a0)"),
    "Shrink": Row("a0 < -$lambd ? a0 + $bias : a0 > $lambd ? a0 - $bias : ($T)0"),
    # Logic
    "Equal": _compare("=="), "Less": _compare("<"), "LessOrEqual": _compare("<="), "Greater": _compare(">"),
    "GreaterOrEqual": _compare(">="),
    "And": Row(None, None, "a0 && a1"), "Or": Row(None, None, "a0 || a1"), "Xor": Row(None, None, "a0 != a1"),
    "Not": Row(None, None, "!a0"),
    "BitwiseAnd": Row(None, "a0 & a1"), "BitwiseOr": Row(None, "a0 | a1"), "BitwiseXor": Row(None, "a0 ^ a1"),
    "BitwiseNot": Row(None, "~a0"),
    # A shift by the width or more, or by less than none, is undefined in C: here all bits go.
    "BitShift LEFT": Row(None, "($U)a1 < $bits ? ($T)(($U)a0 << a1) : 0"),
    "BitShift RIGHT": Row(None, "($U)a1 < $bits ? a0 >> a1 : a0 < 0 ? -1 : 0"),
    "IsNaN": Row("a0 != a0", result="bool"),
    "IsInf": Row("$detect_positive && a0 == ($T)EG_INFINITY || $detect_negative && a0 == -($T)EG_INFINITY",
                 result="bool"),
    # Contrib operators of ONNX Runtime
    "com.microsoft.Gelu": Row("eg_gelu(a0)"), "com.microsoft.BiasGelu": Row("eg_gelu(a0 + a1)"),
    "com.microsoft.FastGelu": Row("eg_gelu_tanh(a0)"), "com.microsoft.FastGelu bias": Row("eg_gelu_tanh(a0 + a1)"),
    "com.microsoft.QuickGelu": Row("a0 * eg_sigmoid($alpha * a0)"),
}  # fmt: skip


def power(base: Scalar, exponent: Scalar) -> tuple[str, str]:
    """The power of `a0` by `a1` as a value of the base's compute type, and the dtype that it is computed in.

    The power of mixed types is computed in double, as in C++, then cut or rounded to the base's type.
    """
    if base.is_integer and exponent.is_integer:
        kind = "int64" if base.is_signed else "uint64"
        return f"({base.compute})eg_power_integer(({Scalar.of(kind).compute})a0, (long long)a1)", kind
    if base.compute == exponent.compute:
        return "eg_power(a0, a1)", base.dtype
    return functions.conversion(Scalar.of("float64"), base, "eg_power((double)a0, (double)a1)"), "float64"
