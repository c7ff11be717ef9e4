"""Records of the elementwise operators: each output element depends on the aligned input elements.

Versions before opset 7 of the binary operators (and before 8 of Max, Min, Sum, Mean) have their own broadcasting;
nodes of those versions stay opaque.
"""

from __future__ import annotations

import math

import numpy as np

from .. import dims, dtypes
from ..dims import DimLike, Expr
from ..types import TensorType, Type
from ._common import (
    CONTENTS_LIMIT,
    array_of,
    as_contents,
    broadcast_infer,
    broadcast_shapes,
    certainly,
    common_dtype,
    differ,
    f32,
    larger,
    legacy_read,
    needs,
    pointwise_contents,
    same,
    same_shape,
    shape_of,
    smaller,
)  # fmt: skip
from .record import REQUIRED, RUNTIME, Contents, Operator, Site

# Known elements --------------------------------------------------------------------------------------------


def _quotient(a: DimLike, b: DimLike) -> DimLike | None:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            return None
        return a // b if (a < 0) == (b < 0) else -(abs(a) // abs(b))  # ONNX truncates
    if b == 0:
        return None
    exact = dims.exact_quotient(a, b)
    if exact is not None:
        return exact
    return dims.floordiv(a, b) if certainly(a, 0) and certainly(b, 1) else None


def _remainder(a: DimLike, b: DimLike) -> DimLike | None:
    return dims.mod(a, b) if certainly(b, 1) and (isinstance(b, int) or certainly(a, 0)) else None


def _mod_contents(site: Site) -> Contents | None:
    if site.attrs["fmod"]:
        return None
    return pointwise_contents(_remainder)(site)


def _equal(a: DimLike, b: DimLike) -> DimLike | None:
    return 1 if a == b else 0 if differ(a, b) else None


def _less(a: DimLike, b: DimLike) -> DimLike | None:
    return 1 if certainly(b, dims.add(a, 1)) else 0 if certainly(a, b) else None


def _less_or_equal(a: DimLike, b: DimLike) -> DimLike | None:
    return 1 if certainly(b, a) else 0 if certainly(a, dims.add(b, 1)) else None


def _and(a: DimLike, b: DimLike) -> DimLike | None:
    return a * b if isinstance(a, int) and isinstance(b, int) else None


def _or(a: DimLike, b: DimLike) -> DimLike | None:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else None


def _absolute(a: DimLike) -> DimLike | None:
    return a if certainly(a, 0) else dims.mul(-1, a) if certainly(0, a) else None


def _sign(a: DimLike) -> DimLike | None:
    return 1 if certainly(a, 1) else 0 if a == 0 else -1 if certainly(-1, a) else None


def _many(function: object) -> object:
    def fold(*items: DimLike) -> DimLike:
        total = items[0]
        for item in items[1:]:
            total = function(total, item)  # type: ignore[operator]
        return total

    return fold


def _where_contents(site: Site) -> Contents | None:
    condition, a, b = (array_of(site, position) for position in range(3))
    result = site.type(1)
    if condition is None or result is None:
        return None
    if a is None and b is None:
        return None
    # An unknown branch does no harm where the condition never chooses it.
    shapes = [shape_of(site, position) for position in range(3)]
    met = broadcast_shapes(site, shapes)
    size = tuple(dim for dim in met or () if isinstance(dim, int))
    if met is None or len(size) < len(met) or math.prod(size) > CONTENTS_LIMIT:
        return None
    parts = [
        np.broadcast_to(np.array(None, dtype=object) if each is None else each, size).ravel()
        for each in (condition, a, b)
    ]
    values = np.empty(len(parts[0]), dtype=object)
    values[:] = [
        (x if c else y) if isinstance(c, int) else (x if x == y else None) for c, x, y in zip(*parts)
    ]
    return as_contents(values, result.dtype)


def _clip_contents(site: Site) -> Contents | None:
    data, type_ = array_of(site, 0), site.type(0)
    bounds = [site.attrs["min"], site.attrs["max"]]
    if data is None or type_ is None or any(isinstance(b, (float, tuple)) or b is RUNTIME for b in bounds):
        return None
    low, high = bounds
    values = data.copy()
    for index, value in np.ndenumerate(data):
        value = value if low is None else larger(value, low)  # type: ignore[arg-type]
        values[index] = value if high is None else smaller(value, high)  # type: ignore[arg-type]
    return as_contents(values, type_.dtype)


def _target(site: Site) -> str | None:
    if site.op == "CastLike":
        like = site.type(1)
        return None if like is None else like.dtype
    return dtypes.FROM_ONNX.get(int(site.attrs["to"]))  # type: ignore[call-overload]


def _cast_contents(site: Site) -> Contents | None:
    data, target, source = array_of(site, 0), _target(site), site.type(0)
    if data is None or target is None or source is None:
        return None
    if target == "bool":
        values = np.empty_like(data)
        for index, value in np.ndenumerate(data):
            values[index] = 0 if value == 0 else 1 if differ(value, 0) else None
        return as_contents(values, "bool")
    return as_contents(data, target)  # elements that do not fit would wrap around: unknown


# Types -----------------------------------------------------------------------------------------------------


def _cast(site: Site) -> list[Type | None]:
    target = _target(site)
    return [None] if target is None else [TensorType(target, shape_of(site, 0))]


def _power(site: Site) -> list[Type | None]:
    base = site.type(0)
    if base is None:
        return [None]
    return [TensorType(base.dtype, broadcast_shapes(site, [shape_of(site, 0), shape_of(site, 1)]))]


def _prelu(site: Site) -> list[Type | None]:
    common_dtype(site, (0, 1))
    data, slope = shape_of(site, 0), shape_of(site, 1)
    if data is not None and slope is not None and len(slope) > len(data):
        raise site.fail("a slope of higher rank than the data", "the slope must broadcast to the data")
    return same(site)


def _where(site: Site) -> list[Type | None]:
    condition = site.type(0)
    if condition is not None and condition.dtype != "bool":
        raise site.fail(f"a condition of type {condition.dtype}", "insert a Cast to bool")
    return broadcast_infer(first=1)(site)


# Versions --------------------------------------------------------------------------------------------------


def _read_clip(attrs: dict[str, object], version: int) -> dict[str, object]:
    found = legacy_read(attrs, version)
    assert found is not None
    if version == 6:  # its bounds have values even where none are given, and these turn infinity to finite
        limit = float(np.finfo(np.float32).max)
        return {"min": -limit, "max": limit, **found}
    return found


def _write_clip(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if version >= 11:
        return attrs
    kept = dict(attrs)
    for name, none in (("min", -math.inf), ("max", math.inf)):
        bound = attrs[name]
        if bound is None:
            if version == 6:
                kept[name] = none
        elif not isinstance(bound, (int, float)) or (f32(bound) != bound and not math.isnan(bound)):
            return None
        else:
            kept[name] = float(bound)
    low, high = kept.get("min"), kept.get("max")
    crossed = isinstance(low, float) and isinstance(high, float) and low > high
    return None if crossed else kept  # runtimes refuse crossed bounds in attributes


def _read_cast(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    to = attrs.get("to")
    if version == 1 and isinstance(to, str):  # the name of the type
        from onnx import TensorProto

        if to not in tuple(TensorProto.DataType.keys()):
            return None
        return {**attrs, "to": TensorProto.DataType.Value(to)}
    return attrs


def _write_cast(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    kept = needs(saturate=(19, 1), round_mode=(24, "up"))(attrs, version)
    if kept is None or version > 1:
        return kept
    from onnx import TensorProto

    return {**kept, "to": TensorProto.DataType.Name(int(kept["to"]))}  # type: ignore[call-overload]


def _read_selu(attrs: dict[str, object], version: int) -> dict[str, object]:
    kept = legacy_read(attrs, version)
    assert kept is not None
    return {"alpha": f32(1.6732), "gamma": f32(1.0507), **kept} if version == 1 else kept


# Records ---------------------------------------------------------------------------------------------------


def _unary(name: str, *versions: int, **attrs: object) -> Operator:
    return Operator(name, same, versions, attrs, pointwise=True, read=legacy_read if 1 in versions else None)


def _binary(name: str, *versions: int, contents: object = None, commutative: bool = False,
            dtype: str | None = None) -> Operator:  # fmt: skip
    rule = None if contents is None else pointwise_contents(contents)  # type: ignore[arg-type]
    return Operator(
        name, broadcast_infer(dtype), versions, pointwise=True, commutative=commutative, contents=rule
    )


_CAST_ATTRS = {"to": REQUIRED, "saturate": 1, "round_mode": "up"}
_LIKE_ATTRS = {"saturate": 1, "round_mode": "up"}

_ARITHMETIC = [
    _binary("Add", 7, 13, 14, contents=dims.add, commutative=True),
    _binary("Sub", 7, 13, 14, contents=dims.sub),
    _binary("Mul", 7, 13, 14, contents=dims.mul, commutative=True),
    _binary("Div", 7, 13, 14, contents=_quotient),
    Operator("Mod", broadcast_infer(), (10, 13, 28), {"fmod": 0}, pointwise=True, contents=_mod_contents),
    Operator("Pow", _power, (7, 12, 13, 15), pointwise=True),
    # max(0.0, -0.0) may be either zero, so that exchanging operands is not bit for bit.
    _binary("Max", 8, 12, 13, contents=_many(larger)),
    _binary("Min", 8, 12, 13, contents=_many(smaller)),
    _binary("Sum", 8, 13, contents=_many(dims.add), commutative=True),
    _binary("Mean", 8, 13, commutative=True),
    Operator("Neg", same, (1, 6, 13), pointwise=True, read=legacy_read,
             contents=pointwise_contents(lambda a: dims.mul(-1, a))),
    Operator("Abs", same, (1, 6, 13), pointwise=True, read=legacy_read, contents=pointwise_contents(_absolute)),
    Operator("Sign", same, (9, 13), pointwise=True, contents=pointwise_contents(_sign)),
]  # fmt: skip

_FUNCTIONS = [
    *(
        _unary(name, 1, 6, 13)
        for name in ("Sqrt", "Reciprocal", "Exp", "Log", "Sigmoid", "Tanh", "Ceil", "Floor")
    ),
    *(_unary(name, 7, 22) for name in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan")),
    *(_unary(name, 9, 22) for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")),
    _unary("Erf", 9, 13),
    _unary("Round", 11, 22),
]

_ACTIVATIONS = [
    Operator("Relu", same, (1, 6, 13, 14), pointwise=True, read=legacy_read,
             contents=pointwise_contents(lambda a: larger(a, 0))),
    _unary("LeakyRelu", 1, 6, 16, alpha=f32(0.01)),
    _unary("Elu", 1, 6, 22, alpha=1.0),
    Operator("Selu", same, (1, 6, 22), {"alpha": f32(1.67326319217681884765625),
                                        "gamma": f32(1.05070102214813232421875)},
             pointwise=True, read=_read_selu),
    _unary("Celu", 12, 28, alpha=1.0),
    _unary("Gelu", 20, approximate="none"),
    _unary("HardSigmoid", 1, 6, 22, alpha=f32(0.2), beta=0.5),
    _unary("HardSwish", 14, 22),
    _unary("Mish", 18, 22),
    _unary("Softplus", 1, 22),
    _unary("Softsign", 1, 22),
    _unary("ThresholdedRelu", 10, 22, alpha=1.0),
    _unary("Swish", 24, alpha=1.0),
    _unary("Shrink", 9, bias=0.0, lambd=0.5),
    Operator("PRelu", _prelu, (7, 9, 16), pointwise=True),
    Operator("Clip", same, (1, 6, 11, 12, 13), {"min": None, "max": None}, {"min": 1, "max": 2}, pointwise=True,
             contents=_clip_contents, read=_read_clip, write=_write_clip),
]  # fmt: skip

_LOGIC = [
    Operator("Where", _where, (9, 16), pointwise=True, contents=_where_contents),
    _binary("Equal", 7, 11, 13, 19, contents=_equal, commutative=True, dtype="bool"),
    _binary("Less", 7, 9, 13, contents=_less, dtype="bool"),
    _binary("Greater", 7, 9, 13, contents=lambda a, b: _less(b, a), dtype="bool"),
    _binary("LessOrEqual", 12, 16, contents=_less_or_equal, dtype="bool"),
    _binary("GreaterOrEqual", 12, 16, contents=lambda a, b: _less_or_equal(b, a), dtype="bool"),
    _binary("And", 7, contents=_and, commutative=True, dtype="bool"),
    _binary("Or", 7, contents=_or, commutative=True, dtype="bool"),
    _binary("Xor", 7, commutative=True, dtype="bool"),
    Operator("Not", same, (1,), pointwise=True,
             contents=pointwise_contents(lambda a: None if isinstance(a, Expr) else 1 - a)),
    _binary("BitwiseAnd", 18, commutative=True),
    _binary("BitwiseOr", 18, commutative=True),
    _binary("BitwiseXor", 18, commutative=True),
    _unary("BitwiseNot", 18),
    Operator("BitShift", broadcast_infer(), (11, 28), {"direction": REQUIRED}, pointwise=True),
    Operator("IsNaN", same_shape("bool"), (9, 13, 20), pointwise=True),
    Operator("IsInf", same_shape("bool"), (10, 20), {"detect_negative": 1, "detect_positive": 1}, pointwise=True),
]  # fmt: skip

_CONVERSIONS = [
    Operator("Cast", _cast, (1, 6, 9, 13, 19, 21, 23, 24, 25, 28), _CAST_ATTRS, pointwise=True,
             contents=_cast_contents, read=_read_cast, write=_write_cast),
    Operator("CastLike", _cast, (15, 19, 21, 23, 24, 25), _LIKE_ATTRS, contents=_cast_contents,
             write=needs(saturate=(19, 1), round_mode=(24, "up"))),
    Operator("Identity", same, (1, 13, 14, 16, 19, 21, 23, 24, 25), pointwise=True, movement=True,
             contents=lambda site: site.content(0)),
]  # fmt: skip

OPERATORS: list[Operator] = [*_ARITHMETIC, *_FUNCTIONS, *_ACTIVATIONS, *_LOGIC, *_CONVERSIONS]
