"""Builds a transformer encoder with random weights in external data, written weight by weight.

    python -m tests.big.build_model big.onnx [--gigabytes 3]

LayerNorm and erf-GELU come in parts, a scale and a shift follow the first product of each feed-forward block, and there
are Dropout and Identity nodes. No more than one weight is in memory at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 17
HEADS = 16


class Writer:
    """Nodes and initializers; the bytes of large weights go straight into the data file."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.data = path.with_name(path.name + ".data")
        self.file = self.data.open("wb")
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.largest = 0

    def node(self, op: str, inputs: Sequence[str], out: str, **attrs: object) -> str:
        """Add a node of one output; returns its name."""
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=f"{op}_{len(self.nodes)}", **attrs))
        return out

    def small(self, name: str, value: object, dtype: type = np.float32) -> str:
        """A constant inside the model file."""
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 1.0, shift: float = 0.0) -> str:
        """A random float32 weight in the data file."""
        array = self.rng.standard_normal(shape, np.float32)
        array *= np.float32(scale)
        array += np.float32(shift)
        offset = -(-self.file.tell() // 4096) * 4096
        self.file.seek(offset)
        array.tofile(self.file)
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.data.name), ("offset", offset), ("length", array.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        self.initializers.append(proto)
        self.largest = max(self.largest, array.nbytes)
        return name


def _layer_norm(w: Writer, x: str, name: str, width: int) -> str:
    mean = w.node("ReduceMean", [x], f"{name}.mean", axes=[-1])
    centred = w.node("Sub", [x, mean], f"{name}.centred")
    square = w.node("Pow", [centred, "two"], f"{name}.square")
    variance = w.node("ReduceMean", [square], f"{name}.variance", axes=[-1])
    deviation = w.node("Sqrt", [w.node("Add", [variance, "epsilon"], f"{name}.shifted")], f"{name}.deviation")
    normal = w.node("Div", [centred, deviation], f"{name}.normal")
    scaled = w.node("Mul", [normal, w.weight(f"{name}.gamma", width, scale=0.1, shift=1.0)], f"{name}.scaled")
    return w.node("Add", [scaled, w.weight(f"{name}.beta", width, scale=0.1)], f"{name}.out")


def _dense(w: Writer, x: str, name: str, wide: int, out: int) -> str:
    product = w.node("MatMul", [x, w.weight(f"{name}.weight", wide, out, scale=wide**-0.5)], f"{name}.product")
    return w.node("Add", [product, w.weight(f"{name}.bias", out, scale=0.1)], f"{name}.out")


def _heads(w: Writer, x: str, name: str, perm: list[int]) -> str:
    split = w.node("Reshape", [x, "split"], f"{name}.split")
    return w.node("Transpose", [split], f"{name}.turned", perm=perm)


def _attention(w: Writer, x: str, name: str, width: int) -> str:
    q, k, v = (_heads(w, _dense(w, x, f"{name}.{part}", width, width), f"{name}.{part}", perm)
               for part, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
    scores = w.node("Div", [w.node("MatMul", [q, k], f"{name}.raw"), "root"], f"{name}.scores")
    weights = w.node("Dropout", [w.node("Softmax", [scores], f"{name}.weights", axis=-1)], f"{name}.dropped")
    mixed = w.node("Transpose", [w.node("MatMul", [weights, v], f"{name}.mixed")], f"{name}.back", perm=[0, 2, 1, 3])
    return _dense(w, w.node("Reshape", [mixed, "joined"], f"{name}.joined"), f"{name}.o", width, width)


def _feed_forward(w: Writer, x: str, name: str, width: int, inner: int, scaled: bool) -> str:
    up = _dense(w, x, f"{name}.up", width, inner)
    if scaled:  # what is left of a BatchNormalization: both go into the product's weight and bias
        up = w.node("Mul", [up, w.weight(f"{name}.scale", inner, scale=0.05, shift=1.0)], f"{name}.scaled")
        up = w.node("Add", [up, w.weight(f"{name}.shift", inner, scale=0.1)], f"{name}.moved")
    erf = w.node("Erf", [w.node("Div", [up, "root_two"], f"{name}.divided")], f"{name}.erf")
    gate = w.node("Mul", [up, w.node("Add", [erf, "one"], f"{name}.plus")], f"{name}.gate")
    gelu = w.node("Mul", [gate, "half"], f"{name}.gelu")
    return w.node("Dropout", [_dense(w, gelu, f"{name}.down", inner, width)], f"{name}.dropped")


def build(path: Path, layers: int, width: int, vocabulary: int, scaled_every: int = 4) -> int:
    """Write the model and `<path>.data`; returns the bytes of its largest weight. Every `scaled_every`-th layer has the
    scale and shift that can be folded into weights."""
    w = Writer(path)
    for name, value in (("two", 2.0), ("epsilon", 1e-5), ("one", 1.0), ("half", 0.5), ("root_two", 2.0**0.5),
                        ("root", (width // HEADS) ** 0.5)):
        w.small(name, value)
    w.small("split", [0, 0, HEADS, width // HEADS], np.int64)
    w.small("joined", [0, 0, width], np.int64)
    x = w.node("Gather", [w.weight("table", vocabulary, width), "ids"], "embedded", axis=0)
    for index in range(layers):
        attended = _attention(w, _layer_norm(w, x, f"{index}.norm", width), f"{index}.attention", width)
        x = w.node("Add", [x, w.node("Identity", [attended], f"{index}.same")], f"{index}.middle")
        fed = _feed_forward(w, _layer_norm(w, x, f"{index}.norm2", width), f"{index}.feed", width, 4 * width,
                            index % scaled_every == 0)
        x = w.node("Add", [x, fed], f"{index}.end")
    w.node("Identity", [_layer_norm(w, x, "last", width)], "y")
    graph = helper.make_graph(
        w.nodes, "big", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", width])], w.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    w.file.close()
    path.write_bytes(model.SerializeToString())
    return w.largest


def build_of(path: Path, gigabytes: float) -> int:
    """`build` with layers of 201 MB and a table of 246 MB, about `gigabytes` in all."""
    layers = max(1, round((gigabytes * 1e9 - 246e6) / 201.4e6))
    return build(path, layers, 2048, 30_000)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    arguments = parser.parse_args()
    print(f"the largest weight has {build_of(arguments.path, arguments.gigabytes)} bytes")
