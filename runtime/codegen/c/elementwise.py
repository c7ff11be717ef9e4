"""Elementwise operators in fused kernels: the expressions of `codegen.elementwise`, and those that need more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphs import dtypes
from graphs.ir import Node
from graphs.operators import RUNTIME

from .. import functions
from ..elementwise import ROWS, power
from ..scalar import Scalar
from .lowering import DTYPES, Lower, Lowering, computed, is_floating
from .views import NotFusable, View

_VARIANTS = {"Mod": lambda attrs: "Mod fmod" if attrs["fmod"] else "Mod",
             "Gelu": lambda attrs: "Gelu tanh" if attrs["approximate"] == "tanh" else "Gelu",
             "BitShift": lambda attrs: f"BitShift {attrs['direction']}"}
# Of floats: the same IEEE operations as NumPy's. Max and Min are not, since which of two zeros they give is open.
_EXACT = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sqrt", "Reciprocal", "Relu", "LeakyRelu", "PRelu",
                    "Ceil", "Floor", "Round", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN",
                    "IsInf", "Sum", "ThresholdedRelu"})  # fmt: skip
# What takes a few instructions
CHEAP = _EXACT | {"Max", "Min", "And", "Or", "Xor", "Not", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
_COSTLY = 12  # about what a polynomial takes
MOST_OPERANDS = 16
LOWERINGS: dict[str, Lower] = {}


def _row(lowering: Lowering, node: Node, output: int, view: View) -> int:
    name = f"{node.domain}.{node.op}" if node.domain else node.op
    name = _VARIANTS[name](node.attrs) if name in _VARIANTS else name
    args = [lowering.operand(node, index, view) for index, each in enumerate(node.inputs) if each]
    dtypes_ = {lowering.items[each].dtype for each in args}
    if len(dtypes_) != 1 or len(args) > MOST_OPERANDS:
        raise NotFusable(f"{node.op} of {', '.join(sorted(dtypes_))}")
    (dtype,) = dtypes_
    if is_floating(dtype) and node.op not in _EXACT:
        lowering.needs_rounding(node.op)
    if node.op == "Shrink" and not is_floating(dtype):
        raise NotFusable("Shrink of integers, which cuts what lies outside of their range in a way of its own")
    if node.op == "Div" and is_floating(dtype):
        quotient = _by_reciprocal(lowering, *args)
        if quotient is not None:
            return quotient
    if node.op in ("Mul", "Swish") and is_floating(dtype) and not lowering.exact:
        silu = _silu(lowering, node, args)
        if silu is not None:
            return silu
    row = ROWS[name]
    text = row.expression(Scalar.of(dtype), _numbers(node), len(args))
    if text is None:
        raise NotFusable(f"{node.op} of {dtype}")
    cost = 1 if node.op in CHEAP and node.op not in ("Div", "Sqrt", "Reciprocal") else _COSTLY
    return lowering.op(text, row.result or dtype, *args, cost=cost, helper=dtype)


def _silu(lowering: Lowering, node: Node, args: list[int]) -> int | None:
    """x sigmoid(x) as one function, which computes with nothing subnormal."""
    x = args[0] if node.op == "Swish" and node.attrs["alpha"] == 1 else None
    for one, other in (args, args[::-1]) if len(args) == 2 else ():
        if lowering.items[other].text == "eg_sigmoid(a0)" and lowering.items[other].args == (one,):
            x = one
    return None if x is None else lowering.op("eg_silu(a0)", lowering.items[x].dtype, x, cost=_COSTLY)


def _numbers(node: Node) -> dict[str, Any]:
    return {"alpha": 1.702, **node.attrs} if node.op == "QuickGelu" else dict(node.attrs)


LOWERINGS.update(dict.fromkeys((name.partition(" ")[0] for name in ROWS), _row))


def _by_reciprocal(lowering: Lowering, dividend: int, divisor: int) -> int | None:
    """A product with the reciprocal, where that changes rounding only: the divisor is the same for many elements, and
    neither it nor its reciprocal can be subnormal."""
    item = lowering.items[divisor]
    if lowering.exact:
        return None
    one = lowering.literal(1, item.dtype)
    if item.kind == "literal":
        value = float.fromhex(item.text.strip("()f")) if "0x" in item.text else _decimal(item.text)
        limits = np.finfo(computed(item.dtype))
        if not math.isfinite(value) or value == 0 or not float(limits.tiny) < abs(1 / value) < float(limits.max):
            return None
        inverse = lowering.literal(1 / value, item.dtype)
    elif item.text in ("sqrt(a0)", "sqrtf(a0)") and lowering.dependent[divisor] < lowering.dependent[dividend]:
        inverse = lowering.op("a0 / a1", item.dtype, one, divisor)
    else:
        return None
    return lowering.op("a0 * a1", item.dtype, dividend, inverse)


def _decimal(text: str) -> float:
    try:
        return float(text.strip("()f"))
    except ValueError:  # EG_NAN, EG_INFINITY
        return math.nan


def _power(lowering: Lowering, node: Node, output: int, view: View) -> int:
    lowering.needs_rounding("Pow")
    base, exponent = lowering.operand(node, 0, view), lowering.operand(node, 1, view)
    kinds = [Scalar.of(lowering.items[each].dtype) for each in (base, exponent)]
    if not kinds[0].is_float:
        raise NotFusable(f"Pow of {kinds[0].dtype}")
    item = lowering.items[exponent]
    if item.kind == "literal" and _decimal(item.text.rstrip("l")) == 3:
        return lowering.op("a0 * a0 * a0", kinds[0].dtype, base, cost=2)
    text, calls = power(*kinds)
    squares = item.kind == "literal" and _decimal(item.text.rstrip("l")) in (1, 2)
    return lowering.op(text, kinds[0].dtype, base, exponent, cost=1 if squares else 4 * _COSTLY, helper=calls)


def _where(lowering: Lowering, node: Node, output: int, view: View) -> int:
    condition, a, b = (lowering.operand(node, index, view) for index in range(3))
    return lowering.op("a0 ? a1 : a2", lowering.items[a].dtype, condition, a, b)


def _clip(lowering: Lowering, node: Node, output: int, view: View) -> int:
    """A bound that is passed takes the element's place: -0.0 at a bound of 0 stays, the upper bound wins."""
    found = lowering.operand(node, 0, view)
    dtype = lowering.items[found].dtype
    for name, sign in (("min", "<"), ("max", ">")):
        bound = node.attrs[name]
        if bound is RUNTIME or dtype == "bool":
            raise NotFusable("Clip to bounds that only the run gives")
        if bound is None:
            continue
        number = bound[0] if isinstance(bound, tuple) else bound
        with np.errstate(all="ignore"):
            held = np.asarray(number).astype(dtypes.numpy_dtype(dtype)).item()
        limit = lowering.literal(held, dtype)
        found = limit if held != held else lowering.op(f"a0 {sign} a1 ? a1 : a0", dtype, found, limit)
    return found


def _cast(lowering: Lowering, node: Node, output: int, view: View) -> int:
    """What floats beyond an integer type become is undefined in C: those casts stay outside."""
    value = lowering.operand(node, 0, view)
    source, target = Scalar.of(lowering.items[value].dtype), lowering.dtype(node.outputs[0])
    if target not in DTYPES:
        raise NotFusable(f"elements of type {target}")
    if source.is_float and Scalar.of(target).is_integer:
        raise NotFusable("a Cast from floats to integers")
    if source.dtype == target:
        return value
    return lowering.op(functions.conversion(source, Scalar.of(target), "a0"), target, value, helper=source.dtype)


def _identity(lowering: Lowering, node: Node, output: int, view: View) -> int:
    if output or node.attrs.get("training_mode"):
        raise NotFusable(f"{node.op} with a mask")
    return lowering.value(node.inputs[0], view)


LOWERINGS.update({"Pow": _power, "Where": _where, "Clip": _clip, "Cast": _cast, "Identity": _identity,
                  "Dropout": _identity})
