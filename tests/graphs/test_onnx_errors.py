"""Models that are wrong end in one clear line, whatever is wrong with them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphs import load
from graphs.errors import EgraftError, InferenceError, InvalidModel, MissingData, UnreadableFile
from graphs.onnx_io import load_onnx, proto_bytes
from graphs.text import print_graph


def tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes: list, inputs: tuple = ("x",), outputs: tuple = ("y",), constants: tuple = ()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [tensor(name, 2) for name in inputs],
                              [tensor(name, 2) for name in outputs], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


RELU = helper.make_node("Relu", ["x"], ["y"])
GOOD = model([RELU]).SerializeToString()


def weight(name: str, value: float = 1) -> TensorProto:
    return numpy_helper.from_array(np.float32([value, value]), name)


def no_opset() -> bytes:
    proto = model([RELU])
    del proto.opset_import[:]
    return proto.SerializeToString()


def damaged() -> bytes:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], constants=(weight("w"),))
    proto.graph.initializer[0].raw_data = b"123"
    return proto.SerializeToString()


WRONG = {
    "empty": (b"", "empty"),
    "not onnx": (b"\x89PNG\r\n\x1a\n" * 9, "no ONNX model"),
    "text": (b"hello world, this is not a model", "no ONNX model"),
    "no graph": (helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString()[:2], "no ONNX model"),
    "cut short": (GOOD[: len(GOOD) // 2], "cut short"),
    "no opset": (no_opset(), "opset"),
    "cycle": (model([helper.make_node("Add", ["x", "q"], ["p"]), helper.make_node("Relu", ["p"], ["q"])],
                    outputs=("q",)).SerializeToString(), "cycle: Add 'p' -> Relu 'q' -> Add 'p'"),
    "own output": (model([helper.make_node("Relu", ["y"], ["y"])]).SerializeToString(), "cycle"),
    "two nodes": (model([RELU, helper.make_node("Neg", ["x"], ["y"])]).SerializeToString(), "'y' is written twice"),
    "node and input": (model([RELU], inputs=("x", "y")).SerializeToString(), "written twice"),
    "node and constant": (model([RELU], constants=(weight("y"),)).SerializeToString(), "written twice"),
    "two constants": (model([RELU], constants=(weight("w"), weight("w", 2))).SerializeToString(), "written twice"),
    "dangling": (model([helper.make_node("Relu", ["z"], ["y"])]).SerializeToString(), "'z', which no node"),
    "dangling output": (model([RELU], outputs=("y", "z")).SerializeToString(), "output 'z' is unknown"),
    "two inputs": (model([RELU], inputs=("x", "x")).SerializeToString(), "duplicate"),
    "damaged tensor": (damaged(), "3 bytes"),
    "no operator": (model([helper.make_node("", ["x"], ["y"])]).SerializeToString(), "no operator"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_models_are_refused_in_one_line(case: str) -> None:
    data, found = WRONG[case]
    with pytest.raises(InvalidModel) as caught:
        load_onnx(data)
    assert found in str(caught.value) and "\n" not in str(caught.value)


def test_names_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InvalidModel, match="not UTF-8"):
        load_onnx(GOOD.replace(b"Relu", b"Re\xff\xfe"))


def test_an_ill_typed_node_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = model([helper.make_node("Add", ["x", "w"], ["y"], name="adder")],
                  constants=(numpy_helper.from_array(np.ones(3, np.float32), "w"),))
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InferenceError, match=r"Add 'y'.*broadcast"):
        load(path)


@pytest.mark.parametrize(("entries", "found"), [
    ({"location": "missing.bin"}, "missing.bin"), ({"location": "../secret.bin"}, "outside"),
    ({"location": "short.bin"}, "short.bin"), ({"location": "short.bin", "offset": "-4"}, "short.bin"),
    ({"location": "short.bin", "offset": "x"}, "no number"), ({"location": ""}, "missing"),
    ({"location": "link.bin"}, "outside"), ({"location": "a\0b"}, "no possible file name"),
    ({"location": "x" * 5000}, "no possible file name"), ({"location": "/etc/hostname"}, "outside"),
    ({"location": "sub/../../secret.bin"}, "outside"), ({"location": "up/secret.bin"}, "outside"),
    ({"location": "short.bin", "offset": "4"}, "short.bin"), ({"location": "short.bin", "length": "-8"}, "short.bin"),
    ({"location": "short.bin", "length": "9" * 30}, "short.bin"), ({"location": "."}, "missing"),
    ({"location": "short.bin", "offset": "9" * 30}, "short.bin"), ({"location": "pipe"}, "missing"),
])  # fmt: skip
def test_external_data_must_be_there_whole_and_inside(tmp_path: Path, entries: dict, found: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (folder / "short.bin").write_bytes(bytes(4))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])])
    made = proto.graph.initializer.add(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        made.external_data.add(key=key, value=value)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(MissingData, match=found) as caught:
        load(folder / "m.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(MissingData):
        load(proto.SerializeToString())


@pytest.mark.parametrize("name", ["pipe", "pipe.onnx"])
def test_a_pipe_is_read_once(tmp_path: Path, name: str) -> None:
    data = model([helper.make_node("Relu", ["x"], ["y"])]).SerializeToString()
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_bytes, args=(data,))
    writer.start()
    assert [node.op for node in load(tmp_path / name).nodes] == ["Relu"]
    writer.join()


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="cannot be read"):
        load(tmp_path / "no.onnx")
    with pytest.raises(UnreadableFile, match="cannot be read"):
        load(tmp_path)


@given(st.data())
def test_damaged_files_never_crash(data: st.DataObject) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["t"], transB=1), helper.make_node("Relu", ["t"], ["y"])]
    raw = bytearray(model(nodes, constants=(weight("w"),)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            proto_bytes(load(damaged))
        except EgraftError as error:
            assert "\n" not in str(error)


def test_a_model_without_outputs_is_refused() -> None:
    """onnx.checker takes it; ONNX Runtime loads it, and then every run fails."""
    data = model([RELU], outputs=()).SerializeToString()
    onnx.checker.check_model(onnx.ModelProto.FromString(data), full_check=True)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="At least one output"):
        session.run(None, {"x": np.float32([1, 2])})
    for source in (data, b'graph "g" opset 17 (x: float32[2]) -> () { y = Relu(x) }'):
        with pytest.raises(InvalidModel, match="no outputs"):
            load(source)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes on the wire."""
    size, length = len(data), b""
    while size > 127:
        size, length = size >> 7, length + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def nested(depth: int) -> bytes:
    """An ONNX file with an If in an If in an If; protobuf itself cannot put it together."""
    node = helper.make_node("Neg", ["x"], ["y"]).SerializeToString()
    output = field(12, tensor("y", 2).SerializeToString())
    for _ in range(depth):
        branches = [field(5, field(1, name) + field(6, field(1, inner) + output) + b"\xa0\x01\x05")
                    for name, inner in ((b"then_branch", node), (b"else_branch", RELU.SerializeToString()))]
        node = field(1, b"c") + field(2, b"y") + field(4, b"If") + b"".join(branches)
    inputs = field(11, tensor("x", 2).SerializeToString()) + field(
        11, helper.make_tensor_value_info("c", TensorProto.BOOL, []).SerializeToString())
    graph = field(1, node) + field(2, b"g") + inputs + output
    return b"\x08\x08" + field(7, graph) + field(8, helper.make_opsetid("", 17).SerializeToString())


def nested_text(depth: int) -> str:
    node = "y = Neg(x)"
    for _ in range(depth):
        node = f"y = If(c, then_branch=graph () -> (y) {{ {node} }}, else_branch=graph () -> (y) {{ y = Relu(x) }})"
    return f'graph "g" opset 17 (x: float32[2], c: bool[]) -> (y) {{ {node} }}'


def nested_json(depth: int) -> str:
    relu, node = ({"op": op, "inputs": ["x"], "outputs": ["y"]} for op in ("Relu", "Neg"))
    inputs = [{"name": "x", "dtype": "float32", "shape": [2]}, {"name": "c", "dtype": "bool", "shape": []}]
    text = json.dumps(node)
    frame = json.dumps({"op": "If", "inputs": ["c"], "outputs": ["y"], "attributes": {
        "then_branch": {"graph": {"outputs": ["y"], "nodes": ["HERE"]}},
        "else_branch": {"graph": {"outputs": ["y"], "nodes": [relu]}}}})
    for _ in range(depth):
        text = frame.replace('"HERE"', text)
    whole = json.dumps({"egraft": 1, "name": "g", "inputs": inputs, "outputs": ["y"], "nodes": ["HERE"], "opset": 17})
    return whole.replace('"HERE"', text)


def test_graphs_that_lie_too_deep_in_one_another() -> None:
    deepest = load(nested(31))
    for source in (nested_text(31), nested_json(31), str(deepest)):
        assert print_graph(load(source.encode())).count("If(") == print_graph(deepest).count("If(") == 31
    for depth in (32, 90):
        for source in (nested(depth), nested_text(depth).encode(), nested_json(depth).encode()):
            with pytest.raises(EgraftError, match=r"graphs lie in one another .* more than 31 deep"):
                load(source)
    for source in (nested_json(5000), nested_json(1).replace("[2]", "[" * 900 + "]" * 900),
                   nested_text(1).replace("[2]", "[" + "(" * 5000 + "2" + ")" * 5000 + "]"),
                   nested_text(1).replace("Neg(x)", "constant float32[2] " + "[" * 5000)):
        with pytest.raises(EgraftError):
            load(source.encode())
