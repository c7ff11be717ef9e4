"""Kernels of attention: weights from scores, and rotary embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from . import address
from .kernel import Kernel, Parameter
from .rowwise import Layout, Operand, RowKernel, block_of
from .scalar import Scalar


@dataclass(frozen=True, slots=True)
class Sight:
    """What is done to scores (batch, heads, queries, keys) before their softmax, beside a mask that is added.

    `cap`: they are squashed into -cap ... cap. `past`: keys that lie before those of the first query, where no
    lengths are given. `left` and `right`: how far a query sees before and after itself, None everywhere.
    `columns_of_mask`: keys beyond are not seen. `shows`: `capped` or `masked` scores are stored, too. `precise`: the
    softmax is computed in double.
    """

    cap: float = 0.0
    past: int = 0
    left: int | None = None
    right: int | None = None
    columns_of_mask: int = 0
    shows: str = ""
    precise: bool = False


@lru_cache(maxsize=1024)
def weights_kernel(shape: tuple[int, int, int, int], dtype: str, sight: Sight, mask: Operand | None,
                   lengths: Operand | None) -> Kernel:
    """y = softmax over keys of the scores x, both row-major. Queries that see no key get zeros."""
    layout = Layout(shape, (3,))
    writer = RowKernel("attention_weights", layout, block_of(layout.count, layout.length))
    dense = layout.operand(dtype, address.contiguous(shape))
    scalar = writer.add("x", dense)
    for name, operand in (("m", mask), ("n", lengths)):
        if operand is not None:
            writer.add(name, operand)
    if sight.shows:
        writer.add("s", dense, True)
    writer.add("y", dense, True)
    kind = "double" if sight.precise else scalar.compute
    f, minus = "f" if kind == "float" else "", scalar.literal(float("-inf"))
    if lengths is not None:
        writer.line(f"const eg_index length = (eg_index){writer.load('n', '0')};")
    bias = _bias(writer, sight, scalar, mask, lengths is not None)
    score = [f"{kind} v = {writer.load('x')};", f"v = tanh{f}(v / {scalar.literal(sight.cap)}) * "
             f"{scalar.literal(sight.cap)};" if sight.cap else ""]
    shown = writer.store("s", "v") if sight.shows else ""
    masked = [f"const {kind} bias = {bias};", "v += bias;"] if bias else []
    writer.buffer(kind)
    writer.line(f"{kind} top = {minus}, seen = {minus}, total = 0;")
    writer.columns(*score, shown if sight.shows == "capped" else "", *masked, shown if sight.shows == "masked" else "",
                   "b[k] = v;" if writer.keeps else "", "top = eg_max(top, v);",
                   "seen = eg_max(seen, bias);" if bias else "")
    writer.line("top = eg_row_max(top);", f"if (top == {minus}) top = 0;",
                *(["seen = eg_row_max(seen);"] if bias else []))
    again = [f"const {kind} v = b[k];"] if writer.keeps else [*score, *masked]
    writer.columns(*again, f"const {kind} e = exp{f}(v - top);", "b[k] = e;" if writer.keeps else "", "total += e;")
    writer.line("total = eg_row_sum(total);", "if (total == 0) total = 1;")
    value = "b[k] / total" if writer.keeps else f"exp{f}(v - top) / total"
    value = f"seen == {minus} ? {scalar.literal(0)} : {value}" if bias else value
    writer.columns(*([] if writer.keeps else again), writer.store("y", value))
    return writer.kernel()


def _bias(writer: RowKernel, sight: Sight, scalar: Scalar, mask: Operand | None, has_lengths: bool) -> str:
    """What is added to a score; empty if nothing is."""
    zero, minus = scalar.literal(0), scalar.literal(float("-inf"))
    terms, queries = [], writer.layout.shape[2]
    if mask is not None:
        got = writer.load("m")
        text = f"({got} ? {zero} : {minus})" if mask.dtype == "bool" else f"({scalar.compute}){got}"
        terms.append(text if sight.columns_of_mask >= writer.layout.length
                     else f"(j < {sight.columns_of_mask} ? {text} : {minus})")
    conditions = []
    if sight.left is not None or sight.right is not None:
        offset = f"(length - {queries})" if has_lengths else str(sight.past)
        writer.line(f"const eg_index own = row % {queries} + {offset};")
        conditions += [f"j - own >= -{sight.left}"] if sight.left is not None else []
        conditions += [f"j - own <= {sight.right}"] if sight.right is not None else []
    conditions += ["j < length"] if has_lengths else []
    if conditions:
        terms.append(f"({' && '.join(conditions)} ? {zero} : {minus})")
    return " + ".join(terms)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embeddings of x (batch, heads, length, size) as `x` and `y` are strided over that shape.

    The first `width` features are rotated, in neighbouring pairs if `interleaved`, else half against half. `cache`:
    strides of cosine and sine, (batch, length, pair) or, with positions, (position, pair); then `rows` positions are
    there. `positions`: dtype and strides over (batch, length); with `offset` there is one, that of the first step.
    """

    dtype: str
    shape: tuple[int, int, int, int]
    x: tuple[int, ...]
    y: tuple[int, ...]
    width: int
    interleaved: bool
    cache: tuple[int, ...]
    rows: int = 0
    positions: tuple[str, tuple[int, int]] | None = None
    offset: bool = False


@lru_cache(maxsize=1024)
def rotary_kernel(rotation: Rotation) -> Kernel:
    """One thread an element. Positions below 0 count from the end, beyond both they are the nearest there is."""
    r, scalar, half = rotation, Scalar.of(rotation.dtype), rotation.width // 2
    names = "".join(f"  const eg_index {name} = {text};\n"
                    for name, text in zip("nhld", address.coordinates("i", r.shape)))
    row = " + ".join(f"{name} * {stride}" for name, stride in zip("nhl", r.x))
    target = " + ".join(f"{name} * {stride}" for name, stride in zip("nhld", r.y))
    if r.positions is None:
        where = f"  const eg_index line = n * {r.cache[0]} + l * {r.cache[1]};\n"
    else:
        step = "0" if r.offset else f"n * {r.positions[1][0]} + l * {r.positions[1][1]}"
        where = f"""\
  long long at = EG_GET(t, {step}){' + l' if r.offset else ''};
  if (at < 0) at += {r.rows};
  at = at < 0 ? 0 : at >= {r.rows} ? {r.rows - 1} : at;
  const eg_index line = (eg_index)at * {r.cache[0]};
"""
    pair, first, second, is_first = (("d / 2", "d - d % 2", "d - d % 2 + 1", "d % 2 == 0") if r.interleaved else
                                     (f"d % {half}", f"d % {half}", f"d % {half} + {half}", f"d < {half}"))
    body = f"""\
EG_PARALLEL(i, {prod(r.shape)})
{names}  const eg_index from = {row}, to = {target};
  if (d >= {r.width}) {{
    {scalar.store('y', 'to', scalar.load('x', f'from + d * {r.x[3]}'))}
    continue;
  }}
{where}  const eg_index turn = line + ({pair}) * {r.cache[-1]};
  const {scalar.compute} cosine = {scalar.load('c', 'turn')}, sine = {scalar.load('s', 'turn')};
  const {scalar.compute} a = {scalar.load('x', f'from + ({first}) * {r.x[3]}')};
  const {scalar.compute} b = {scalar.load('x', f'from + ({second}) * {r.x[3]}')};
  {scalar.store('y', 'to', f'{is_first} ? cosine * a - sine * b : sine * a + cosine * b')}
EG_END"""
    parameters = [Parameter(name, r.dtype) for name in "xcs"]
    parameters += [Parameter("t", r.positions[0])] if r.positions is not None else []
    return Kernel("eg_rotary", (*parameters, Parameter("y", r.dtype, True)), body, prod(r.shape), exact=False,
                  wide=address.is_wide(r.shape, r.x, r.y))
