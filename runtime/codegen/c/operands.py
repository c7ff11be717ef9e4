"""The operands of a matrix product: where the elements of A and B lie, for each of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

import numpy as np

from graphs.ir import Node
from graphs.operators._windows import SAME, explicit_pads, per_axis, window_count

from .. import address
from .lanes import RESIZED, Lanes, Resized, of_convolution, of_pool, of_resize
from .lowering import Lowering, Values
from .views import Cut, Domain, NotFusable, Refine
from .winograd import Winograd
from .winograd import of_convolution as in_squares

MOST_POSITIONS = 1 << 22  # of a convolution's result, for each of which the place in the image is kept
POOLS = frozenset({"MaxPool", "AveragePool"})
_SPACES = 3


@dataclass(frozen=True)
class Operand:
    """A or B: the tensor, the first element, the steps of a row and of a column, and where each batch begins."""

    tensor: str
    start: int
    row: int
    column: int
    batches: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """The B of a convolution: B[k, n] = image[places[k] + positions[n]]. `padded`, where it is laid out for that, are
    the sizes of an image (three dimensions) with its padding; `begins` is what of it comes first. A row holds, for
    each of `phases`, the columns that are `stride` apart from there on: windows beside each other read neighbours."""

    places: np.ndarray
    positions: np.ndarray
    sizes: tuple[int, ...]
    begins: tuple[int, ...]
    padded: tuple[int, ...] | None
    channels: int  # of all groups: planes of one image
    groups: int
    stride: int = 1
    phases: tuple[int, ...] = (0,)
    run: int = 1  # positions that follow each other: of one line
    band: tuple[int, ...] = ()  # the axis of `padded` for parts, positions of a part, its step, what windows reach over

    @property
    def elements(self) -> int:
        """Of the channels of a group, with the padding."""
        return self.channels // self.groups * prod(self.padded or self.sizes)


@dataclass(frozen=True)
class Operands:
    """C[m, n] = sum of A[m, k] B[k, n] for each batch; `starts` of the batches and `step` of the rows are C's. With
    `lanes` row m of C are windows over plane m of B, which row m of A are the weights of; pools, and planes that are
    resized, have none."""

    left: Operand
    right: Operand
    m: int
    n: int
    k: int
    starts: tuple[int, ...]
    step: int
    image: Image | None = None
    lanes: Lanes | Resized | None = None
    winograd: Winograd | None = None  # how the convolution of the image may be computed, with constant weights

    def exchanged(self) -> Operands:
        """The same sums with B^T as A and A^T as B, where C is turned around."""
        left, right = (replace(each, row=each.column, column=each.row) for each in (self.right, self.left))
        return replace(self, left=left, right=right, m=self.n, n=self.m)

    def in_parts(self, rows: int) -> Operands:
        """The same product with so many rows, a part of m, in a batch. `starts` are to be set."""
        parts = range(0, self.m, rows)
        left = tuple(start + first * self.left.row for start in self.left.batches for first in parts)
        right = tuple(start for start in self.right.batches for _ in parts)
        return replace(self, left=replace(self.left, batches=left), right=replace(self.right, batches=right), m=rows)

    @property
    def work(self) -> int:
        """Products of two numbers."""
        return len(self.starts) * self.m * self.n * self.k


def operands_of(values: Values, node: Node) -> Operands:
    """Those of a MatMul, Gemm, Conv, pool or Resize. Raises NotFusable."""
    if node.op == "Conv":
        return _conv(values, node)
    if node.op in POOLS | RESIZED:
        return _planes(values, node)
    (a, start_a, axes_a), (b, start_b, axes_b) = (_read(values, name) for name in node.inputs[:2])
    if len(axes_a) < 2 or len(axes_b) < 2:
        raise NotFusable("a product with a vector")
    if node.attrs.get("transA"):
        axes_a = axes_a[::-1]
    if node.attrs.get("transB"):
        axes_b = axes_b[::-1]
    whole = values.shapes[node.outputs[0]]
    steps_of_whole = address.contiguous(whole)
    shape, steps = list[int](), (list[int](), list[int](), list[int]())
    for place, (size, step) in enumerate(zip(whole[:-1], steps_of_whole), -len(whole)):
        right = _axis(axes_b, place, size) if place < -2 else Axis(((size, 0),))
        for digit, *each in _together(_axis(axes_a, place, size), right, Axis(((size, step),))):
            shape.append(digit)
            for own, one in zip(steps, each):
                own.append(one)
    sizes, (left, right_, own_) = address.collapse(shape, [tuple(each) for each in steps])
    if sizes and right_[-1] == 0:  # rows: neighbouring batches may be among them
        m, row, step = sizes[-1], left[-1], own_[-1]
        sizes, left, right_, own_ = sizes[:-1], left[:-1], right_[:-1], own_[:-1]
    else:
        m, row, step = 1, axes_a[-2].digits[-1][1], whole[-1]
    places = list(product(*map(range, sizes)))
    starts = [tuple(sum(i * s for i, s in zip(place, each)) for place in places) for each in (left, right_, own_)]
    return Operands(Operand(a, start_a, row, axes_a[-1].stride, starts[0]),
                    Operand(b, start_b, axes_b[-2].stride, axes_b[-1].stride, starts[1]),
                    m, whole[-1], axes_a[-1].size, starts[2], step)


@dataclass(frozen=True)
class Axis:
    """The (size, stride) of each digit of an axis, outermost first: one, but where a Reshape joins axes that do not lie
    one in the other."""

    digits: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """How many places it has."""
        return prod(size for size, _ in self.digits)

    @property
    def stride(self) -> int:
        """From one place to the next. Raises NotFusable where that is not always the same."""
        (*_, (_, last)) = self.digits
        if any(one[1] != other[0] * other[1] for one, other in pairwise(self.digits)):
            raise NotFusable("a product with an operand that is moved")
        return last


def _axis(axes: Sequence[Axis], place: int, size: int) -> Axis:
    """An axis (counted from the last) of an operand that is repeated to `size` places."""
    own = axes[place] if len(axes) >= -place else None
    return Axis(((size, 0),)) if own is None or own.size != size else own


def _together(*axes: Axis) -> list[list[int]]:
    """The same axis of several operands: sizes of digits that suit all, each with the strides."""
    ends = sorted({prod(size for size, _ in each.digits[place:]) for each in axes for place in range(len(each.digits))})
    if any(larger % smaller for smaller, larger in pairwise(ends)):
        raise NotFusable("a product with operands that are joined in different ways")
    found, inner = [], 1
    for end in ends:
        if end > inner:
            found.append([end // inner, *(_step(each, inner) for each in axes)])
            inner = end
    return found[::-1]


def _step(axis: Axis, inner: int) -> int:
    """The stride of a digit that begins after `inner` places."""
    below = 1
    for size, stride in reversed(axis.digits):
        if below * size > inner:
            return stride * (inner // below)
        below *= size
    raise AssertionError("a digit behind the end of its axis")


def _read(values: Values, name: str) -> tuple[str, int, tuple[Axis, ...]]:
    """(tensor, first element, axes) of an operand, which may be a view of what is given."""
    if name not in values.producers:
        constant = values.graph.constants.get(name)
        if constant is not None and constant.size and constant.facts.splat is not None:
            raise NotFusable("a product with one number")
        return name, 0, tuple(Axis(((size, step),)) for size, step in zip(values.shapes[name], values.strides[name]))
    graph = values.graph.copy()
    graph.outputs = [name]
    domain = Domain.of(values.shapes[name])
    lowered = None
    while lowered is None:
        try:
            lowered = Lowering(replace(values, graph=graph), domain, False)
        except Refine as need:
            if need.loop not in domain.loops:
                raise NotFusable("a product with an operand that is moved") from need
            domain = domain.refined(need)
        except Cut as reason:
            raise NotFusable("a product with an operand that is moved") from reason
    found = lowered.items[lowered.results[0]]
    if found.address is None or found.args or lowered.product is not None:
        raise NotFusable("a product with an operand that is computed")
    factors = dict(found.address.place.terms)
    axes = tuple(Axis(tuple((domain.trips[loop], factors.get(loop, 0)) for loop, _ in
                            sorted(each.terms, key=lambda term: -term[1])) or ((1, 0),)) for each in domain.view)
    return found.address.tensor, found.address.place.start, axes


def _rows_of(values: Values, name: str, what: str) -> tuple[str, int]:
    """(tensor, first element) of an operand that has to be row-major."""
    tensor, start, axes = _read(values, name)
    for axis, step in zip(axes, address.contiguous(values.shapes[name])):
        if axis.size != 1 and axis.stride != step:
            raise NotFusable(f"{what} is not row-major")
    return tensor, start


def _conv(values: Values, node: Node) -> Operands:
    (x, start_x), (w, start_w) = (_rows_of(values, name, f"a convolution whose {name}") for name in node.inputs[:2])
    shape, weights, whole = (values.shapes[name] for name in (*node.inputs[:2], node.outputs[0]))
    lanes = of_convolution(node, tuple(shape), tuple(weights), whole[1])
    if lanes is not None:
        return _windows(lanes, Operand(w, start_w, lanes.elements, 1, (0,) * shape[0]), x, start_x, whole)
    group, spaces = int(node.attrs["group"]), len(shape) - 2  # type: ignore[call-overload]
    maps, n = whole[1] // group, prod(whole[2:])
    if not 1 <= spaces <= _SPACES or n > MOST_POSITIONS:
        raise NotFusable(f"a convolution of {spaces} dimensions, {n} positions")
    image = _image(node, shape, weights, whole, group)
    batches = list(product(range(shape[0]), range(group)))
    depth, plane = prod(weights[1:]), prod(image.sizes)
    return Operands(
        Operand(w, start_w, depth, 1, tuple(g * maps * depth for _, g in batches)),
        Operand(x, start_x, 0, 0, tuple((b * shape[1] + g * weights[1]) * plane for b, g in batches)),
        maps, n, depth, tuple((b * group + g) * maps * n for b, g in batches), n, image,
        winograd=in_squares(node, weights, shape[2:], image.begins, whole[2:]))


def _planes(values: Values, node: Node) -> Operands:
    x, start = _rows_of(values, node.inputs[0], f"{node.op} of what")
    shape = tuple(values.shapes[node.inputs[0]])
    lanes = of_pool(node, shape) if node.op in POOLS else of_resize(node, shape)
    if lanes is None:
        raise NotFusable("a pool with negative padding, or a window of nothing")
    return _windows(lanes, Operand(x, start, 0, 0, (0,) * shape[0]), x, start, values.shapes[node.outputs[0]])


def _windows(lanes: Lanes | Resized, weights: Operand, image: str, start: int, whole: Sequence[int]) -> Operands:
    images, maps, n = whole[0], whole[1], prod(whole[2:])
    planes, own = (tuple(number * maps * size for number in range(images)) for size in (prod(lanes.sizes), n))
    return Operands(weights, Operand(image, start, 0, 0, planes), maps, n, lanes.elements, own, n, lanes=lanes)


def _image(node: Node, shape: Sequence[int], weights: Sequence[int], whole: Sequence[int], group: int) -> Image:
    sizes, kernel, counts = shape[2:], weights[2:], whole[2:]
    strides, dilations = per_axis(node.attrs, "strides", len(sizes)), per_axis(node.attrs, "dilations", len(sizes))
    reach = [(count - 1) * stride + (k - 1) * dilation + 1
             for count, stride, k, dilation in zip(counts, strides, kernel, dilations)]
    if node.attrs.get("auto_pad", "NOTSET") in SAME:
        total = [max(length - size, 0) for length, size in zip(reach, sizes)]
        begins = [each // 2 if node.attrs["auto_pad"] == "SAME_UPPER" else -(-each // 2) for each in total]
    else:
        begins, ends = (list(each) for each in explicit_pads(node.attrs, len(sizes)))
        assert all(count == window_count(size, k, stride, dilation, begin, end, False) for
                   count, size, k, stride, dilation, begin, end in
                   zip(counts, sizes, kernel, strides, dilations, begins, ends))
    if min(begins) < 0:
        raise NotFusable("a convolution with negative padding")
    missing, stride = _SPACES - len(sizes), strides[-1]
    within = [element * dilations[-1] for element in range(kernel[-1])]
    phases = tuple(sorted({each % stride for each in within}))
    inside = stride == 1 and all(not begin and length <= size for begin, length, size in zip(begins, reach, sizes))
    room = [1] * missing + (list(sizes) if inside else [max(each) for each in zip(reach, begins)])
    wide = counts[-1] + within[-1] // stride  # columns of a phase
    if stride > 1:
        room[-1] = wide * len(phases)
    steps = address.contiguous(room)
    across = np.array([phases.index(each % stride) * wide + each // stride for each in within], np.int64)
    down = [s * d for s, d in zip(steps[missing:], dilations[:-1])]
    places = _offsets([weights[1], *kernel[:-1]], [prod(room), *down])
    positions = _offsets(counts, [*(s * t for s, t in zip(steps[missing:-1], strides)), 1])
    alone = len(sizes) == 1
    band = (0 if len(sizes) == _SPACES else 1, prod(counts if alone else counts[1:]), 1 if alone else strides[0],
            1 if alone else (kernel[0] - 1) * dilations[0] + 1)
    return Image((places[:, None] + across).reshape(-1), positions, (*[1] * missing, *sizes), (*[0] * missing, *begins),
                 None if inside else tuple(room), shape[1], group, stride, phases, counts[-1], band)


def _offsets(sizes: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    total = np.zeros(1, np.int64)
    for size, step in zip(sizes, steps):
        total = (total[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    return total
