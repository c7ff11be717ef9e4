"""The graphs of a check in ONNX Runtime: a promise that holds in our own kernels may not hold in another runtime.

It runs in a process of its own: the smallest integer divided by -1 ends the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import numpy as np

from graphs.errors import ExecutionFailed, NotExecutable
from graphs.ir import Graph
from graphs.onnx_io import proto_bytes

_UNKNOWN_KINDS = "VO"  # bfloat16 and its like, strings: ONNX Runtime's Python interface takes or gives them otherwise
_KEPT = 8  # sessions
_FIX = "check it in egraft only"
_sessions: dict[bytes, Any] = {}  # of the child process


def runtime_version() -> str | None:
    """The version of ONNX Runtime, None where it is not installed (it is an optional extra)."""
    try:
        import onnxruntime
    except ImportError:
        return None
    return str(onnxruntime.__version__)


class OnnxRuntime:
    """Executes graphs in ONNX Runtime on the CPU, with none of its own rewriting; an `Executor` for `validate`.

    Use it in a `with` block: it holds a process.
    """

    def __init__(self) -> None:
        self._pool = _pool()

    def __enter__(self) -> OnnxRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, graph: Graph) -> Callable[[Mapping[str, Any]], list[Any]]:
        """A function from named inputs to outputs. Raises NotExecutable where ONNX Runtime has no kernel for a node
        or its element types, the function ExecutionFailed where it does not run or crashes on these inputs."""
        model, read = proto_bytes(graph), graph.inputs
        self._ask(graph, model, None)

        def run(values: Mapping[str, Any]) -> list[Any]:
            feeds = {name: values[name] for name in read}
            if any(isinstance(value, np.ndarray) and value.dtype.kind in _UNKNOWN_KINDS for value in feeds.values()):
                raise NotExecutable(_where(graph), "an input of an element type that its Python interface lacks", _FIX)
            return self._ask(graph, model, feeds)

        return run

    def _ask(self, graph: Graph, model: bytes, feeds: dict[str, Any] | None) -> list[Any]:
        try:
            found = self._pool.submit(_answer, model, feeds).result()
        except BrokenProcessPool as error:
            self._pool = _pool()
            raise ExecutionFailed(_where(graph), "it crashes", _FIX) from error
        if isinstance(found, str):
            raise (NotExecutable if feeds is None else ExecutionFailed)(_where(graph), found[:200], _FIX)
        return found


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def _where(graph: Graph) -> str:
    return f"graph {graph.name!r} in ONNX Runtime"


def _answer(model: bytes, feeds: dict[str, Any] | None) -> list[Any] | str:
    """In the child process: outputs (none if only the session is asked for), or why there are none."""
    import onnxruntime

    try:
        if model not in _sessions:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.log_severity_level, options.intra_op_num_threads = 4, 1
            while len(_sessions) >= _KEPT:
                del _sessions[next(iter(_sessions))]
            _sessions[model] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        session = _sessions[model]
        if feeds is None:
            return []
        read = {each.name for each in session.get_inputs()}
        return list(session.run(None, {name: value for name, value in feeds.items() if name in read}))
    except Exception as error:  # its classes differ by release
        return f"{type(error).__name__}: {error}"
