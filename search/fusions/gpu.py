"""One candidate on a GPU: its kernels checked there, and timed by the device's clock in every way to launch them.

Sizes are in a CUDA text, so that it is checked twice: at small sizes with values of every kind, and at its own sizes,
in each way to launch it, beside the graph in float64 on the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cost_model import protocol
from cost_model.targets.base import Unsupported
from cost_model.targets.cuda import EgraftCuda
from graphs.constants import Constant
from graphs.errors import EgraftError
from graphs.inference import infer
from graphs.ir import Graph
from graphs.types import TensorType
from runtime import Session
from runtime.codegen.c import NotFusable
from runtime.codegen.c.check import Run, Yardstick, draws, fault, widened
from runtime.codegen.c.cuda import described, variants_of
from runtime.codegen.c.launch import NAME
from runtime.codegen.kernel import Kernel
from runtime.cuda.device import Device
from runtime.cuda.emitter import NeedsValue
from runtime.cuda.fused import why_not
from runtime.cuda.lower import Values
from runtime.cuda.plan import Launch, OnHost, Plan, Product, plan_graph
from runtime.execute import Context
from runtime.fusion import Group, constant_inputs, fuse

from .measure import Measured, shapes_of, small_sizes

LOOK = protocol.Settings(budget=0.4, quick_rounds=7, max_rounds=40)
CLEARLY = 0.98  # of the usual way's time: what another way to launch a kernel must not take more than
UNFUSED = "unfused"
Shapes = Mapping[str, tuple[int, ...]]


def measured_on(target: EgraftCuda, body: Graph, exact: bool) -> tuple[Measured, Sequence[float]]:
    """Generate, check and time a candidate on the device of a target; with the samples of the fastest way to launch it.

    What the device itself says against it is raised: nothing more can be asked of it in this process.
    """
    try:
        shapes = shapes_of(body)
        kernels = _kernels(body, exact, shapes)
        small = small_sizes(body, shapes, lambda each, sizes: _kind(each, exact, sizes))
    except NotFusable as reason:
        return Measured(math.inf, 0.0, "impossible", str(reason)), ()
    except (EgraftError, ValueError) as reason:  # sizes that the body does not take
        return Measured(math.inf, 0.0, "impossible", f"not checked: {reason}"[:300]), ()
    names = ["", *map(str, variants_of(kernels))]
    wrong = fault(_OnDevice(target.device, body, exact), small, unfused=lambda graph: _runner(target.device, graph))
    wrong = wrong or _fault_at_size(target.device, body, exact, shapes, names)
    if wrong is not None:
        return Measured(math.inf, 0.0, "faulty", wrong), ()
    try:
        return _timed(target, body, exact, names, next(iter(draws(body, shapes)))[1])
    except Unsupported as reason:
        return Measured(math.inf, 0.0, "impossible", str(reason)[:300]), ()
    finally:
        target.device.release()


def kernel_text(body: Graph, exact: bool, variant: str) -> str:
    """The texts of a candidate's kernels, in the order in which they run."""
    lines = []
    for each in _plan(body, exact, shapes_of(body), variant).instructions:
        if isinstance(each, Product):
            gemm = each.gemm
            lines.append(f"// cuBLAS: {gemm.batch} x [{gemm.m}, {gemm.k}] @ [{gemm.k}, {gemm.n}] of {gemm.dtype}")
        elif isinstance(each, Launch):
            lines.append(described(each.kernel))
    return "\n".join(lines)


class _OnDevice:
    """A candidate as a kernel that can be checked."""

    def __init__(self, device: Device, graph: Graph, exact: bool, variant: str = "") -> None:
        self.graph, self.exact = graph, exact
        self._run = _runner(device, _whole(graph, exact, variant))

    def __call__(self, *arrays: np.ndarray) -> Sequence[Any]:
        return self._run(arrays)


def _runner(device: Device, graph: Graph) -> Run:
    """A graph as a function on a device, whatever sizes it declares."""
    sessions: dict[tuple[object, ...], Session] = {}

    def run(arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        key = tuple((each.shape, each.dtype) for each in arrays)
        if key not in sessions:
            sessions[key] = Session(_sized(graph, {name: each.shape for name, each in zip(graph.inputs, arrays)}),
                                    target="egraft:cuda", device=device)
        return list(sessions[key].run(dict(zip(graph.inputs, arrays))).values())

    return run


def _whole(body: Graph, exact: bool, variant: str) -> Graph:
    """A body as one fused node."""
    output, *others = body.outputs
    return fuse(body, [Group(tuple(range(len(body.nodes))), output, tuple(others), variant)], exact)


def _sized(graph: Graph, shapes: Shapes) -> Graph:
    made, known = graph.copy(), {name: graph.type_of(name) for name in graph.inputs}
    made.types = {name: TensorType(type_.dtype, tuple(shapes[name])) for name, type_ in known.items() if type_}
    made.declared = {}
    infer(made)
    return made


def _with_constants(graph: Graph, held: Mapping[str, np.ndarray]) -> Graph:
    """With what is constant around the body as constants: what depends on them alone is computed before the run."""
    made = graph.copy()
    made.inputs = [name for name in graph.inputs if name not in held]
    made.constants.update({name: Constant.of(each) for name, each in held.items()})
    return made


def _plan(body: Graph, exact: bool, shapes: Shapes, variant: str = "") -> Plan:
    """What runs for a body as one fused node. Raises NotFusable where no kernel of its own is among that."""
    graph = _whole(_sized(body, shapes), exact, variant)
    given = {name: (type_.dtype, tuple(shapes[name])) for name in graph.inputs if (type_ := graph.type_of(name))}
    values = Values(graph, {}, Context.of(graph))
    try:
        plan = plan_graph(graph, given, values)
    except NeedsValue as reason:
        raise NotFusable(f"{reason} is known in the run only") from reason
    if any(isinstance(each, OnHost) for each in plan.instructions):
        raise NotFusable(f"a node that NumPy runs: {', '.join(plan.on_host)}"[:300])
    if not any(isinstance(each, Launch) and each.kernel.name == NAME for each in plan.instructions):
        raise NotFusable("; ".join(why_not(values.constants)) or "views, and products of the library alone")
    return plan


def _kernels(body: Graph, exact: bool, shapes: Shapes) -> list[Kernel]:
    return [each.kernel for each in _plan(body, exact, shapes).instructions
            if isinstance(each, Launch) and each.kernel.name == NAME]


def _kind(body: Graph, exact: bool, shapes: Shapes) -> tuple[object, ...]:
    """What runs, whatever the sizes."""
    return tuple((type(each).__name__, each.kernel.name, each.kernel.is_rowwise) if isinstance(each, Launch)
                 else type(each).__name__ for each in _plan(body, exact, shapes).instructions)


def _fault_at_size(device: Device, body: Graph, exact: bool, shapes: Shapes, variants: Sequence[str]) -> str | None:
    """What is wrong with the kernels at the sizes of the body, in each way to launch them; None if nothing is."""
    _, arrays = next(iter(draws(body, shapes)))
    yardstick = Yardstick(body, arrays, _runner(device, body), _runner(device, widened(body)),
                          np.random.default_rng(0))
    for variant in variants:
        found = yardstick.fault(_OnDevice(device, body, exact, variant)(*arrays), exact)
        if found is not None:
            return f"{found}, launched as {variant}" if variant else found
    return None


def _timed(target: EgraftCuda, body: Graph, exact: bool, variants: Sequence[str],
           arrays: Sequence[np.ndarray]) -> tuple[Measured, Sequence[float]]:
    """The nodes and each way to launch the kernels, in turns, by the protocol that nodes are measured by."""
    held = {body.inputs[place]: arrays[place] for place in constant_inputs(body)}
    feeds = {name: each for name, each in zip(body.inputs, arrays) if name not in held}
    graphs = {UNFUSED: body, **{each: _whole(body, exact, each) for each in variants}}
    runners = {}
    try:
        for name, graph in graphs.items():
            runners[name] = target.prepare(_with_constants(graph, held), feeds)
        found = protocol.compare({name: each.run for name, each in runners.items()}, UNFUSED, settings=LOOK)
    finally:
        for each in runners.values():
            each.close()
    ratios = {name: found.results[name].ratio for name in variants}
    best = min(variants, key=lambda name: (ratios[name], name))
    if ratios[best] > CLEARLY * ratios[""]:
        best = ""
    mine, other = found.results[best], found.results[UNFUSED]
    samples = [each for each in found.samples[best].by(found.clock) if each is not None]
    seconds = min(max(other.seconds * mine.ratio, min(samples)), max(samples))
    return Measured(seconds, other.seconds, mine.verdict, variant=best), samples


__all__ = ["kernel_text", "measured_on"]
