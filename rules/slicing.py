"""Movement rules: Slice, Concat, Split and Gather that undo, contain or follow each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphs.constants import Constant
from graphs.dims import DimLike, Expr, add

from .declare import Leaf, Match, NodeView, Operand, Outcome, Rule, refuse, rule, term
from .values import UNARY, number, splat_of

FAMILY = "movement"
_END = 2**63 - 1
Row = tuple[int, int, int]  # start, end, step of a Slice along one axis


def slice_rows(attrs: object) -> dict[int, Row] | None:
    """Axis -> (start, end, step); None where they are not all known."""
    names = ("axes", "starts", "ends", "steps")
    values = [attrs[name] for name in names]  # type: ignore[index]
    if not all(isinstance(value, tuple) for value in values):
        return None
    axes, starts, ends, steps = values
    return {axis: (start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)}


def _slice(source: Leaf, rows: dict[int, Row]) -> Leaf:
    axes = tuple(sorted(rows))
    if not axes:
        return source
    return term("Slice", source, axes=axes, starts=tuple(rows[axis][0] for axis in axes),
                ends=tuple(rows[axis][1] for axis in axes), steps=tuple(rows[axis][2] for axis in axes))


def _ordered(first: int, second: int) -> bool:
    """The first position is not after the second one, whatever the size of the axis is."""
    return second == _END or first == 0 or ((first >= 0) == (second >= 0) and first <= second)


# Slice -----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Slice that takes everything does nothing.",
    before="s:Slice(x)", after="x",
    example="graph opset 17 (x: float32[n, 6]) -> (y) "
            "{ y = Slice(x, starts=[0, -6], ends=[9223372036854775807, 6], axes=[0, 1]) }",
    near_miss="graph opset 17 (x: float32[6, 6]) -> (y) { y = Slice(x, starts=[-1], ends=[-7], axes=[0], steps=[-1]) }",
)
def slice_all(m: Match) -> Outcome:
    rows = slice_rows(m.s.attrs)
    if rows is None or any((start, step) != (0, 1) for start, _, step in rows.values()):
        return refuse("it does not start at 0 with steps of 1")
    return None


def _composed(size: DimLike, inner: Row, outer: Row) -> Row | None:
    """The range of a range."""
    (s1, e1, t1), (s2, e2, t2) = inner, outer
    if t1 <= 0 or t2 <= 0:
        return None
    if isinstance(size, int):
        first = len(range(size)[s1:e1:t1])
        taken = range(size)[s1:e1:t1][s2:e2:t2]
        if not first or not len(taken):
            return 0, 0, 1
        return taken[0], taken[-1] + 1, t1 * t2
    if min(s1, e1, s2, e2) < 0 or t1 != 1 or t2 != 1:
        return None
    end = e1 if e2 == _END else min(e1, s1 + e2)
    return s1 + s2, end, 1


@rule(
    family=FAMILY, exactness="exact",
    meaning="A range of a range is a range.",
    before="o:Slice(i:Slice(x))",
    example="graph opset 17 (x: float32[n, 10]) -> (y) "
            "{ t = Slice(x, starts=[2], ends=[9], axes=[1]) y = Slice(t, starts=[1], ends=[4], axes=[1]) }",
    near_miss="graph opset 17 (x: float32[n, 10]) -> (y) "
              "{ t = Slice(x, starts=[-1], ends=[-11], axes=[1], steps=[-1]) "
              "y = Slice(t, starts=[1], ends=[4], axes=[1]) }",
)
def slice_slice(m: Match) -> Outcome:
    inner, outer = slice_rows(m.i.attrs), slice_rows(m.o.attrs)
    if inner is None or outer is None:
        return refuse("a range is not known")
    rows = dict(inner)
    for axis, row in outer.items():
        if axis not in rows:
            rows[axis] = row
            continue
        both = _composed(m.x.shape[axis], rows[axis], row)
        if both is None:
            return refuse("the ranges count from the end of an unknown size, or backwards")
        rows[axis] = both
    return _slice(m.x, rows)


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Slice that lies inside one input of a Concat is a Slice of that input.",
    before="s:Slice(Concat(*xs, axis=a))",
    example="graph opset 17 (x: float64[n, 2], z: float64[n, 3]) -> (y) "
            "{ t = Concat(x, z, axis=1) y = Slice(t, starts=[3], ends=[5], axes=[1]) }",
    near_miss="graph opset 17 (x: float64[n, 2], z: float64[n, 3]) -> (y) "
              "{ t = Concat(x, z, axis=1) y = Slice(t, starts=[1], ends=[5], axes=[1]) }",
)
def slice_of_concat(m: Match) -> Outcome:
    rows, axis = slice_rows(m.s.attrs), m["a"]
    if rows is None or axis not in rows:
        return refuse("the range is not known or runs along another axis")
    start, end, step = rows[axis]
    if start < 0 or end < 0 or step <= 0:
        return refuse("the range counts from the end or backwards")
    offset = 0
    for piece in m.xs:
        size = piece.shape[axis]
        if not isinstance(size, int):
            return refuse("the place of the pieces is not known")
        if offset <= start and end <= offset + size:
            return _slice(piece, {**rows, axis: (start - offset, end - offset, step)})
        offset += size
    return refuse("the range covers several inputs")


# Concat ----------------------------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Concat of one input is that input.",
    before="Concat(x, axis=a)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { y = Concat(x, axis=1) }",
    near_miss="graph opset 17 (x: float32[2, 3]) -> (y) { y = Concat(x, x, axis=1) }",
)
def concat_one(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Concat within a Concat along the same axis is one Concat, in order.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (p: float16[n, 2], q: float16[n, 3], r: float16[n, 1]) -> (y) "
            "{ t = Concat(p, q, axis=1) y = Concat(r, t, axis=1) }",
    near_miss="graph opset 17 (p: float16[2, 2], q: float16[2, 2], r: float16[4, 2]) -> (y) "
              "{ t = Concat(p, q, axis=0) y = Concat(r, t, axis=1) }",
)
def concat_concat(m: Match) -> Outcome:
    pieces: list[Operand] = []
    opened = False
    for piece in m.xs:
        view = next((view for view in piece.forms("Concat") if view.attrs["axis"] == m["a"]
                     and all(arg is not None and arg.key != piece.key for arg in view.args)), None)
        if view is None:
            pieces.append(piece)
        else:
            opened = True
            m.use(view)
            pieces += [arg for arg in view.args if arg is not None]
    return term("Concat", *pieces, axis=m["a"]) if opened else refuse("no input is a Concat along this axis")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Empty inputs of a Concat add nothing.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[2, 3], z: float32[2, 0]) -> (y) { y = Concat(x, z, axis=1) }",
    near_miss="graph opset 17 (x: float32[2, 3], z: float32[2, n]) -> (y) { y = Concat(x, z, axis=1) }",
)
def concat_empty(m: Match) -> Outcome:
    kept = [piece for piece in m.xs if piece.shape[m["a"]] != 0] or list(m.xs[:1])
    if len(kept) == len(m.xs):
        return refuse("no input is known to be empty")
    return kept[0] if len(kept) == 1 else term("Concat", *kept, axis=m["a"])


def _slice_along(piece: Operand, axis: int) -> tuple[NodeView, Operand, Row] | None:
    for view in piece.forms("Slice"):
        rows = slice_rows(view.attrs)
        source = view.args[0]
        if rows is not None and list(rows) == [axis] and rows[axis][2] == 1 and source is not None:
            return view, source, rows[axis]
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Neighbouring Slices of one value put together in order are one Slice.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[n, 6]) -> (y) { p = Slice(x, starts=[0], ends=[2], axes=[1]) "
            "q = Slice(x, starts=[2], ends=[9223372036854775807], axes=[1]) y = Concat(p, q, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 6]) -> (y) { p = Slice(x, starts=[0], ends=[3], axes=[1]) "
              "q = Slice(x, starts=[3], ends=[6], axes=[1]) y = Concat(q, p, axis=1) }",
)
def concat_slices(m: Match) -> Outcome:
    axis = m["a"]
    done: list[tuple[Leaf, Operand | None, Row, NodeView | None]] = []
    merged = False
    for piece in m.xs:
        found = _slice_along(piece, axis)
        if found is None:
            done.append((piece, None, (0, 0, 1), None))
            continue
        view, source, (start, end, _) = found
        if done and done[-1][1] is not None and done[-1][1].key == source.key:
            _, _, last, before = done[-1]
            if last[1] == start and _ordered(last[0], start) and _ordered(start, end):
                m.use(view)
                if before is not None:
                    m.use(before)
                row = (last[0], end, 1)
                done[-1] = (_slice(source, {axis: row}), source, row, None)
                merged = True
                continue
        done.append((piece, source, (start, end, 1), view))
    if not merged:
        return refuse("no two neighbouring inputs are neighbouring Slices of one value")
    pieces = [each[0] for each in done]
    return pieces[0] if len(pieces) == 1 else term("Concat", *pieces, axis=axis)


def _split_run(xs: Sequence[Operand], start: int, axis: int) -> tuple[int, Operand, list[NodeView]] | None:
    """How many inputs from `start` on are all outputs of one Split in order, its source, and the nodes."""
    for view in xs[start].forms("Split"):
        source = view.args[0]
        if source is None or view.attrs["axis"] != axis or view.output != 0:
            continue
        used, total, position = [view], xs[start].shape[axis], start + 1
        while total != source.shape[axis] and position < len(xs):
            following = [other for other in xs[position].forms("Split")
                         if other.output == position - start and other.attrs == view.attrs
                         and other.args[0] is not None and other.args[0].key == source.key]
            if not following:
                break
            used.append(following[0])
            total = add(total, xs[position].shape[axis])
            position += 1
        if total == source.shape[axis]:
            return position - start, source, used
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="The outputs of a Split put together in order are its input.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[n, 6]) -> (y) "
            "{ p, q = Split(x, axis=1, split=[2, 4]) y = Concat(p, q, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 6]) -> (y) "
              "{ p, q = Split(x, axis=1, split=[3, 3]) y = Concat(q, p, axis=1) }",
)
def concat_split(m: Match) -> Outcome:
    pieces: list[Leaf] = []
    position, joined = 0, False
    while position < len(m.xs):
        run = _split_run(m.xs, position, m["a"])
        if run is None:
            pieces.append(m.xs[position])
            position += 1
            continue
        length, source, views = run
        for view in views:
            m.use(view)
        pieces.append(source)
        position += length
        joined = True
    if not joined:
        return refuse("the inputs are not all outputs of a Split in order")
    return pieces[0] if len(pieces) == 1 else term("Concat", *pieces, axis=m["a"])


@rule(
    family=FAMILY, exactness="rounding",
    meaning="The same elementwise operator on every input of a Concat may follow the Concat.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) "
            "{ p = Tanh(x) q = Tanh(z) y = Concat(p, q, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) "
              "{ p = LeakyRelu(x, alpha=0.5) q = LeakyRelu(z, alpha=0.25) y = Concat(p, q, axis=1) }",
)
def concat_of_unary(m: Match) -> Outcome:
    if len(m.xs) < 2:
        return refuse("one input only")
    for op in UNARY:
        for first in m.xs[0].forms(op):
            views = [next((view for view in piece.forms(op) if dict(view.attrs) == dict(first.attrs)), None)
                     for piece in m.xs]
            if all(view is not None and len(view.args) == 1 for view in views):
                for view in views:
                    m.use(view)  # type: ignore[arg-type]
                inner = term("Concat", *(view.args[0] for view in views), axis=m["a"])  # type: ignore[union-attr]
                return term(op, inner, **first.attrs)
    return refuse("the inputs do not come from one and the same elementwise operator")


@rule(
    family=FAMILY, exactness="exact",
    meaning="The same operator with the same number on every input of a Concat may follow the Concat.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) "
            "{ c = constant float32[] 2 p = Mul(x, c) q = Mul(z, c) y = Concat(p, q, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 2], z: float32[n, 2]) -> (y) "
              "{ c = constant float32[2] [2, 3] p = Mul(x, c) q = Mul(z, c) y = Concat(p, q, axis=1) }",
)
def concat_of_scaled(m: Match) -> Outcome:
    if len(m.xs) < 2:
        return refuse("one input only")
    for op in ("Mul", "Add", "Sub", "Div", "Max", "Min"):
        for first in m.xs[0].forms(op):
            factor = next((arg for arg in first.args[1:] + first.args[:1] if arg is not None
                           and splat_of(arg) is not None and all(dim == 1 for dim in arg.shape)), None)
            found = [_with_number(piece, op, factor) for piece in m.xs] if factor is not None else [None]
            if factor is None or not all(each is not None and each[1].rank >= factor.rank for each in found):
                continue
            for each in found:
                m.use(each[0])  # type: ignore[index]
            return term(op, term("Concat", *(each[1] for each in found), axis=m["a"]), factor)  # type: ignore[index]
    return refuse("the inputs do not come from one and the same operator with one number")


def _with_number(piece: Operand, op: str, number: Operand) -> tuple[NodeView, Operand] | None:
    """The node that combines a value (first, unless the operator commutes) with the number, and that value."""
    for view in piece.forms(op):
        if len(view.args) == 2 and view.args[0] is not None and view.args[1] is not None:
            if view.args[1].key == number.key:
                return view, view.args[0]
            if op in ("Mul", "Add") and view.args[0].key == number.key:
                return view, view.args[1]
    return None


# Split and Gather ------------------------------------------------------------------------------------------


def _split_of_concat(output: int) -> Rule:
    @rule(
        family=FAMILY, exactness="exact",
        meaning="A Split that cuts a Concat where it was joined gives back the input.",
        before=f"s:Split(Concat(*xs, axis=a))[{output}]",
        example="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) { t = Concat("
                + ", ".join(["z"] * output + ["x", "z"]) + ", axis=1) "
                + ", ".join([f"o{i}" for i in range(output)] + ["y", "w"])
                + " = Split(t, axis=1, split=[" + ", ".join(["3"] * output + ["2", "3"]) + "]) }",
        near_miss="graph opset 17 (x: float32[n, 3], z: float32[n, 3]) -> (y) { t = Concat("
                  + ", ".join(["x"] * (output + 1)) + ", z, axis=1) "
                  + ", ".join([f"o{i}" for i in range(output)] + ["y", "w"]) + " = Split(t, axis=1, split=["
                  + ", ".join(["2"] + ["3"] * output + ["4"]) + "]) }",
    )
    def guard(m: Match) -> Outcome:
        sizes, axis = m.s.attrs["split"], m["a"]
        if m.s.attrs["axis"] != axis or len(m.xs) <= output:
            return refuse("the Split cuts along another axis")
        assert m.root.type.shape is not None
        here = m.root.type.shape[axis]
        if isinstance(sizes, tuple):
            parts: tuple[DimLike, ...] = sizes[: output + 1]
        elif sizes is None and m.s.attrs["num_outputs"] is None:
            parts = (here,) * (output + 1)
        else:
            return refuse("the sizes of the parts are not known")
        if parts != tuple(piece.shape[axis] for piece in m.xs[: output + 1]):
            return refuse("the Split cuts elsewhere")
        return m.xs[output]

    return guard.renamed(f"split-of-concat-{output}")


SPLIT_OF_CONCAT = [_split_of_concat(output) for output in range(6)]


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Gather of all positions in order does nothing.",
    before="Gather(x, $i, axis=a)", after="x",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { i = constant int64[3] [0, 1, 2] y = Gather(x, i, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { i = constant int64[3] [0, 2, 1] y = Gather(x, i, axis=1) }",
)
def gather_all(m: Match) -> Outcome:
    size, indices = m.x.shape[m["a"]], m.i.array
    if isinstance(size, Expr) or indices is None or indices.ndim != 1:
        return refuse("the positions are not known")
    if len(indices) != size or not np.array_equal(np.where(indices < 0, indices + size, indices), np.arange(size)):
        return refuse("not all positions in order")
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="A lookup in rows that were looked up is one lookup of positions.",
    before="Gather(Gather(x, i, axis=a), j, axis=a)", after="Gather(x, Gather(i, j, axis=0), axis=a)",
    example="graph opset 17 (x: float32[n, 3], i: int64[4], j: int64[2]) -> (y) "
            "{ k = Clip(i, min=0, max=0) l = Clip(j, min=0, max=3) t = Gather(x, k) y = Gather(t, l) }",
    near_miss="graph opset 17 (x: float32[4, 3], i: int64[2, 2], j: int64[2]) -> (y) "
              "{ k = Clip(i, min=0, max=1) l = Clip(j, min=0, max=1) t = Gather(x, k) y = Gather(t, l) }",
)
def gather_gather(m: Match) -> Outcome:
    return None if m.i.rank == 1 else refuse("the inner positions are no vector")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A lookup at constant positions inside one input of a Concat is a lookup in that input.",
    before="Gather(Concat(*xs, axis=a), $i, axis=a)",
    example="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) "
            "{ i = constant int64[2] [4, -3] t = Concat(x, z, axis=1) y = Gather(t, i, axis=1) }",
    near_miss="graph opset 17 (x: float32[n, 2], z: float32[n, 3]) -> (y) "
              "{ i = constant int64[2] [1, 2] t = Concat(x, z, axis=1) y = Gather(t, i, axis=1) }",
)
def gather_of_concat(m: Match) -> Outcome:
    positions, sizes = m.i.array, [piece.shape[m["a"]] for piece in m.xs]
    if positions is None or positions.size == 0 or len(m.xs) < 2:
        return refuse("the positions are not known")
    if not all(isinstance(size, int) for size in sizes):
        return refuse("the place of the pieces is not known")
    total, offset = sum(sizes), 0  # type: ignore[arg-type]
    positions = np.where(positions < 0, positions + total, positions)
    for piece, size in zip(m.xs, sizes, strict=True):
        if offset <= positions.min() and positions.max() < offset + size:  # type: ignore[operator]
            return term("Gather", piece, Constant.of((positions - offset).astype(np.int64)), axis=m["a"])
        offset += size  # type: ignore[operator]
    return refuse("the positions lie in several inputs, or outside")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A lookup at one constant position that keeps its axis is a Slice.",
    before="Reshape(Gather(x, $i, axis=a), shape=s)",
    example="graph opset 17 (x: float32[n, 3]) -> (y) "
            "{ i = constant int64[] -1 t = Gather(x, i, axis=1) y = Unsqueeze(t, axes=[1]) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) "
              "{ i = constant int64[] 1 t = Gather(x, i, axis=1) y = Unsqueeze(t, axes=[0]) }",
)
def gather_as_slice(m: Match) -> Outcome:
    position, axis = number(m.i), m["a"]
    if position is None or m.i.rank != 0:
        return refuse("not one known position")
    kept = tuple(1 if place == axis else size for place, size in enumerate(m.x.shape))
    if tuple(m["s"]) != kept:
        return refuse("the axis does not stay")
    start = int(position)
    return _slice(m.x, {axis: (start, start + 1 if start != -1 else _END, 1)})


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Split into one part does nothing.",
    before="s:Split(x)", after="x",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { y = Split(x, axis=1, split=[3]) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y, z) { y, z = Split(x, axis=1, split=[3, 0]) }",
)
def split_into_one(m: Match) -> Outcome:
    sizes = m.s.attrs["split"]
    one = len(sizes) == 1 if isinstance(sizes, tuple) else m.s.attrs["num_outputs"] == 1
    return None if one else refuse("there are several parts")
