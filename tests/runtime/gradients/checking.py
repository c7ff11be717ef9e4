"""Checks one gradient row on a small sample: against finite differences, of one mode against the other, with sizes
that only the run decides, differentiated again, and in ONNX Runtime.

A family's test file lists samples and hands each to `check`; values lie away from kinks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphs.builder import Builder, Value
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from runtime import Session, gradients, jvp

STEP = 1e-5  # of central differences in float64: errors of about STEP^2 and 1e-16 / STEP
TOLERANCE = 2e-6
Feeds = dict[str, np.ndarray]


@dataclass
class Sample:
    """One node: operator, inputs (arrays; None is absent), attributes.

    `constants` are the positions of inputs that are constants of the graph. `by` are those to differentiate by
    (default: all floats that are fed). `outputs` is their number. `symbolic` False: the row needs static sizes.
    `build(builder, *inputs)` makes several nodes instead of one of `op`.
    """

    op: str
    inputs: Sequence[np.ndarray | None]
    attrs: Mapping[str, object] = field(default_factory=dict)
    constants: Sequence[int] = ()
    by: Sequence[int] | None = None
    outputs: int = 1
    domain: str = ""
    opset: int = 21
    symbolic: bool = True
    in_onnxruntime: bool = True
    build: Callable[..., Sequence[Value]] | None = None

    def graph(self, symbolic: bool = False, single: bool = False) -> Graph:
        """The graph of the sample with inputs x0, x1, ...; every size a symbol of its own if `symbolic`."""
        b = Builder(opset=self.opset)
        operands: list[Value | None] = []
        for index, array in enumerate(self.inputs):
            if array is None:
                operands.append(None)
                continue
            array = array.astype(np.float32) if single and array.dtype == np.float64 else array
            if index in self.constants:
                operands.append(b.constant(array))
                continue
            shape = [f"d{index}_{axis}" for axis in range(array.ndim)] if symbolic else list(array.shape)
            operands.append(b.input(f"x{index}", array.dtype.name, shape))
        if self.build is not None:
            made: object = self.build(b, *operands)
        else:
            made = b.op(self.op, *operands, outputs=self.outputs, domain=self.domain, **self.attrs)  # type: ignore[arg-type]
        for index, value in enumerate([made] if isinstance(made, Value) else made):  # type: ignore[call-overload]
            b.output(value, f"y{index}")
        return b.graph()

    @property
    def feeds(self) -> Feeds:
        """Input name -> array."""
        return {f"x{index}": array for index, array in enumerate(self.inputs)
                if array is not None and index not in self.constants}

    @property
    def wrt(self) -> list[str]:
        """Names to differentiate by."""
        if self.by is not None:
            return [f"x{index}" for index in self.by]
        return [name for name, array in self.feeds.items() if array.dtype == np.float64]


def direction(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A direction or cotangent without structure."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape)


def check(sample: Sample) -> None:
    """All checks; raises AssertionError."""
    plain = sample.graph()
    values = Session(plain).run(sample.feeds)
    tops = [name for name in plain.outputs if values[name].dtype == np.float64]
    seeds = {f"seed_{name}": direction(values[name].shape, 7 + k) for k, name in enumerate(tops)}
    graph = gradients(plain, tops, sample.wrt, {name: f"seed_{name}" for name in tops})
    names = graph.outputs[-len(sample.wrt):]
    found = Session(graph).run({**sample.feeds, **seeds})
    for wrt, name in zip(sample.wrt, names):
        assert found[name].shape == sample.feeds[wrt].shape, name
        assert found[name].dtype == np.float64, name
        assert graph.type_of(name) == plain.type_of(wrt), name
    moves = {wrt: direction(sample.feeds[wrt].shape, 31 + k) for k, wrt in enumerate(sample.wrt)}
    _against_differences(sample, plain, tops, seeds, dict(zip(sample.wrt, (found[name] for name in names))), moves)
    _modes_agree(sample, plain, tops, seeds, [found[name] for name in names], moves)
    _second_order(sample, graph, names, seeds, moves)
    if sample.symbolic:
        _sizes_of_the_run(sample, tops, seeds, [found[name] for name in names])
    if sample.in_onnxruntime:
        _in_onnxruntime(sample, tops, seeds, [found[name] for name in names])


def _against_differences(sample: Sample, plain: Graph, tops: list[str], seeds: Feeds, found: Feeds,
                         moves: Feeds) -> None:
    session = Session(plain)

    def height(feeds: Feeds) -> float:
        values = session.run(feeds)
        return sum(float(np.sum(seeds[f"seed_{name}"] * values[name])) for name in tops)

    for wrt in sample.wrt:
        up = {**sample.feeds, wrt: sample.feeds[wrt] + STEP * moves[wrt]}
        down = {**sample.feeds, wrt: sample.feeds[wrt] - STEP * moves[wrt]}
        slope = (height(up) - height(down)) / (2 * STEP)
        np.testing.assert_allclose(np.sum(found[wrt] * moves[wrt]), slope, rtol=TOLERANCE, atol=TOLERANCE,
                                   err_msg=f"{sample.op} by {wrt}")


def _modes_agree(sample: Sample, plain: Graph, tops: list[str], seeds: Feeds, found: list[np.ndarray],
                 moves: Feeds) -> None:
    """<u, J v> = <J^T u, v>, and a tangent has the type of its value."""
    graph = jvp(plain, {wrt: f"move_{wrt}" for wrt in sample.wrt}, tops)
    names = graph.outputs[-len(tops):]
    values = Session(graph).run({**sample.feeds, **{f"move_{wrt}": move for wrt, move in moves.items()}})
    forward = backward = 0.0
    for top, name in zip(tops, names):
        assert values[name].shape == values[top].shape and values[name].dtype == np.float64, name
        stated = plain.type_of(top)
        assert stated is None or not stated.is_known or graph.type_of(name) == stated, name
        forward += float(np.sum(seeds[f"seed_{top}"] * values[name]))
    for wrt, gradient in zip(sample.wrt, found):
        backward += float(np.sum(gradient * moves[wrt]))
    np.testing.assert_allclose(forward, backward, rtol=1e-10, atol=1e-12, err_msg=f"{sample.op}: the modes differ")


def _second_order(sample: Sample, graph: Graph, names: list[str], seeds: Feeds, moves: Feeds) -> None:
    """The tangents of the gradients against differences of the gradients."""
    twice = jvp(graph, {wrt: f"move_{wrt}" for wrt in sample.wrt}, names)
    tangents = twice.outputs[-len(names):]
    given = {**sample.feeds, **seeds, **{f"move_{wrt}": move for wrt, move in moves.items()}}
    found = Session(twice).run(given)
    session = Session(graph)
    sides = [session.run({**given_side(sample, moves, sign), **seeds}) for sign in (1, -1)]
    for name, tangent in zip(names, tangents):
        slope = (sides[0][name] - sides[1][name]) / (2 * STEP)
        np.testing.assert_allclose(found[tangent], slope, rtol=1e-5, atol=1e-5, err_msg=f"{sample.op} twice: {name}")


def given_side(sample: Sample, moves: Feeds, sign: int) -> Feeds:
    """The feeds, moved a step forwards or backwards."""
    return {**sample.feeds, **{wrt: sample.feeds[wrt] + sign * STEP * move for wrt, move in moves.items()}}


def _sizes_of_the_run(sample: Sample, tops: list[str], seeds: Feeds, found: list[np.ndarray]) -> None:
    graph = gradients(sample.graph(symbolic=True), tops, sample.wrt, {name: f"seed_{name}" for name in tops})
    values = Session(graph).run({**sample.feeds, **seeds})
    for name, expected in zip(graph.outputs[-len(found):], found):
        np.testing.assert_allclose(values[name], expected, rtol=1e-10, atol=1e-12, err_msg=f"symbolic {name}")


def _in_onnxruntime(sample: Sample, tops: list[str], seeds: Feeds, found: list[np.ndarray]) -> None:
    import onnxruntime

    graph = gradients(sample.graph(single=True), tops, sample.wrt, {name: f"seed_{name}" for name in tops})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto_bytes(graph), options, providers=["CPUExecutionProvider"])
    feeds = {name: each.astype(graph.type_of(name).dtype) for name, each in {**sample.feeds, **seeds}.items()}
    values = session.run(graph.outputs[-len(found):], feeds)
    for value, expected in zip(values, found):
        np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-4, err_msg=f"{sample.op} in ONNX Runtime")
