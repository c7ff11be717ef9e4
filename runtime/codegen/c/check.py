"""A fused kernel against its graph run node by node in NumPy: nothing is timed or used that has not passed.

The yardstick is the graph in float64. A kernel may be off by some rounding errors of its dtype, by as much as the
unfused graph is in the same row (the last axis), or by as much as the row moves where inputs are moved by an ulp; times
`LIMIT`. NaN and infinities stand where the unfused graph has
them, and zeros of elementwise kernels have its signs (but for those out of windows of a MaxPool: which of two zeros is
the larger is open, and NumPy takes them in another order). Exact kernels have its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph
from graphs.types import TensorType
from runtime.constraints import constraints
from runtime.execute import Context
from runtime.fusion import constant_inputs
from runtime.program import Program

from .fused import FusedKernel
from .lowering import Values
from .tiles import Packs

LIMIT = 16
_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 300.0, -300.0, 1.0, -1.0, 88.0, -104.0)
_EVERY, _RARELY = 3, 50  # of special rounds every such element is special
_MOVES = 3
_IGNORED = 0.2  # of labels
LENGTHS = ".sequence_lens"  # how the roles of inputs end that say how long sequences are
_TO_FLOAT64 = 11  # ONNX's number of the type


class Checked(Protocol):
    """A kernel: the graph that it computes, whether to the bit, and a call with the values of the inputs."""

    @property
    def graph(self) -> Graph:
        """What it computes."""

    @property
    def exact(self) -> bool:
        """Its bits are those of the graph run node by node."""

    def __call__(self, *arrays: np.ndarray) -> Sequence[Any]:
        """The values of the outputs."""


Run = Callable[[Sequence[np.ndarray]], Sequence[Any]]


def by_nodes(graph: Graph) -> Run:
    """A graph run node by node in NumPy."""
    return Program(graph, Context.of(graph)).run  # type: ignore[arg-type]


def fault(kernel: Checked, shapes: Mapping[str, Sequence[int]], seed: int = 0,
          unfused: Callable[[Graph], Run] = by_nodes) -> str | None:
    """What is wrong with a kernel at these sizes of its inputs; None if nothing was found. `unfused` runs the nodes one
    by one where the kernel runs; what is exact NumPy says."""
    graph = kernel.graph
    plain, wide, rng = unfused(graph), by_nodes(widened(graph)), np.random.default_rng(seed)
    for title, arrays in draws(graph, shapes, seed):
        found = Yardstick(graph, arrays, plain, wide, rng).fault(_called(kernel, arrays), kernel.exact)
        if found is not None:
            return found.replace(": ", f" of {title}: ", 1)
    return None


def _called(kernel: Checked, arrays: Sequence[np.ndarray]) -> Sequence[Any]:
    """The outputs, in memory that held something else: an element that the kernel leaves out must not pass for its
    result because the same numbers were there before."""
    if not isinstance(kernel, FusedKernel):
        return kernel(*arrays)
    out = [np.full(prod(shape) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
           for shape, dtype in kernel.plan(*arrays).outputs]
    return kernel(*arrays, packs=Packs(constant_inputs(kernel.graph)), out=out)  # constants as sessions give them


class Yardstick:
    """What a graph computes of some inputs: node by node, in float64, and where the inputs are moved by an ulp."""

    def __init__(self, graph: Graph, arrays: Sequence[np.ndarray], plain: Run, wide: Run,
                 rng: np.random.Generator) -> None:
        self.graph = graph
        with np.errstate(all="ignore"):
            self.want, self.truth = plain(arrays), wide([_wide(each) for each in arrays])
            self.moved = [wide([_moved(each, rng) for each in arrays]) for _ in range(_MOVES)]
            self.moved += [plain([_moved(each, rng).astype(each.dtype) for each in arrays]) for _ in range(_MOVES)]

    def fault(self, got: Sequence[Any], exact: bool) -> str | None:
        """What is wrong with values of the outputs."""
        signs = exact or all(node.op != "MaxPool" for node in self.graph.nodes)
        for name, mine, *others in zip(self.graph.outputs, got, self.want, self.truth, *self.moved):
            unfused, exactly, *beside = (np.asarray(each) for each in others)
            with np.errstate(all="ignore"):
                found = _difference(np.asarray(mine), unfused, exactly, beside, exact, signs)
            if found is not None:
                return f"{name}: {found}"
        return None


def draws(graph: Graph, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Values of the inputs: any sign, positive, small integers as floats (ties, zeros), and special ones: many,
    and a few beside weights that are not."""
    rng = np.random.default_rng(seed)
    limited = constraints(Values.of(graph, shapes, {}).graph)
    ignored = _ignored(graph)
    often = {"special values": _EVERY}
    if any(node.op == "Conv" for node in graph.nodes):  # which may compute parts of the image in another way
        often["few special values"] = _RARELY
    fixed = {graph.inputs[place] for place in constant_inputs(graph)}

    def each(kind: str, name: str) -> np.ndarray:
        type_ = graph.type_of(name)
        assert type_ is not None
        dtype, shape = dtypes.numpy_dtype(type_.dtype), tuple(shapes[name])
        limits = limited.get(name)
        if limits is not None and limits.kind == "index":
            places = rng.integers(limits.low, limits.high, shape)  # type: ignore[arg-type]
            others = rng.choice(ignored.get(name, [0]), shape)
            return np.where(rng.random(shape) < _IGNORED, others, places).astype(dtype)
        if limits is not None and limits.role.endswith(LENGTHS):
            return rng.integers(0, (limits.high or 0) + 1, shape).astype(dtype)  # type: ignore[arg-type, operator]
        if not _is_float(dtype):
            return _integers(rng, dtype, shape, kind == "special values")
        values = rng.standard_normal(shape)
        if kind == "positive values":
            values = np.abs(values) + 0.01
        if kind == "integers":
            values = np.rint(2 * values)
        if kind in often and not (kind == "few special values" and name in fixed):
            chosen = rng.integers(0, often[kind], shape) == 0
            values = np.where(chosen, rng.choice(np.array(_SPECIAL), shape), values)
        return np.asarray(values).astype(dtype)

    for kind in ("normal values", "positive values", "integers", *often):
        with np.errstate(all="ignore"):
            yield kind, [each(kind, name) for name in graph.inputs]


def _ignored(graph: Graph) -> dict[str, list[int]]:
    """Labels that do not count, of the inputs that are labels: they need not be places on an axis."""
    found: dict[str, list[int]] = {}
    for node in graph.nodes:
        if node.attrs.get("ignore_index") is not None:
            found.setdefault(node.inputs[1], []).append(int(node.attrs["ignore_index"]))  # type: ignore[call-overload]
        if node.op == "Equal":
            for name, other in (node.inputs, node.inputs[::-1]):
                constant = graph.constants.get(other)
                if constant is not None and constant.facts.splat is not None:
                    found.setdefault(name, []).append(int(constant.facts.splat))
    return found


def _integers(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], special: bool) -> np.ndarray:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    values = rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    limits = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    return np.where(rng.integers(0, _EVERY, shape) == 0, rng.choice(limits, shape), values) if special else values


def widened(graph: Graph) -> Graph:
    """The graph in float64."""
    wide = graph.copy()
    for name, constant in graph.constants.items():
        if dtypes.is_float(constant.dtype):
            wide.constants[name] = Constant.of(constant.array.astype(np.float64))
    for node in wide.nodes:
        if node.op == "Cast" and not node.domain and dtypes.is_float(dtypes.FROM_ONNX.get(node.attrs["to"], "")):  # type: ignore[call-overload]
            node.attrs["to"] = _TO_FLOAT64
    wide.types = {name: _wide_type(type_) if isinstance(type_, TensorType) else type_
                  for name, type_ in graph.types.items()}
    return wide


def _wide_type(type_: TensorType) -> TensorType:
    return TensorType("float64" if dtypes.is_float(type_.dtype) else type_.dtype, type_.shape)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if _is_float(array.dtype) else array


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Floats moved up or down by up to an ulp, in float64."""
    if not _is_float(array.dtype):
        return array
    return _wide(array) * (1 + rng.uniform(-1, 1, array.shape) * float(ml_dtypes.finfo(array.dtype).eps))


def _difference(got: np.ndarray, want: np.ndarray, truth: np.ndarray, moved: Sequence[np.ndarray],
                exact: bool, signs: bool) -> str | None:
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not _is_float(got.dtype):
        return _first(got != want, got, want)
    missing = np.isnan(want)
    zeros = (got == 0) & (want == 0) & (np.signbit(got) != np.signbit(want)) & (
        exact or (signs and _is_flat(want, truth)))
    if exact:
        return _first(((got != want) & ~(missing & np.isnan(got))) | zeros, got, want)
    finite, settled = np.isfinite(want), _is_settled(want, moved[_MOVES:])
    wrong = (np.isnan(got) != missing) | (~finite & ~missing & (got != want)) | (finite & ~np.isfinite(got))
    found = _first((wrong & settled) | zeros, got, want)
    return found or _first(_is_far(got, want, truth, moved, finite), got, want)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtypes.is_float(dtypes.name_of(dtype))


def _is_settled(want: np.ndarray, moved: Sequence[np.ndarray]) -> np.ndarray:
    """Where the unfused graph gives NaN, an infinity or a number whichever way its inputs are rounded."""
    settled = np.ones(want.shape, bool)
    for each in moved:
        settled &= (np.isfinite(each) & np.isfinite(want)) | (np.isnan(each) & np.isnan(want)) | (each == want)
    return settled


def _is_flat(want: np.ndarray, truth: np.ndarray) -> bool:
    """Zeros that are zeros in exact arithmetic too: sums of rounded numbers may be zero by chance."""
    return bool(((want == 0) == (truth == 0)).all())


def _is_far(got: np.ndarray, want: np.ndarray, truth: np.ndarray, moved: Sequence[np.ndarray],
            finite: np.ndarray) -> np.ndarray:
    limits = ml_dtypes.finfo(got.dtype)
    fine = finite & np.isfinite(got) & np.isfinite(truth) & np.isfinite(moved).all(axis=0)
    with np.errstate(all="ignore"):
        truth = np.where(fine, truth, 0)
        off = np.abs(np.stack([want.astype(np.float64), *moved]) - truth).max(axis=0)
        own = np.where(fine, off, 0)
        row = own.max(axis=-1, keepdims=True) if own.ndim else own
        allowed = LIMIT * (float(limits.eps) * np.abs(truth) + row + float(limits.smallest_subnormal))
        return np.asarray(fine & (np.abs(np.where(fine, got, 0) - truth) > allowed))


def _first(wrong: np.ndarray, got: np.ndarray, want: np.ndarray) -> str | None:
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"{got[place]!r} instead of {want[place]!r} at {[int(each) for each in place]}, {int(wrong.sum())} elements"
