"""Kernels that reduce or scan rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from . import address
from .kernel import Kernel, Parameter
from .rowwise import Layout, Operand, RowKernel, block_of
from .scalar import Scalar

BUSY = 1 << 17  # threads that keep a GPU busy
LEAST_CHUNK = 2048  # elements of a part of a row; fewer for rows that a thread each walks
LEAST_OWN_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Fold:
    """A reduction: `item` is what becomes of an element `v`, `finish` of the total `a`.

    Texts have the compute type of `total` (a dtype); `of` is the language's functor. `beside`: `item` and `finish`
    use `c`, a value that each row has in another tensor.
    """

    total: str
    of: str
    start: str
    item: str
    finish: str
    beside: bool = False

    def merged(self) -> Fold:
        """What is done to the totals of parts: they are combined, and finished."""
        return Fold(self.total, self.of, self.start, "v", self.finish, self.beside)

    def unfinished(self) -> Fold:
        """What is done to a part."""
        return Fold(self.total, self.of, self.start, self.item, "a", self.beside)


_DTYPES = {"int": "int32", "unsigned int": "uint32", "long long": "int64", "unsigned long long": "uint64",
           "bool": "int32", "float": "float32", "double": "float64"}


def _extreme(scalar: Scalar, lowest: bool) -> str:
    """Below or above all elements: of the element type, since it is what an empty row gives."""
    if scalar.is_float:
        return scalar.literal(float("-inf") if lowest else float("inf"))
    bits, signed = scalar.bits, scalar.is_signed
    if scalar.dtype == "bool":
        return "0" if lowest else "1"
    if lowest:
        return scalar.literal(-(1 << (bits - 1)) if signed else 0)
    return scalar.literal((1 << (bits - (1 if signed else 0))) - 1)


def _maximum(scalar: Scalar, length: int) -> Fold:
    return Fold(_DTYPES[scalar.compute], "eg_larger", _extreme(scalar, True), "v", "a")


def _minimum(scalar: Scalar, length: int) -> Fold:
    return Fold(_DTYPES[scalar.compute], "eg_smaller", _extreme(scalar, False), "v", "a")


def _summing(floats: str, integers: str, of: str = "eg_plus") -> Callable[[Scalar, int], Fold]:
    def make(scalar: Scalar, length: int) -> Fold:
        start = "1" if of == "eg_times" else "0"
        if scalar.is_float:
            return Fold(_DTYPES[scalar.compute], of, start, _suffixed(floats, scalar), "a")
        # Modulo 2^64, of which every narrower type sees its own bits.
        return Fold("uint64", of, start, integers, "(long long)a" if scalar.is_signed else "a")

    return make


def _mean(scalar: Scalar, length: int) -> Fold:
    if scalar.is_float:
        return Fold(_DTYPES[scalar.compute], "eg_plus", "0", "v", f"a / {scalar.literal(float(length))}")
    finish = f"(long long)a / {length}ll" if length else "0"  # truncated
    return Fold("uint64", "eg_plus", "0", "(unsigned long long)v", finish)


def _real(item: str, finish: str, beside: bool = False) -> Callable[[Scalar, int], Fold]:
    """Computed in a float type whatever the elements are."""

    def make(scalar: Scalar, length: int) -> Fold:
        real = scalar if scalar.is_float else Scalar.of("float64")
        own = item if scalar.is_float else item.replace("v", "(double)v")
        return Fold(_DTYPES[real.compute], "eg_plus", "0", _suffixed(own, real), _suffixed(finish, real), beside)

    return make


def _suffixed(text: str, scalar: Scalar) -> str:
    return text.replace("$f", "f" if scalar.compute == "float" else "")


def power_sum(p: float) -> Callable[[Scalar, int], Fold]:
    """The p-norm of float rows."""
    if p == 1:
        return FOLDS["ReduceL1"]
    if p == 2:
        return FOLDS["ReduceL2"]
    return lambda scalar, length: _real(f"pow$f(fabs$f(v), {scalar.literal(p)})",
                                        f"pow$f(a, {scalar.literal(1 / p)})")(scalar, length)


FOLDS: dict[str, Callable[[Scalar, int], Fold]] = {
    "ReduceSum": _summing("v", "(unsigned long long)v"),
    "ReduceProd": _summing("v", "(unsigned long long)v", "eg_times"),
    "ReduceL1": _summing("fabs$f(v)", "v < 0 ? 0ull - (unsigned long long)v : (unsigned long long)v"),
    "ReduceSumSquare": _summing("v * v", "(unsigned long long)v * (unsigned long long)v"),
    "ReduceMean": _mean,
    "ReduceMax": _maximum,
    "ReduceMin": _minimum,
    "ReduceL2": _real("v * v", "sqrt$f(a)"),
    "ReduceLogSum": _real("v", "log$f(a)"),
    # `c` is the greatest element; where that is not finite the sum is as it comes
    "ReduceLogSumExp": _real("exp$f(v - (c - c == 0 ? c : 0))", "log$f(a) + (c - c == 0 ? c : 0)", True),
}


def parts_of(layout: Layout, own: bool) -> int:
    """Into how many parts rows are cut, so that few long rows keep many threads busy."""
    threads, least, most = (1, LEAST_OWN_CHUNK, 1 << 14) if own else (256, LEAST_CHUNK, 512)
    return max(1, min(BUSY // max(layout.count * threads, 1), layout.length // least, most))


@lru_cache(maxsize=4096)
def fold_kernel(name: str, layout: Layout, x: Operand, result: Operand, fold: Fold, own: bool,
                beside: Operand | None = None) -> Kernel:
    """y[row] = the rows of x folded."""
    writer = RowKernel(name, layout, block_of(layout.count, layout.length, own))
    element, total = writer.add("x", x), Scalar.of(fold.total)
    if fold.beside and beside is not None:
        kept = writer.add("z", beside)
        writer.line(f"const {kept.compute} c = {writer.load('z', '0')};")
    writer.add("y", result, True)
    writer.keeps = False  # nothing is kept: the loop needs no unrolling
    writer.line(f"{total.compute} a = {fold.start};")
    writer.columns(f"const {element.compute} v = {writer.load('x')};", _step(fold, total))
    writer.line(f"a = eg_row_reduce<{fold.of}<{total.compute}>, {total.compute}>(a);",
                writer.store_first("y", fold.finish))
    return writer.kernel()


def _step(fold: Fold, total: Scalar) -> str:
    return f"a = {fold.of}<{total.compute}>::of(a, ({total.compute})({fold.item}));"


@lru_cache(maxsize=4096)
def part_kernel(name: str, layout: Layout, x: Operand, fold: Fold, own: bool, parts: int,
                beside: Operand | None = None) -> Kernel:
    """y[part, row] = a part of the row of x folded: y[row, part] of rows that lie apart."""
    chunk = -(-layout.length // parts)
    columns, rows = block_of(layout.count * parts, chunk, own)
    element, total = Scalar.of(x.dtype), Scalar.of(fold.total)
    where = address.offset("row", layout.rows, x.rows)
    lines = [f"EG_ROWS(item, {layout.count * parts})",
             *(f"  {text}" for text in _numbers(layout.count, parts, own)),
             f"  const eg_index x_row = {where};"]
    parameters = [Parameter("x", x.dtype)]
    if fold.beside and beside is not None:
        parameters.append(Parameter("z", beside.dtype))
        value = Scalar.of(beside.dtype).load("z", address.offset("row", layout.rows, beside.rows))
        lines.append(f"  const {Scalar.of(beside.dtype).compute} c = {value};")
    column = address.offset("q", layout.columns, x.columns)
    lines += [f"  {total.compute} a = {fold.start};", f"  EG_COLUMNS(j, k, {chunk})",
              f"    const eg_index q = part * {chunk} + j;", f"    if (q < {layout.length}) {{",
              f"      const {element.compute} v = {element.load('x', f'x_row + {column}')};",
              f"      {_step(fold, total)}", "    }", "  EG_COLUMNS_END",
              f"  a = eg_row_reduce<{fold.of}<{total.compute}>, {total.compute}>(a);",
              f"  if (EG_FIRST_COLUMN) {total.store_row('y', 'item', 'a')}", "EG_END"]
    shape, strides = (*layout.rows, *layout.columns), (*x.rows, *x.columns)
    return Kernel(f"eg_{name}_parts", (*parameters, Parameter("y", fold.total, True)), "\n".join(lines),
                  layout.count * parts, columns, rows, waits=columns > 1, wide=address.is_wide(shape, strides))


def _numbers(count: int, parts: int, own: bool) -> Sequence[str]:
    if own:
        return f"const eg_index row = item % {count};", f"const eg_index part = item / {count};"
    return f"const eg_index row = item / {parts};", f"const eg_index part = item % {parts};"


ORDERS = {("ArgMax", False): "eg_largest_first", ("ArgMax", True): "eg_largest_last",
          ("ArgMin", False): "eg_smallest_first", ("ArgMin", True): "eg_smallest_last"}


@lru_cache(maxsize=4096)
def arg_kernel(name: str, layout: Layout, x: Operand, result: Operand, order: str, own: bool) -> Kernel:
    """y[row] = the place of the element that is first in an order."""
    writer = RowKernel(name, layout, block_of(layout.count, layout.length, own))
    element = writer.add("x", x)
    writer.add("y", result, True)
    writer.keeps = False
    kind = _exchanged(element)
    writer.line(f"{kind} best = 0;", "eg_index at = -1;")
    writer.columns(f"const {kind} v = {writer.load('x')};",
                   f"if ({order}<{kind}>::of(v, j, best, at)) best = v, at = j;")
    writer.line(f"eg_row_best<{order}<{kind}>, {kind}>(best, at);", writer.store_first("y", "at"))
    return writer.kernel()


def _exchanged(scalar: Scalar) -> str:
    """The compute type, where shuffles can exchange it."""
    return "int" if scalar.dtype == "bool" else scalar.compute


@lru_cache(maxsize=4096)
def top_kernel(layout: Layout, x: Operand, values: Operand, places: Operand, k: int, largest: bool,
               own: bool) -> Kernel:
    """The first k elements of each row in an order, and their places: k times the best of what is behind the last."""
    writer = RowKernel("top_k", layout, block_of(layout.count, layout.length, own))
    kind = _exchanged(writer.add("x", x))
    writer.add("y", values, True)
    writer.add("z", places, True)
    order = f"{'eg_largest_first' if largest else 'eg_ascending'}<{kind}>"
    writer.buffer(kind)
    if writer.keeps:
        writer.columns(f"b[k] = {writer.load('x')};")
    writer.line(f"{kind} last = 0;", "eg_index last_at = -1;", f"for (eg_index n = 0; n < {k}; ++n) {{",
                f"{kind} best = 0;", "eg_index at = -1;")
    writer.columns(f"const {kind} v = {'b[k]' if writer.keeps else writer.load('x')};",
                   f"if ((last_at < 0 || {order}::of(last, last_at, v, j)) && {order}::of(v, j, best, at)) "
                   "best = v, at = j;")
    length = Layout((k,), (0,))
    writer.line(f"eg_row_best<{order}, {kind}>(best, at);")
    for name, operand, value in (("y", values, "best"), ("z", places, "at")):
        where = f"{name}_row + {address.offset('n', length.columns, operand.columns)}"
        writer.line(f"if (EG_FIRST_COLUMN) {Scalar.of(operand.dtype).store_row(name, where, value)}")
    writer.line("last = best;", "last_at = at;", "}")
    return writer.kernel()


@lru_cache(maxsize=4096)
def scan_kernel(name: str, layout: Layout, x: Operand, result: Operand, of: str, exclusive: bool, reverse: bool,
                own: bool) -> Kernel:
    """Running totals along rows."""
    writer = RowKernel(name, layout, block_of(layout.count, layout.length, own))
    element = writer.add("x", x)
    writer.add("y", result, True)
    kind = element.compute if element.is_float else "unsigned long long"
    back = "" if element.is_float or not element.is_signed else "(long long)"
    start = "1" if of == "eg_times" else "0"
    functor, place = f"{of}<{kind}>", f"{layout.length - 1} - j" if reverse else "j"
    writer.line(f"{kind} carry = {start};", f"EG_STEPS(j, k, {layout.length})", f"  const eg_index place = {place};",
                f"  const {kind} v = eg_inside ? ({kind}){writer.load('x', 'place')} : ({kind}){start};",
                f"  {kind} all;",
                f"  const {kind} before = eg_row_scan<{functor}, {kind}>(v, ({kind}){start}, all);",
                f"  const {kind} own = {functor}::of(carry, "
                f"{'before' if exclusive else f'{functor}::of(before, v)'});",
                f"  if (eg_inside) {writer.store('y', f'{back}own', 'place')}",
                f"  carry = {functor}::of(carry, all);", "EG_END")
    return writer.kernel()

