"""Small models and helpers of the tests of the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import graphs
from graphs.onnx_io import proto_bytes
from graphs.text import parse_graph

TEXT = """graph "tiny" opset 17 (x: float32[4, 8]) -> (y) {
  t = Transpose(x, perm=[1, 0])
  u = Transpose(t, perm=[1, 0])
  y = Relu(u)
}"""
FAST = {"effort": "low", "target": "onnxruntime:cpu", "objective": "nodes"}  # whatever is measured on a busy machine
LOCAL = "http://127.0.0.1"


def tiny(name: str = "tiny", rows: int = 4) -> graphs.Graph:
    return parse_graph(TEXT.replace("tiny", name).replace("[4, 8]", f"[{rows}, 8]"))


def onnx_bytes(name: str = "tiny", rows: int = 4) -> bytes:
    data = proto_bytes(tiny(name, rows))
    return bytes(data)


def with_external(folder: Path, location: str = "weights.bin") -> tuple[bytes, bytes]:
    """A model whose weights are in a file of their own: the model, the data."""
    import onnx
    from onnx import TensorProto, helper

    data = np.arange(32, dtype=np.float32)
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
         helper.make_node("Transpose", ["t"], ["u"], perm=[1, 0]), helper.make_node("MatMul", ["u", "w"], ["y"])],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    target = folder / location
    if target.resolve().is_relative_to(folder.resolve()):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.tobytes())
    assert onnx.load(folder / "external.onnx", load_external_data=False)
    return model.SerializeToString(), data.tobytes()


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")
