"""`Session`: a graph prepared for a target, run on checked feeds; `run` for a single time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs import dims, dtypes
from graphs.dims import Expr, Symbol
from graphs.errors import InvalidInput, InvalidOption, NotExecutable, TargetUnavailable
from graphs.ir import Graph
from graphs.machine import cores_visible
from graphs.types import TensorType, Type

from .blas import limited_to
from .execute import FUSED_DOMAIN, Context, Hooks
from .order import in_order, memory_order
from .program import Program, detached
from .settled import precomputed

if TYPE_CHECKING:
    from .cuda.device import Device
    from .cuda.session import CudaProgram, Replay

TRAINING_DOMAIN = "ai.onnx.preview.training"  # executed by what its operators are made of
TARGETS = ("egraft:cpu", "egraft:cuda")
MOST_LAYOUTS = 64  # of feeds that are known to fit


@dataclass(slots=True)
class SessionReport:
    """What a session does with its nodes; `nodes` counts them as the file shows them, a fused one as one. `peak_bytes`
    is what node outputs of the outermost graph held at most in the last counted run (the first one, and those with
    `count=True`). `unfused` says why fused nodes run node by node; it is empty where they run as kernels. `compiler`
    says why another compiler than $CC names makes these, if so. `input_order_bytes` and `ordered_bytes` are the largest
    sums of bytes of live values, in the graph's order and in the one that was chosen, at usual sizes
    (`runtime.order`)."""

    nodes: int = 0
    by_reference: list[str] = field(default_factory=list)  # nodes without a kernel, run by onnx.reference
    peak_bytes: int | None = None
    fused: int = 0  # nodes that stand for several
    unfused: str = ""
    compiler: str = ""
    input_order_bytes: int | None = None
    ordered_bytes: int | None = None

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {"nodes": self.nodes, "by_reference": list(self.by_reference), "peak_bytes": self.peak_bytes,
                "fused": self.fused, "unfused": self.unfused, "compiler": self.compiler,
                "input_order_bytes": self.input_order_bytes, "ordered_bytes": self.ordered_bytes}

    def summary(self) -> str:
        """What is worth a line for people; empty if nothing is."""
        from .codegen.c import not_compiled

        if self.unfused:
            return f"fused nodes run node by node: {self.unfused}"
        failed = not_compiled() if self.fused else ""
        return f"fused nodes without a kernel run node by node: {failed}" if failed else self.compiler


class Session:
    """A graph prepared to run many times. Results are arrays of their own: writing into them changes nothing else.

    Raises NotExecutable where a node has neither a kernel nor a reference, TargetUnavailable for a target that is
    not here, InvalidOption for `threads` that are no whole number of 1 or more.

    `seed` starts the generator of random operators that have no seed of their own. `device` is the GPU of
    `egraft:cuda`, by its number (default: `$EGRAFT_CUDA_DEVICE`, else CUDA's current one); `report` is then a
    `CudaReport`. `threads` is how many one fused kernel of `egraft:cpu` may use (default: one for each core). Plans for
    the last few sets of input sizes are kept; `close` gives up the memory. A Loop that only its condition ends fails
    after `most_turns`, unless that is None.
    """

    def __init__(self, graph: Graph, target: str = "egraft:cpu", *, device: Device | int | None = None,
                 seed: int | None = None, hooks: Hooks | None = None, threads: int | None = None,
                 most_turns: int | None = None) -> None:
        if target not in TARGETS:
            raise TargetUnavailable(f"target {target!r}", "this runtime does not run it",
                                    f"use one of {', '.join(TARGETS)}")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 1):
            raise InvalidOption(f"threads {threads!r}", "not a whole number of 1 or more",
                                "give one, or None for one thread for each core")
        if any(node.domain == TRAINING_DOMAIN for node in graph.nodes):
            from .training.preview import without_training_operators

            graph = without_training_operators(graph)
        if hooks is None and graph.functions:
            from .fused_functions import fused_again

            graph = fused_again(graph)  # equal bodies then share their kernels
        self.graph = graph
        self.target = target
        self._layouts: dict[Any, dict[str, int]] = {}  # of feeds that were found to fit, with the sizes of symbols
        # One pool of threads: where the engine's share kernels and products, those of BLAS would be in their way.
        self._blas: Callable[[], AbstractContextManager[None]] = nullcontext
        context = Context.of(graph, seed, hooks)
        context.most_turns = most_turns
        context.threads = cores_visible() if threads is None else int(threads)
        self.program: Program | CudaProgram
        if target == "egraft:cuda":
            from .cuda.session import CudaProgram

            assert hooks is None, "hooks change what NumPy runs"
            self.program = CudaProgram(graph, context, device)
            self.report: SessionReport = self.program.report
        else:
            from .feeds import default_sizes

            shown = graph.shown_count()
            # Fused nodes know by the model what is constant, and pack it once.
            context.model = graph = precomputed(graph) if hooks is None else graph
            order = memory_order(graph, default_sizes(graph)) if hooks is None else None
            self.program = Program(in_order(graph, order) if order else graph, context)
            fused = sum(node.domain == FUSED_DOMAIN for each in graph.walk() for node in each.nodes)
            unfused, compiler = _about_kernels() if fused else ("", "")
            self.report = SessionReport(shown, context.by_reference, fused=fused, unfused=unfused,
                                        compiler=compiler)
            if order is not None:
                self.report.input_order_bytes, self.report.ordered_bytes = order.input_peak, order.peak
            if fused and not self.report.unfused and context.threads > 1:
                self._blas = partial(limited_to, 1)

    def run(self, feeds: Mapping[str, Any], *, count: bool = False) -> dict[str, Any]:
        """Output name -> array, in the order of the graph's outputs. Raises InvalidInput for feeds that do not fit.

        `count=True` measures `report.peak_bytes` again.
        """
        values, sizes = self._checked(feeds)
        with np.errstate(all="ignore"):
            if not isinstance(self.program, Program):
                found = self.program.run(values, sizes)
            else:
                with self._blas():
                    if count or self.report.peak_bytes is None:
                        found, self.report.peak_bytes, _ = self.program.run_counting(values)
                    else:
                        found = self.program.run(values)
        return dict(zip(self.graph.outputs, detached(found)))

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """`check_feeds`, done once for arrays of the same dtypes and sizes."""
        if any(type(value) is not np.ndarray for value in feeds.values()):
            return check_feeds(self.graph, feeds)
        layout = tuple([(name, value.dtype, value.shape) for name, value in feeds.items()])
        sizes = self._layouts.get(layout)
        if sizes is not None:
            return [feeds[name] for name in self.graph.inputs], sizes
        values, sizes = check_feeds(self.graph, feeds)
        if len(feeds) == len(values) and all(value is feeds[name] for name, value in zip(self.graph.inputs, values)):
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            self._layouts[layout] = sizes
        return values, sizes

    def replay(self, feeds: Mapping[str, Any]) -> Replay:
        """A plan of `egraft:cuda` with its inputs uploaded, to be run again and again, for measurements.

        Raises NotExecutable where sizes depend on data, and for other targets.
        """
        if isinstance(self.program, Program):
            raise NotExecutable(f"target {self.target!r}", "it has no plans", "use egraft:cuda")
        return self.program.replay(*check_feeds(self.graph, feeds))

    def close(self) -> None:
        """Give up memory on the device. A later run takes it again."""
        if not isinstance(self.program, Program):
            self.program.close()

    def arguments(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The checked values of all inputs in order, defaults filled in."""
        return check_feeds(self.graph, feeds)[0]


def _about_kernels() -> tuple[str, str]:
    """(why there are none, why another compiler makes them than the one that was named); empty where that is not so."""
    from .codegen.c import passed_over, unavailable

    return unavailable() or "", passed_over() or ""


def run(graph: Graph, feeds: Mapping[str, Any], target: str = "egraft:cpu", *,
        seed: int | None = None) -> dict[str, Any]:
    """Run a graph once: output name -> array."""
    return Session(graph, target, seed=seed).run(feeds)


def check_feeds(graph: Graph, feeds: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
    """The values of all inputs in order, defaults filled in, and the sizes that they give to symbols.

    Raises InvalidInput where a feed is unknown, missing, or of another dtype, rank or size than the graph wants.
    """
    unknown = [name for name in feeds if name not in graph.inputs]
    if unknown:
        raise InvalidInput(f"input {unknown[0]!r}", "the graph has no such input",
                           f"its inputs are {', '.join(map(repr, graph.inputs)) or 'none'}")
    sizes: dict[str, int] = {}
    values = []
    for name in graph.inputs:
        if name in feeds:
            values.append(_checked(graph, name, feeds[name], sizes))
        elif name in graph.defaults:
            values.append(graph.defaults[name].array)
        else:
            raise InvalidInput(f"input {name!r}", "it is missing", "feed it")
    _check_expressions(graph, values, sizes)
    return values, sizes


def input_type(graph: Graph, name: str) -> Type | None:
    """The type of an input: as inferred, else as the model declares it."""
    return graph.types.get(name) or graph.declared.get(name)


def _checked(graph: Graph, name: str, value: Any, sizes: dict[str, int]) -> Any:
    type_ = input_type(graph, name)
    if not isinstance(type_, TensorType):
        return value
    wanted = dtypes.numpy_dtype(type_.dtype)
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if type_.dtype == "string" and array.dtype.kind in "US":
            array = array.astype(object)
    else:
        array = _from_numbers(name, value, wanted)
    if array.dtype != wanted:
        raise InvalidInput(f"input {name!r}", f"it has dtype {array.dtype}, the graph wants {type_.dtype}",
                           f"convert it with .astype({type_.dtype!r})")
    if type_.shape is None:
        return array
    if array.ndim != len(type_.shape):
        raise InvalidInput(f"input {name!r}", f"it has shape {list(array.shape)}, the graph wants {type_}",
                           f"give an array of rank {len(type_.shape)}")
    for axis, (size, dim) in enumerate(zip(array.shape, type_.shape)):
        _bind(name, axis, size, dim, sizes)
    return array


def _from_numbers(name: str, value: Any, wanted: np.dtype) -> np.ndarray:
    """Python numbers and lists take the input's dtype where that loses nothing but float precision."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == wanted.kind or (wanted.kind in "fV" and array.dtype.kind in "if") or (
                wanted.kind in "iu" and array.dtype.kind in "iu") or array.size == 0:
            cast = array.astype(wanted)
            if wanted.kind not in "iu" or bool((cast == array).all()):
                return cast
        return array.astype(object) if array.dtype.kind in "US" else array
    except (TypeError, ValueError) as reason:
        raise InvalidInput(f"input {name!r}", f"it is no array ({reason})", "feed a NumPy array") from reason


def _bind(name: str, axis: int, size: int, dim: dims.DimLike, sizes: dict[str, int]) -> None:
    if isinstance(dim, int):
        known: int | None = dim
    else:
        plain = _plain_symbol(dim)
        known = sizes.setdefault(plain, size) if plain is not None else None
    if known is not None and known != size:
        meaning = str(dim) if isinstance(dim, int) else f"{dim} = {known} (as in another place)"
        raise InvalidInput(f"input {name!r}", f"its dimension {axis} is {size}, the graph wants {meaning}",
                           "give inputs of sizes that agree")


def _plain_symbol(dim: Expr) -> str | None:
    if len(dim.terms) == 1:
        (monomial, factor), = dim.terms
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def _check_expressions(graph: Graph, values: list[Any], sizes: dict[str, int]) -> None:
    """Dimensions like `seq + 1`, once every symbol has its size."""
    for name, value in zip(graph.inputs, values):
        type_ = input_type(graph, name)
        if not isinstance(type_, TensorType) or type_.shape is None or not isinstance(value, np.ndarray):
            continue
        for axis, (size, dim) in enumerate(zip(value.shape, type_.shape)):
            known = dims.evaluate(dim, sizes) if isinstance(dim, Expr) else None
            if known is not None and known != size:
                raise InvalidInput(f"input {name!r}",
                                   f"its dimension {axis} is {size}, the graph wants {dim} = {known}",
                                   "give inputs of sizes that agree")
