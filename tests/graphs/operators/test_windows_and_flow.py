"""Inference of convolutions, normalizations and control flow: symbolic sizes, errors, ONNX's own inference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphs.dims import evaluate, parse_dim, symbol
from graphs.errors import InferenceError
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.operators import REQUIRED, Site, find
from graphs.text import parse_graph
from graphs.types import TensorType, Type
from tests.runtime.kernels.harness import make_model

F = np.float32


def infer_one(op: str, types: list[TensorType | None], outputs: int = 1, **attrs: object) -> list[Type | None]:
    record = find(op)
    assert record is not None
    full = {name: attrs.get(name, default) for name, default in record.attrs.items()}
    assert REQUIRED not in full.values()
    nothing = [None] * len(types)
    return record.infer(Site(op, full, types, nothing, nothing, outputs, "y"))


def tensor(*dims: int | str, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, tuple(parse_dim(dim) if isinstance(dim, str) else dim for dim in dims))


@pytest.mark.parametrize(("attrs", "expected"), [
    ({}, "float32[n, 8, h - 2, w - 2]"),
    ({"pads": (1, 1, 1, 1)}, "float32[n, 8, h, w]"),
    ({"strides": (2, 2), "pads": (1, 1, 1, 1)},
     "float32[n, 8, floordiv(h + 1, 2), floordiv(w + 1, 2)]"),
    ({"auto_pad": "SAME_UPPER", "strides": (2, 1)}, "float32[n, 8, floordiv(h + 1, 2), w]"),
    ({"auto_pad": "VALID", "dilations": (2, 1)}, "float32[n, 8, h - 4, w - 2]"),
])  # fmt: skip
def test_symbolic_convolution(attrs: dict[str, object], expected: str) -> None:
    found = infer_one("Conv", [tensor("n", 3, "h", "w"), tensor(8, 3, 3, 3)], **attrs)
    assert str(found[0]).replace(" - 1, 2) + 1", " + 1, 2)") == expected


def test_symbolic_pools_and_transposed_convolution() -> None:
    x, w = tensor("n", 4, "h"), tensor(4, 2, 4)
    assert str(infer_one("ConvTranspose", [x, w], strides=(2,), group=2)[0]) == "float32[n, 4, 2*h + 2]"
    assert str(infer_one("ConvTranspose", [x, w], strides=(2,), auto_pad="SAME_LOWER")[0]) == "float32[n, 2, 2*h]"
    assert str(infer_one("GlobalAveragePool", [x])[0]) == "float32[n, 4, 1]"
    found = infer_one("MaxPool", [x], 2, kernel_shape=(2,), strides=(2,))
    assert [str(type_) for type_ in found] == ["float32[n, 4, floordiv(h, 2)]", "int64[n, 4, floordiv(h, 2)]"]
    ceil = infer_one("MaxPool", [x], kernel_shape=(3,), strides=(2,), pads=(1, 1), ceil_mode=1)[0]
    assert isinstance(ceil, TensorType) and ceil.shape is not None
    for height, count in ((4, 3), (5, 3), (6, 4)):
        assert evaluate(ceil.shape[2], {"h": height}) == count


@pytest.mark.parametrize(("op", "types", "attrs"), [
    ("Conv", [tensor(1, 3, 8), tensor(8, 4, 3)], {}),
    ("Conv", [tensor(1, 3, 8), tensor(8, 3, 3, 3)], {}),
    ("Conv", [tensor(1, 3, 2), tensor(8, 3, 5)], {}),
    ("Conv", [tensor(1, 3, 1), tensor(8, 3, 2)], {"strides": (2,)}),
    ("MaxPool", [tensor(1, 3, 1)], {"kernel_shape": (2,), "strides": (2,)}),
    ("LpPool", [tensor(1, 3, 8, 2)], {"kernel_shape": (2, 5), "strides": (1, 4), "pads": (0, 0, 1, 0)}),
    ("Conv", [tensor(1, 3, 8), tensor(8, 3, 3)], {"pads": (1,)}),
    ("Conv", [tensor(1, 3, 8), tensor(8, 3, 3)], {"kernel_shape": (5,)}),
    ("Conv", [tensor(1, 3, 8), tensor(8, 3, 3)], {"strides": (0,), "auto_pad": "SAME_UPPER"}),
    ("MaxPool", [tensor(1, 3, 8)], {"kernel_shape": (2,), "dilations": (0,)}),
    ("EyeLike", [tensor(2, 2, 2)], {}),
    ("MaxPool", [tensor(1, 3, 8)], {"kernel_shape": (2, 2)}),
    ("BatchNormalization", [tensor(1, 3, 8), tensor(4), tensor(4), tensor(4), tensor(4)], {}),
    ("Softmax", [tensor(1, 3)], {"axis": 2}),
    ("GroupNormalization", [tensor(1, 3, 8), tensor(3), tensor(3)], {"num_groups": 2}),
    ("Attention", [tensor(1, 4, 8)] * 3, {}),
    ("LSTM", [tensor(5, 1, 3), tensor(1, 9, 3), tensor(1, 9, 2)], {}),
])  # fmt: skip
def test_ill_typed(op: str, types: list[TensorType], attrs: dict[str, object]) -> None:
    with pytest.raises(InferenceError):
        infer_one(op, types, **attrs)


def test_symbolic_recurrent_and_attention() -> None:
    x, w, r = tensor("seq", "batch", 3), tensor(2, 16, 3), tensor(2, 16, 4)
    assert [str(t) for t in infer_one("LSTM", [x, w, r], 3, direction="bidirectional")] == [
        "float32[seq, 2, batch, 4]", "float32[2, batch, 4]", "float32[2, batch, 4]"]
    q, k = tensor("b", "s", 8), tensor("b", "t", 4)
    past = tensor("b", 1, "p", 4)
    found = infer_one("Attention", [q, k, k, None, past, past], 3, q_num_heads=2, kv_num_heads=1)
    assert [str(t) for t in found] == ["float32[b, s, 8]", "float32[b, 1, p + t, 4]", "float32[b, 1, p + t, 4]"]


def test_resize_of_symbolic_sizes() -> None:
    x = tensor("n", 3, "h", "w")
    assert str(infer_one("Resize", [x], scales=(1.0, 1.0, 2.0, 0.5))[0]) == "float32[n, 3, 2*h, floordiv(w, 2)]"
    assert str(infer_one("Resize", [x], sizes=(7, 9), axes=(2, 3))[0]) == "float32[n, 3, 7, 9]"
    odd = infer_one("Resize", [x], scales=(1.0, 1.0, 1.5, 1.0))[0]
    assert isinstance(odd, TensorType) and not odd.is_known


CASES: list[tuple[str, list[tuple[int, ...]], int, dict[str, object]]] = [
    ("Conv", [(2, 4, 9, 7), (6, 2, 3, 3)], 21, {"group": 2, "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ("Conv", [(2, 4, 9, 7), (6, 4, 3, 2)], 11, {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 3)], 21, {"strides": [2], "output_padding": [1], "dilations": [2]}),
    ("ConvTranspose", [(1, 4, 5), (4, 3, 1)], 21, {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ("MaxPool", [(1, 2, 5, 6)], 22, {"kernel_shape": [2, 3], "strides": [3, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ("AveragePool", [(1, 2, 5, 6)], 22, {"kernel_shape": [2, 3], "strides": [3, 2], "ceil_mode": 1}),
    ("BatchNormalization", [(2, 3, 4), (3,), (3,), (3,), (3,)], 15, {}),
    ("LayerNormalization", [(2, 3, 4), (4,), (4,)], 17, {}),
    ("GRU", [(5, 2, 3), (1, 12, 3), (1, 12, 4)], 14, {"hidden_size": 4}),
    ("GridSample", [(2, 3, 5, 5), (2, 4, 6, 2)], 20, {}),
]


@pytest.mark.parametrize(("op", "shapes", "opset", "attrs"), CASES)
def test_like_onnx(op: str, shapes: list[tuple[int, ...]], opset: int, attrs: dict[str, object]) -> None:
    model = make_model(op, [np.zeros(shape, F) for shape in shapes], opset, **attrs)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0].type.tensor_type
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in attrs.items()}
    found = infer_one(op, [tensor(*shape) for shape in shapes], **tuples)[0]
    assert isinstance(found, TensorType)
    assert found.shape == tuple(dim.dim_value for dim in inferred.shape.dim)


# Control flow


def typed(text: str) -> Graph:
    graph = parse_graph(text)
    infer(graph)
    return graph


def test_if_joins_its_branches() -> None:
    graph = typed("""
        graph "g" opset 17 (c: bool[], x: float32[n, 3], z: float32[m, 3]) -> (y, s) {
          y, s = If(c, then_branch=graph () -> (a, b) { a = Relu(x) b = Neg(x) },
                    else_branch=graph () -> (d, e) { d = Relu(z) e = Exp(x) })
        }
    """)
    y, s = graph.type_of("y"), graph.type_of("s")
    assert str(s) == "float32[n, 3]"
    assert y is not None and y.shape is not None and y.shape[1] == 3 and not y.is_known


def test_loop_and_scan() -> None:
    graph = typed("""
        graph "g" opset 17 (x: float32[n, 3], xs: float32[t, n, 3]) -> (last, stack, final, ys) {
          trips = constant int64[] [4]
          go0 = constant bool[] [true]
          last, stack = Loop(trips, go0, x, body=graph (i: int64[], go: bool[], s: float32[n, 3]) -> (g2, s2, o) {
            g2 = Identity(go)
            s2 = Relu(s)
            o = Neg(s)
          })
          final, ys = Scan(x, xs, num_scan_inputs=1, body=graph (h: float32[n, 3], e: float32[n, 3]) -> (h2, y) {
            h2 = Add(h, e)
            y = Mul(h, e)
          })
        }
    """)
    assert str(graph.type_of("last")) == "float32[n, 3]"
    assert str(graph.type_of("stack")) == "float32[4, n, 3]"
    assert str(graph.type_of("final")) == "float32[n, 3]"
    assert str(graph.type_of("ys")) == "float32[t, n, 3]"


def test_sizes_that_grow_in_a_loop_are_unknown_after_it() -> None:
    graph = typed("""
        graph "g" opset 17 (m: int64[], x: float32[n, 3]) -> (last, stack) {
          last, stack = Loop(m, , x, body=graph (i: int64[], go: bool[], s: float32[k, 3]) -> (g2, s2, o) {
            g2 = Identity(go)
            s2 = Concat(s, x, axis=0)
            o = ReduceSum(s, keepdims=0)
          })
        }
    """)
    last, stack = graph.type_of("last"), graph.type_of("stack")
    assert last is not None and last.shape is not None and last.shape[1] == 3 and last.shape[0] != symbol("n")
    assert not last.is_known and stack is not None and stack.rank == 1 and not stack.is_known


def test_purity_looks_into_bodies() -> None:
    from graphs.operators import is_pure

    noise = Graph(nodes=[Node("RandomNormal", (), ("r",), {"shape": (2,)}, version=1)], outputs=["r"])
    calm = Graph(nodes=[Node("Relu", ("x",), ("r",), version=14)], outputs=["r"])
    assert is_pure(Node("If", ("c",), ("y",), {"then_branch": calm, "else_branch": calm}, version=16))
    assert not is_pure(Node("If", ("c",), ("y",), {"then_branch": calm, "else_branch": noise}, version=16))
