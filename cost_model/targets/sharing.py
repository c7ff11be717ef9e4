"""Sessions of large models without copies of the weights: ONNX Runtime reads them where the graph holds them.

What its kernels pack or its optimizations fold it keeps in memory of its own; the pages of the graph's weights are
given back once it has done so.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from onnx import TensorProto

from graphs import dtypes
from graphs.constants import Constant
from graphs.ir import Graph, NameSupply, Node
from graphs.onnx_io import to_model_proto
from graphs.onnx_io.tensors import write_tensor
from graphs.spill import LEAST_BYTES, files_of, let_go, let_go_of_files, mapping_freed_memory, room, trim

SHARED_BYTES = 64 << 20  # of weights in the model; smaller models are handed over as the bytes of their file
_TENSOR_BYTES = 1024  # smaller tensors stay in the model, where ONNX Runtime can read shapes off them
_INTERVAL = 0.005  # seconds between two looks at what a session has read
_PLAIN = ("float32", "float64", "int64", "int32", "int8", "uint8")


def shares_weights(graph: Graph) -> bool:
    """Is the graph large enough, and free of nested graphs, whose weights cannot be shared?"""
    if any(True for node in graph.nodes for _ in node.graphs):
        return False
    return sum(constant.nbytes for constant in graph.constants.values()) >= SHARED_BYTES


def shared_model(graph: Graph, options: Any, on_host: bool = True) -> tuple[bytes, list[Any], list[mmap]]:
    """(a model without its large weights, the weights, which must live as long as the session, the files they lie in).

    The weights are announced to the session by `options`. Raises AttributeError where ONNX Runtime is too old.
    Announced as external data they are read for optimizations, folding and packing, but what no kernel packs is copied
    (1.32). Tables in which rows are looked up are therefore announced as values of the session, too: no optimization
    changes those in place. Such a value must lie where it is used, so only sessions `on_host` get any.
    """
    import onnxruntime

    graph = _tables_apart(_transposed(graph)) if on_host else graph
    tables = _tables(graph) if on_host else frozenset()
    names: list[str] = []
    weights: list[Any] = []

    def head(constant: Constant, name: str) -> TensorProto:
        small = constant.nbytes < _TENSOR_BYTES or constant.dtype not in _PLAIN
        if small or graph.constants.get(name) is not constant:
            return write_tensor(constant, name)
        proto = TensorProto(name=name, data_type=dtypes.ONNX_NUMBER[constant.dtype], dims=constant.shape)
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "shared"), ("offset", "0"), ("length", str(constant.nbytes))):
            proto.external_data.add(key=key, value=value)
        names.append(name)
        weights.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(constant.array)))
        if name in tables:
            options.add_initializer(name, weights[-1])
        return proto

    model = to_model_proto(graph, None, head).SerializeToString()
    options.add_external_initializers(names, weights)
    return model, weights, files_of(constant.array for constant in graph.constants.values())


_turned: WeakKeyDictionary[Constant, dict[tuple[int, ...], Constant]] = WeakKeyDictionary()


def _transposed(graph: Graph) -> Graph:
    """Transposed weights as constants in files. The session would make the same of them, and hold the weight, what it
    has made of it, and that once more as it is packed, all at a time (450 MB for the last product of GPT-2)."""
    nodes, constants, taken = list[Node](), dict(graph.constants), set(graph.outputs)
    for node in graph.nodes:
        constant = graph.constants.get(node.inputs[0]) if node.op == "Transpose" and not node.domain else None
        if constant is None or constant.nbytes < LEAST_BYTES or constant.dtype not in _PLAIN or (
                taken.intersection(node.outputs)):
            nodes.append(node)
        else:
            constants[node.outputs[0]] = _turn(constant, node.attrs.get("perm"))
    return graph if len(nodes) == len(graph.nodes) else dataclasses.replace(graph, nodes=nodes, constants=constants)


def _turn(constant: Constant, perm: object) -> Constant:
    order = tuple(perm) if isinstance(perm, tuple) else tuple(reversed(range(len(constant.shape))))
    known = _turned.setdefault(constant, {})
    if order not in known:
        array = np.transpose(constant.array, order)
        place = room(constant.nbytes).view(array.dtype).reshape(array.shape)
        np.copyto(place, array)
        let_go(place)
        let_go(constant.array)
        known[order] = Constant.of(place)
    return known[order]


def _tables(graph: Graph) -> frozenset[str]:
    """Constants of which nodes read nothing but whole rows."""
    found = set(graph.constants) - set(graph.outputs)
    for node in graph.nodes:
        found.difference_update(node.inputs[1:] if _reads_rows(node) else node.uses)
    return frozenset(found)


def _reads_rows(node: Node) -> bool:
    return node.op == "Gather" and not node.domain and node.attrs.get("axis", 0) == 0


def _tables_apart(graph: Graph) -> Graph:
    """Tables of which other nodes read more than rows (the last product of many language models reads the table of
    tokens) under a second name for those: else each session copies them."""
    rows = {node.inputs[0] for node in graph.nodes if _reads_rows(node)}.intersection(graph.constants)
    other = {name for node in graph.nodes for name in (node.inputs[1:] if _reads_rows(node) else node.uses)}
    names = NameSupply(graph.names())
    apart = {name: names.fresh(f"{name}_values") for name in sorted(rows & other - set(graph.outputs))
             if graph.constants[name].nbytes >= _TENSOR_BYTES}
    if not apart:
        return graph

    def renamed(node: Node) -> Node:
        names = [apart.get(name, name) for name in node.inputs]
        if _reads_rows(node):
            names[0] = node.inputs[0]
        return dataclasses.replace(node, inputs=tuple(names)) if names != list(node.inputs) else node

    constants = {**graph.constants, **{second: graph.constants[name] for name, second in apart.items()}}
    return dataclasses.replace(graph, nodes=[renamed(node) for node in graph.nodes], constants=constants)


@contextmanager
def sparing(files: list[mmap]) -> Iterator[None]:
    """While a session loads: the memory that weights in mapped files take is given back all the time, and what the
    session frees at once. Else the weights are there twice for that long, as they were and as they are packed."""
    done = threading.Event()

    def give_back() -> None:
        while not done.wait(_INTERVAL):
            let_go_of_files(files)

    thread = threading.Thread(target=give_back, name="weights", daemon=True)
    thread.start()
    try:
        with mapping_freed_memory():
            yield
    finally:
        done.set()
        thread.join()
        let_go_of_files(files)
        trim()
