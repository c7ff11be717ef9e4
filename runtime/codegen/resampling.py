"""Kernels that gather weighted elements by tables of indices, one table for each axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Gather:
    """An axis read by a table of `taps` x (size of the output) indices, with weights unless it is nearest. An index
    below 0: the position has the value for what lies outside."""

    axis: int
    taps: int
    weighted: bool


@lru_cache(maxsize=4096)
def gather_kernel(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], gathers: tuple[Gather, ...],
                  outside: float | None) -> Kernel:
    """Parameters: x, then for each gathered axis its indices (int32) and weights (those of interpolation), then y.

    `shape` is that of the row-major output, `strides` are those of x. Weighted sums of integers are made in float32.
    """
    scalar = Scalar.of(dtype)
    weighted = any(each.weighted for each in gathers)
    compute = scalar.compute if scalar.is_float or not weighted else "float"
    where, gathered = address.coordinates("i", shape), {each.axis for each in gathers}
    fixed = tuple(0 if axis in gathered else stride for axis, stride in enumerate(strides))
    parameters = [Parameter("x", dtype)]
    lines = [f"EG_PARALLEL(i, {prod(shape)})", f"  const eg_index base = {address.offset('i', shape, fixed)};",
             f"  {compute} sum = 0;", "  bool inside = true;"]
    lines += [f"  const eg_index o{each.axis} = {where[each.axis]};" for each in gathers]
    place, weight = "base", "1"
    for each in gathers:
        own, size = each.axis, shape[each.axis]
        parameters.append(Parameter(f"at{own}", "int32"))
        lines += [f"  for (int t{own} = 0; t{own} < {each.taps}; ++t{own}) {{",
                  f"  const eg_index p{own} = EG_GET(at{own}, t{own} * {size} + o{own});"]
        if outside is not None:
            lines += [f"  if (p{own} < 0) {{ inside = false; continue; }}"]
        place += f" + p{own} * {strides[own]}"
        if each.weighted:
            parameters.append(Parameter(f"w{own}", "float64" if compute == "double" else "float32"))
            lines.append(f"  const {compute} u{own} = EG_GET(w{own}, t{own} * {size} + o{own});")
            weight = f"u{own}" if weight == "1" else f"{weight} * u{own}"
    value = scalar.load("x", place)
    lines.append(f"    sum += ({compute}){value} * ({weight});" if weighted else f"    sum = {value};")
    lines += ["  }" for _ in gathers]
    result = "sum"
    if outside is not None:
        number = Scalar.of("float64" if compute == "double" else "float32").literal(outside)
        result = f"inside ? sum : ({compute}){number}"
    target = scalar if scalar.is_float or not weighted else Scalar.of("float32")
    stored = scalar.stored(result) if target is scalar else f"({scalar.storage})({result})"
    lines += [f"  EG_PUT(y, i, {stored});", "EG_END"]
    return Kernel("eg_resize", (*parameters, Parameter("y", dtype, True)), "\n".join(lines), prod(shape),
                  wide=address.is_wide(shape, address.contiguous(shape), strides))
