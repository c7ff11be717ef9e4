"""Peers of fused kernels that may be installed: each gives a function that runs a graph on arrays, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from graphs.ir import Graph

Run = Callable[[], None]
_INFIX = {"Add": "({} + {})", "Sub": "({} - {})", "Mul": "({} * {})", "Div": "({} / {})", "Neg": "(-{})"}
_CALLS = {"Exp": "exp({})", "Tanh": "tanh({})", "Sqrt": "sqrt({})", "Sigmoid": "(1 / (1 + exp(-{})))",
          "Erf": "erf({})", "Pow": "({} ** {})"}  # fmt: skip


def expression_of(graph: Graph, operators: Sequence[str]) -> str | None:
    """The graph's output as one expression over its inputs, None where it has other operators."""
    texts = {name: name for name in graph.inputs}
    texts.update({name: repr(float(each.array)) for name, each in graph.constants.items() if each.size == 1})
    for node in graph.nodes:
        pattern = _INFIX.get(node.op) or (_CALLS.get(node.op) if node.op in operators else None)
        if pattern is None:
            return None
        texts[node.outputs[0]] = pattern.format(*(texts[name] for name in node.inputs))
    return texts[graph.outputs[0]]


def numexpr(graph: Graph, arrays: Sequence[np.ndarray], threads: int) -> Run | None:
    """numexpr, where it is installed and has the operators."""
    text = expression_of(graph, ("Exp", "Tanh", "Sqrt", "Sigmoid", "Pow"))
    if text is None or find_spec("numexpr") is None:
        return None
    import numexpr as engine

    engine.set_num_threads(threads)
    known: dict[str, Any] = dict(zip(graph.inputs, arrays))
    out = np.empty(np.broadcast_shapes(*(each.shape for each in arrays)), np.float32)
    return lambda: engine.evaluate(text, known, out=out, casting="unsafe")


def numba(graph: Graph, arrays: Sequence[np.ndarray], threads: int) -> Run | None:
    """A ufunc that numba compiles, where it is installed and the graph is elementwise."""
    text = expression_of(graph, ("Exp", "Tanh", "Sqrt", "Sigmoid", "Erf", "Pow"))
    if text is None or find_spec("numba") is None:
        return None
    import math

    import numba as engine

    space: dict[str, Any] = {name: getattr(math, name) for name in ("exp", "tanh", "sqrt", "erf")}
    exec(f"def function({', '.join(graph.inputs)}):\n    return {text}", space)
    signature = f"float32({', '.join('float32' for _ in arrays)})"
    target = "cpu" if threads == 1 else "parallel"
    function = engine.vectorize([signature], target=target, fastmath=True)(space["function"])
    out = np.empty(np.broadcast_shapes(*(each.shape for each in arrays)), np.float32)
    return lambda: function(*arrays, out=out)


def torch(graph: Graph, arrays: Sequence[np.ndarray], threads: int) -> Run | None:
    """torch.compile, where PyTorch is installed and the operators are known to `torch_graph`."""
    if find_spec("torch") is None:
        return None
    import torch as engine

    from scripts.torch_graph import TorchGraph

    engine.set_num_threads(threads)
    engine._dynamo.reset()  # or it gives up compiling the same method after eight graphs
    try:
        module = engine.compile(TorchGraph(graph, {}))
    except KeyError:  # an operator that TorchGraph does not know
        return None
    tensors = [engine.from_numpy(each) for each in arrays]

    def run() -> None:
        with engine.no_grad():
            module(*tensors)

    run()
    return run


PEERS: dict[str, Callable[[Graph, Sequence[np.ndarray], int], Run | None]] = {
    "numexpr": numexpr, "numba": numba, "torch": torch,
}  # fmt: skip
