"""ONNX Runtime on the CPU, with all of its own optimizations on. The library is imported when first
needed.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from graphs.constants import Constant
from graphs.dtypes import ONNX_NUMBER, name_of
from graphs.ir import Graph
from graphs.spill import trim
from graphs.types import TensorType

from ..costs import FREE, Cost, NodeSpec
from ..fingerprint import Fingerprint, onnxruntime_cpu
from ..neighbourhoods import Kernel, Neighbourhood, from_note, joined, kernels_key, to_note
from ..timings import Timings
from .base import Feeds, MeasuredTarget, Runner, Unsupported, is_view, said, view_key
from .sharing import shared_model, shares_weights, sparing

# Protocol buffers end at 2 GiB; larger models go through a file with external data.
_PROTO_LIMIT = 1_900_000_000
_NO_KERNEL = ("NotImplemented", "InvalidGraph")
_NO_KERNEL_TEXT = ("not a registered function/op", "Could not find an implementation", "opset versions")

PATIENCE = 10.0  # seconds for the first run of a graph with a Loop

# How an optimized model is written: weights beside it and untouched.
_WRITTEN = {"session.optimized_model_external_initializers_file_name": "weights",
            "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
            "session.disable_prepacking": "1"}


class OnnxRuntimeCpu(MeasuredTarget):
    """ONNX Runtime on the CPU: what an ONNX file is for."""

    name = "onnxruntime:cpu"
    reads_types = True
    providers: tuple[str, ...] = ("CPUExecutionProvider",)

    def available(self) -> str | None:
        """None, or that the package is missing."""
        if not providers_here():
            return "the Python package onnxruntime is not installed, or broken; pip install 'egraft[ort]'"
        return None

    @property
    def fingerprint(self) -> Fingerprint:
        """CPU and version of ONNX Runtime."""
        return onnxruntime_cpu()

    def known_cost(self, spec: NodeSpec) -> Cost | None:
        """Also free: what ONNX Runtime takes out when it loads a model (Identity, Dropout of inference)."""
        if not spec.domain and spec.op == "Identity":
            return FREE
        training = spec.inputs[2] if spec.op == "Dropout" and len(spec.inputs) > 2 else None
        if spec.op == "Dropout" and not spec.domain and spec.output_count == 1 and _is_false(training, spec):
            return FREE
        return super().known_cost(spec)

    def key(self, spec: NodeSpec, threads: int) -> str:
        """Views share a record whatever their shape."""
        return view_key(spec, threads) if is_view(spec) else super().key(spec, threads)

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """A session with inputs and outputs bound once, so that a run copies nothing."""
        self.require()
        session = self.session(graph, threads)
        wanted = {each.name for each in session.get_inputs()}
        kept = {name: array for name, array in feeds.items() if name in wanted}
        names = [each.name for each in session.get_outputs()]
        values = {name: _ort_value(array) for name, array in kept.items()}
        if any(value is None for value in values.values()):  # text has no binding
            try_once(graph, lambda options: session.run(names, kept, options))

            def fetch() -> dict[str, np.ndarray]:
                return dict(zip(names, session.run(names, kept)))

            return Runner(lambda: session.run(names, kept), fetch)
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name)
        run = session.run_with_iobinding
        try_once(graph, lambda options: run(binding, options))

        def outputs() -> dict[str, np.ndarray]:
            run(binding)
            return dict(zip(names, binding.copy_outputs_to_cpu()))

        return Runner(lambda: run(binding), outputs, lambda: _clear(binding), call=lambda: session.run(names, kept))

    def trial(self, graph: Graph, threads: int = 1) -> Callable[[Feeds], None]:
        """One session for all sizes, loaded as the graph is: to load 7,514 nodes takes 0.44 s so, optimized 1.26 s."""
        import onnxruntime

        options = session_options(threads)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = self.session(graph, threads, options)
        except Exception:  # what loads optimized may not load as it is, and the other way tells what is wrong
            return super().trial(graph, threads)
        wanted = {each.name for each in session.get_inputs()}

        def attempt(feeds: Feeds) -> None:
            kept = {name: array for name, array in feeds.items() if name in wanted}
            try:
                try_once(graph, lambda options: session.run(None, kept, options), always=True)
            except Unsupported:
                raise
            except Exception as error:  # its classes differ by release
                raise Unsupported(said(error)) from error

        return attempt

    def neighbourhoods(self, graph: Graph, timings: Timings) -> list[Neighbourhood]:
        """What the library's own optimizations, short of memory layouts, make one kernel of."""
        key = kernels_key(graph)
        record = timings.get(key, self.name, self.fingerprint)
        if record is None:
            start, found, note = time.process_time(), list[Neighbourhood](), dict[str, Any]()
            try:
                found = joined(graph, self.kernels(graph))
            except Exception as error:  # at this level of optimization, or when writing: the model itself may well load
                note["failed"] = f"{type(error).__name__}: {error}"[:500]
            seconds = time.process_time() - start
            note.update(to_note(found))
            record = timings.add(key, self.name, self.fingerprint, "kernels", [seconds], seconds, note)
        return from_note(record.note)

    def kernels(self, graph: Graph) -> list[Kernel]:
        """The nodes that are run: the library writes down what it has made of the model. Raises Unsupported."""
        import onnx
        import onnxruntime

        with tempfile.TemporaryDirectory(prefix="egraft-") as folder:
            options = session_options(1)
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
            for name, value in _WRITTEN.items():
                options.add_session_config_entry(name, value)
            self.session(graph, 1, options)
            if shares_weights(graph):
                trim()  # of that session
            model = onnx.load(options.optimized_model_filepath, load_external_data=False)
        return [Kernel(node.op_type, node.domain, tuple(node.input), tuple(node.output)) for node in model.graph.node]

    def session(self, graph: Graph, threads: int, options: Any = None) -> Any:
        """An onnxruntime.InferenceSession of the graph. Raises Unsupported where a kernel is missing."""
        import onnxruntime

        from graphs.onnx_io import proto_bytes, save_onnx

        options = session_options(threads) if options is None else options
        graph = with_true_outputs(graph)
        try:
            if shares_weights(graph) and hasattr(options, "add_external_initializers"):
                model, weights, files = shared_model(graph, options, self.providers == OnnxRuntimeCpu.providers)
                with sparing(files):
                    session = onnxruntime.InferenceSession(model, options, providers=list(self.providers))
                session._egraft_weights = weights  # they must live as long as the session
                return session
            if _weight_bytes(graph) <= _PROTO_LIMIT:
                return onnxruntime.InferenceSession(proto_bytes(graph), options, providers=list(self.providers))
            with tempfile.TemporaryDirectory(prefix="egraft-") as folder:
                path = Path(folder) / "model.onnx"
                save_onnx(graph, path)
                return onnxruntime.InferenceSession(str(path), options, providers=list(self.providers))
        except Exception as error:  # ONNX Runtime's classes differ by release: told apart by name and text
            text = str(error)
            if type(error).__name__ in _NO_KERNEL or any(part in text for part in _NO_KERNEL_TEXT):
                raise Unsupported(" ".join(text.split())[:300]) from error
            raise


def try_once(graph: Graph, run: Callable[[Any], object], always: bool = False) -> None:
    """A run of a graph with a Loop, with the run options that it has to use: with inputs drawn at random its condition
    may hold for ever. Raises Unsupported where the run does not end in PATIENCE seconds. Graphs without a Loop (the
    runtime inlines functions) are run if `always`."""
    import onnxruntime

    endless = bool(graph.functions) or any(node.op == "Loop" for each in graph.walk() for node in each.nodes)
    if not endless:
        if always:
            run(None)
        return
    options = onnxruntime.RunOptions()
    timer = threading.Timer(PATIENCE, setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        run(options)
    except Exception as error:  # its classes differ by release
        if not options.terminate:
            raise
        raise Unsupported(f"a run with these inputs has not ended after {PATIENCE:g} s: a Loop goes on") from error
    finally:
        timer.cancel()


def with_true_outputs(graph: Graph) -> Graph:
    """The graph without shapes of outputs declared with a false rank: ONNX Runtime refuses to write into such
    an output a second time.
    """
    false = {}
    for name in graph.outputs:
        declared, found = graph.declared.get(name), graph.type_of(name)
        if isinstance(declared, TensorType) and found is not None and None is not found.rank != declared.rank:
            false[name] = declared.with_shape(None)
    return dataclasses.replace(graph, declared={**graph.declared, **false}) if false else graph


def session_options(threads: int) -> Any:
    """All optimizations, `threads` threads that sleep while idle: spinning would disturb what is measured
    next.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    return options


def _weight_bytes(graph: Graph) -> int:
    constants: dict[int, Constant] = {id(each): each for inner in graph.walk() for each in inner.constants.values()}
    return sum(each.nbytes for each in constants.values())


def _ort_value(array: np.ndarray) -> Any:
    import onnxruntime

    name = name_of(array.dtype)
    if name == "string":
        return None
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.kind in "biufc":
        return onnxruntime.OrtValue.ortvalue_from_numpy(contiguous)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, ONNX_NUMBER[name])


def _clear(binding: Any) -> None:
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()


def _is_false(training: Any, spec: NodeSpec) -> bool:
    if spec.attrs.get("training_mode") not in (None, False, 0):
        return False
    return training is None or training.absent or (training.array is not None and not training.array.any())


@lru_cache(maxsize=1)
def providers_here() -> Mapping[str, bool]:
    """Execution providers of the installed ONNX Runtime, empty without it."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    return dict.fromkeys(onnxruntime.get_available_providers(), True)
