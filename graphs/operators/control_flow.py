"""Control flow: If, Loop, Scan. `graphs.inference` has filled the types of nested graphs before a record is asked."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import DimLike, at_least, largest, symbols
from ..ir import Graph
from ..types import TensorType, Type
from .record import REQUIRED, Operator, Site

_SPREAD = 64  # more than any rank: keeps unknown sizes of different outputs apart


def _output_types(graph: Graph) -> list[Type | None]:
    return [graph.type_of(name) or graph.types.get(name) for name in graph.outputs]


def _join(site: Site, position: int, a: Type | None, b: Type | None) -> Type | None:
    """The type of an output that is one of two."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype:
        return None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype)
    return TensorType(a.dtype, tuple(
        x if x == y else site.unknown_dim(position * _SPREAD + axis)
        for axis, (x, y) in enumerate(zip(a.shape, b.shape))
    ))


def _if(site: Site) -> list[Type | None]:
    then_branch, else_branch = site.attrs["then_branch"], site.attrs["else_branch"]
    if not isinstance(then_branch, Graph) or not isinstance(else_branch, Graph):
        return [None] * site.outputs
    if len(then_branch.outputs) != len(else_branch.outputs):
        raise site.fail(f"{len(then_branch.outputs)} outputs of one branch, {len(else_branch.outputs)} of the other")
    condition = site.content(0)
    if condition is not None and len(condition) == 1 and isinstance(condition[0], int):
        return _output_types(then_branch if condition[0] else else_branch)
    pairs = zip(_output_types(then_branch), _output_types(else_branch))
    return [_join(site, position, a, b) for position, (a, b) in enumerate(pairs)]


def _outward(site: Site, position: int, type_: Type | None) -> Type | None:
    """A type of the body as seen outside: sizes that depend on data of one round are unknown after the last one."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return type_
    inside = f"{site.label}/"
    return type_.with_shape(tuple(
        site.unknown_dim(position * _SPREAD + axis) if any(name.startswith(inside) for name in symbols(dim)) else dim
        for axis, dim in enumerate(type_.shape)
    ))


def _stacked(site: Site, position: int, type_: Type | None, rounds: DimLike, axis: int) -> Type | None:
    """The type of a scan output: one element a round, along a new axis."""
    element = _outward(site, position, type_)
    if not isinstance(element, TensorType) or element.shape is None:
        return element
    at = axis % (len(element.shape) + 1)
    return element.with_shape((*element.shape[:at], rounds, *element.shape[at:]))


def _states(site: Site, body: Graph, names: Sequence[str]) -> list[Type | None]:
    # Inference has let the body's inputs take every type that they have in any round, the first one included.
    return [_outward(site, position, body.types.get(name)) for position, name in enumerate(names)]


def stays_true(body: Graph) -> bool:
    """Whether the body hands its condition on, or gives a constant true."""
    condition = body.outputs[0]
    for node in body.nodes:
        if condition in node.outputs and node.op == "Identity" and not node.is_opaque:
            condition = node.inputs[0]
    if condition in body.constants:
        return bool(body.constants[condition].array.all())
    return len(body.inputs) > 1 and condition == body.inputs[1]


def _rounds(site: Site, body: Graph) -> DimLike:
    """The number of rounds of a Loop, unknown unless only the trip count decides."""
    trips, condition = site.content(0), site.content(1)
    starts = condition == (1,) or (site.type(1) is None and len(site.types) < 2)
    if trips is None or len(trips) != 1 or not starts or not stays_true(body):
        return site.unknown_dim(site.outputs * _SPREAD)
    return trips[0] if at_least(trips[0], 0) else largest(trips[0], 0)


def _loop(site: Site) -> list[Type | None]:
    body = site.attrs["body"]
    if not isinstance(body, Graph):
        return [None] * site.outputs
    count = len(body.inputs) - 2
    if count < 0 or len(body.outputs) < 1 + count:
        raise site.fail(f"a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs")
    rounds = _rounds(site, body)
    scans = _output_types(body)[1 + count:]
    return [*_states(site, body, body.inputs[2:]),
            *(_stacked(site, count + k, type_, rounds, 0) for k, type_ in enumerate(scans))]


def _scan(site: Site) -> list[Type | None]:
    body, scanned = site.attrs["body"], int(site.attrs["num_scan_inputs"])  # type: ignore[call-overload]
    if not isinstance(body, Graph):
        return [None] * site.outputs
    count = len(body.inputs) - scanned
    if count < 0 or len(body.outputs) < count or len(site.types) != len(body.inputs):
        raise site.fail(f"{len(site.types)} inputs, {scanned} of them scanned, for a body of {len(body.inputs)}")
    axes: Sequence[int] = site.attrs["scan_input_axes"] or (0,) * scanned  # type: ignore[assignment]
    lengths: list[DimLike] = []
    for type_, axis in zip(site.types[count:], axes):
        if type_ is not None and type_.shape is not None:
            lengths.append(type_.shape[axis])
    static = [length for length in lengths if isinstance(length, int)]
    if len(set(static)) > 1:
        raise site.fail(f"scanned inputs of lengths {static}")
    rounds = static[0] if static else lengths[0] if lengths else site.unknown_dim(site.outputs * _SPREAD)
    scans = _output_types(body)[count:]
    out_axes: Sequence[int] = (
        site.attrs["scan_output_axes"] or (0,) * len(scans)  # type: ignore[assignment]
    )
    return [*_states(site, body, body.inputs[:count]),
            *(_stacked(site, count + k, type_, rounds, axis)
              for k, (type_, axis) in enumerate(zip(scans, out_axes)))]


_NEWER = (16, 19, 21, 23, 24, 25)

OPERATORS: list[Operator] = [
    Operator("If", _if, (1, 11, 13, *_NEWER), {"then_branch": REQUIRED, "else_branch": REQUIRED}),
    Operator("Loop", _loop, (1, 11, 13, *_NEWER), {"body": REQUIRED}),
    # Version 8 has a batch axis and sequence lengths.
    Operator("Scan", _scan, (9, 11, *_NEWER),
             {"body": REQUIRED, "num_scan_inputs": REQUIRED, "scan_input_axes": None, "scan_input_directions": None,
              "scan_output_axes": None, "scan_output_directions": None}),
]
