"""A model file in pieces: large weights go from where they lie straight into the file, never through a message.

Protocol buffers allow the fields of a message in any order, so a graph's initializers may follow the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from .. import dtypes
from ..constants import Constant
from ..ir import Graph
from .tensors import to_bytes, write_tensor
from .writer import to_model_proto

STREAMED_BYTES = 1 << 16  # smaller tensors are part of the message
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = b"\x3a", b"\x2a", b"\x4a"  # field number and "has a length"


def model_pieces(graph: Graph, opset: int | None = None) -> Iterator[bytes | memoryview]:
    """The bytes of the model file of a graph, in pieces. Raises InvalidOption where a node has no form at that opset.

    Joined they are a ModelProto with all weights inside.
    """
    streamed: dict[str, Constant] = {}

    def head(constant: Constant, name: str) -> TensorProto:
        """The tensor, without its data if there is much of it."""
        if constant.nbytes < STREAMED_BYTES or constant.dtype == "string" or graph.constants.get(name) is not constant:
            return write_tensor(constant, name)
        streamed[name] = constant
        return TensorProto(data_type=dtypes.ONNX_NUMBER[constant.dtype], dims=constant.shape, name=name)

    nested = any(True for node in graph.nodes for _ in node.graphs)
    model = to_model_proto(graph, opset, write_tensor if nested else head)
    if not streamed:
        yield model.SerializeToString(deterministic=True)
        return
    heads = [(each.name, each.SerializeToString(deterministic=True)) for each in model.graph.initializer]
    del model.graph.initializer[:]
    rest_of_graph = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    rest_of_model = model.SerializeToString(deterministic=True)
    initializers: list[tuple[bytes, Constant | None]] = []
    length = len(rest_of_graph)
    for name, text in heads:
        constant = streamed.get(name)
        size = constant.nbytes if constant is not None else 0
        if constant is not None:
            text += _TENSOR_RAW_DATA + varint(size)
        piece = _GRAPH_INITIALIZER + varint(len(text) + size) + text
        initializers.append((piece, constant))
        length += len(piece) + size
    yield rest_of_model + _MODEL_GRAPH + varint(length) + rest_of_graph
    for piece, constant in initializers:
        yield piece
        if constant is not None:
            yield to_bytes(constant)


def varint(number: int) -> bytes:
    """A number as protocol buffers write it: seven bits a byte, the last without the high bit."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
