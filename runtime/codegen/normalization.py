"""Kernels of softmax and of normalizations by the statistics of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .rowwise import Layout, Operand, RowKernel, block_of
from .scalar import Scalar


def suffix(scalar: Scalar) -> str:
    """Of C's functions for a compute type."""
    return "f" if scalar.compute == "float" else ""


@lru_cache(maxsize=4096)
def softmax_kernel(layout: Layout, x: Operand, y: Operand, logarithm: bool, own: bool) -> Kernel:
    """y = exp(x - max) / sum, or x - max - log(sum)."""
    writer = RowKernel("log_softmax" if logarithm else "softmax", layout,
                       block_of(layout.count, layout.length, own))
    scalar = writer.add("x", x)
    writer.add("y", y, True)
    kind, f, kept = scalar.compute, suffix(scalar), writer.keeps
    writer.buffer(kind)
    writer.line(f"{kind} top = {scalar.literal(float('-inf'))}, total = 0;")
    value = f"const {kind} v = {'b[k]' if kept else writer.load('x')};"
    writer.columns(f"const {kind} v = {writer.load('x')};", "b[k] = v;" if kept else "", "top = eg_max(top, v);")
    writer.line("top = eg_row_max(top);")
    if logarithm:
        writer.columns(value, f"total += exp{f}(v - top);")
        writer.line(f"const {kind} down = log{f}(eg_row_sum(total));")
        writer.columns(value, writer.store("y", "v - top - down"))
        return writer.kernel()
    writer.columns(value, f"const {kind} e = exp{f}(v - top);", "b[k] = e;" if kept else "", "total += e;")
    writer.line("total = eg_row_sum(total);")
    power = "b[k]" if kept else f"exp{f}({writer.load('x')} - top)"
    writer.columns(writer.store("y", f"{power} / total"))
    return writer.kernel()


@lru_cache(maxsize=4096)
def hardmax_kernel(layout: Layout, x: Operand, y: Operand, own: bool) -> Kernel:
    """y = 1 at the first largest element, 0 elsewhere."""
    writer = RowKernel("hardmax", layout, block_of(layout.count, layout.length, own))
    kind = writer.add("x", x).compute
    writer.add("y", y, True)
    writer.line(f"{kind} best = 0;", "eg_index at = -1;")
    writer.columns(f"const {kind} v = {writer.load('x')};",
                   f"if (eg_largest_first<{kind}>::of(v, j, best, at)) best = v, at = j;")
    writer.line(f"eg_row_best<eg_largest_first<{kind}>, {kind}>(best, at);")
    writer.columns(writer.store("y", f"({kind})(j == at ? 1 : 0)"))
    return writer.kernel()


@dataclass(frozen=True, slots=True)
class Normal:
    """What a normalization does with rows.

    `compute` (a dtype) is the type of statistics. `centred`: the mean is taken off. `added` tensors (of the names
    `s0`, `s1`, ...) are added to x first; their sum may be an output. `after`: to 1 / (deviation + epsilon) instead
    of 1 / sqrt(variance + epsilon).
    """

    compute: str
    epsilon: float
    centred: bool = True
    after: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """Operands of a normalization, by role; None where there is none."""

    x: Operand
    y: Operand
    added: tuple[Operand, ...] = ()
    scale: Operand | None = None
    bias: Operand | None = None
    mean: Operand | None = None  # outputs, one element a row
    inverse: Operand | None = None
    total: Operand | None = None  # output: x and what was added


@lru_cache(maxsize=4096)
def normal_kernel(name: str, layout: Layout, normal: Normal, parts: Parts, own: bool) -> Kernel:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over rows.

    Parameters: x, what is added, scale, bias, y, mean, inverse, total; those that there are.
    """
    writer = RowKernel(name, layout, block_of(layout.count, layout.length, own))
    kind, literal = Scalar.of(normal.compute).compute, Scalar.of(normal.compute).literal
    f = suffix(Scalar.of(normal.compute))
    value = _value(writer, parts, kind)
    kept = writer.keeps
    writer.buffer(kind)
    again = f"const {kind} v = {'b[k]' if kept else value};"
    writer.line(f"{kind} sum = 0, squares = 0;")
    first = [f"const {kind} v = {value};", "b[k] = v;" if kept else "",
             writer.store("total", "v") if parts.total is not None else ""]
    if normal.centred:
        writer.columns(*first, "sum += v;")
        writer.line(f"const {kind} mean = eg_row_sum(sum) / {literal(float(layout.length))};")
        writer.columns(again, f"const {kind} d = v - mean;", "squares += d * d;")
    else:
        writer.columns(*first, "squares += v * v;")
    writer.line(f"const {kind} variance = eg_row_sum(squares) / {literal(float(layout.length))};")
    epsilon = literal(normal.epsilon)
    root = f"sqrt{f}(variance) + {epsilon}" if normal.after else f"sqrt{f}(variance + {epsilon})"
    writer.line(f"const {kind} inverse = 1 / ({root});")
    result = "(v - mean) * inverse" if normal.centred else "v * inverse"
    if parts.scale is not None:
        result += f" * ({kind}){writer.load('scale')}"
    if parts.bias is not None:
        result += f" + ({kind}){writer.load('bias')}"
    writer.columns(again, writer.store("y", result))
    for each in ("mean", "inverse"):
        if getattr(parts, each) is not None:
            writer.line(writer.store_first(f"y_{each}", each))
    return writer.kernel()


def _value(writer: RowKernel, parts: Parts, kind: str) -> str:
    """Declare the parameters, and write what the element is that is normalized."""
    writer.add("x", parts.x)
    value = f"({kind}){writer.load('x')}"
    for index, each in enumerate(parts.added):
        writer.add(f"s{index}", each)
        value += f" + ({kind}){writer.load(f's{index}')}"
    for name in ("scale", "bias"):
        own: Operand | None = getattr(parts, name)
        if own is not None:
            writer.add(name, own)
    writer.add("y", parts.y, True)
    for name, made in (("y_mean", parts.mean), ("y_inverse", parts.inverse), ("total", parts.total)):
        if made is not None:
            writer.add(name, made, True)
    return value


@lru_cache(maxsize=4096)
def norm_kernel(layout: Layout, x: Operand, y: Operand, p: int, own: bool) -> Kernel:
    """y = x / (norm of the row), 0 where that is 0."""
    writer = RowKernel("lp_normalization", layout, block_of(layout.count, layout.length, own))
    scalar = writer.add("x", x)
    writer.add("y", y, True)
    kind, f, kept = scalar.compute, suffix(scalar), writer.keeps
    writer.buffer(kind)
    writer.line(f"{kind} sum = 0;")
    writer.columns(f"const {kind} v = {writer.load('x')};", "b[k] = v;" if kept else "",
                   f"sum += fabs{f}(v);" if p == 1 else "sum += v * v;")
    writer.line("sum = eg_row_sum(sum);", f"const {kind} norm = {'sum' if p == 1 else f'sqrt{f}(sum)'};")
    value = "b[k]" if kept else writer.load("x")
    writer.columns(writer.store("y", f"norm != 0 ? {value} / norm : 0"))
    return writer.kernel()


@lru_cache(maxsize=4096)
def lrn_kernel(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], size: int, alpha: float, beta: float,
               bias: float) -> Kernel:
    """y = x / (bias + alpha / size * (sum of squares over neighbouring channels)) ^ beta."""
    scalar, channels = Scalar.of(dtype), shape[1]
    inner, total = prod(shape[2:]), prod(shape)
    kind, f = scalar.compute, suffix(scalar)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    channel = f"(i / {inner}) % {channels}" if inner > 1 else f"i % {channels}"
    body = [f"EG_PARALLEL(i, {total})", f"  const eg_index channel = {channel};",
            f"  const eg_index at = {address.offset('i', shape, strides)};",
            f"  const eg_index first = channel > {before} ? channel - {before} : 0;",
            f"  const eg_index last = channel + {after} < {channels} ? channel + {after} : {channels - 1};",
            f"  {kind} sum = 0;", "  for (eg_index c = first; c <= last; ++c) {",
            f"    const {kind} v = {scalar.load('x', f'at + (c - channel) * {strides[1]}')};",
            "    sum += v * v;", "  }",
            f"  const {kind} base = {scalar.literal(bias)} + {scalar.literal(alpha / size)} * sum;",
            f"  const {kind} value = {scalar.load('x', 'at')};",
            f"  {scalar.store('y', 'i', f'value / pow{f}(base, {scalar.literal(beta)})')}", "EG_END"]
    return Kernel("eg_lrn", (Parameter("x", dtype), Parameter("y", dtype, True)), "\n".join(body), total,
                  wide=address.is_wide(shape, strides))
