"""Reading a file without its weights passing through a message gives what reading it as a whole gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from graphs import load, spill
from graphs.errors import EgraftError
from graphs.onnx_io import files, proto_bytes
from graphs.onnx_io.sift import sift
from graphs.text import print_graph

SIDE = 200  # large enough to be sifted


def model(**fields: object) -> onnx.ModelProto:
    weights = {"w": np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE), "b": np.ones(SIDE, np.float32),
               "v": np.full((SIDE, SIDE), 0.5, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["q"]),
             helper.make_node("MatMul", ["q", "v"], ["y"])]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, SIDE]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:],
                              [numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **fields)


def told(data: bytes, least: int) -> str:
    """What reading a file gives, its weights included, or the error."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(files, "_SIFTED_BYTES", least)
        path = Path(folder, "m.onnx")
        path.write_bytes(data)
        try:
            graph = load(path)
        except EgraftError as error:
            return str(error).replace(folder, "")
        digests = [f"{name} {constant.digest}" for name, constant in graph.constants.items()]
        return "\n".join([print_graph(graph), *digests, str(hash(proto_bytes(graph)))])


def test_large_weights_do_not_pass_through_the_message(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    with path.open("rb") as file:
        found = sift(file, path.stat().st_size)
    assert found is not None and sorted(found.weights) == [0, 2] and len(found.message) < 2000
    names = [each.name for each in onnx.ModelProto.FromString(found.message).graph.initializer]
    assert names == ["w", "b", "v"]


def test_large_weights_lie_in_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SIFTED_BYTES", 0)
    monkeypatch.setattr(spill, "LEAST_BYTES", 4 * SIDE * SIDE)
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    constants = load(tmp_path / "m.onnx").constants
    assert {name: spill.is_mapped(constant.array) for name, constant in constants.items()} == {
        "w": True, "v": True, "b": False}
    assert constants["w"].array.flags.aligned
    np.testing.assert_array_equal(constants["w"].array.ravel(), np.arange(SIDE * SIDE, dtype=np.float32))


def test_both_ways_read_the_same() -> None:
    data = model(producer_name="somebody").SerializeToString()
    assert told(data, 0) == told(data, 1 << 40)


def test_a_weight_of_the_wrong_length_is_refused_alike() -> None:
    proto = model()
    proto.graph.initializer[0].raw_data += b"1234"
    data = proto.SerializeToString()
    assert told(data, 0) == told(data, 1 << 40)
    assert "the file is damaged" in told(data, 0)


def test_fields_given_twice_are_read_as_protocol_buffers_want_it() -> None:
    data = model().SerializeToString()
    twice = onnx.ModelProto(graph=model().graph).SerializeToString()
    assert told(data + twice, 0) == told(data + twice, 1 << 40)  # two graphs are merged


@given(st.data())
def test_damaged_files_end_alike(data: st.DataObject) -> None:
    whole = model().SerializeToString()
    headers = [at for mark in (b"w", b"v", b"MatMul", b"\x4a") for at in [whole.find(mark)]] + [len(whole)]
    near = data.draw(st.sampled_from(headers))
    at = min(len(whole) - 1, max(0, near + data.draw(st.integers(-12, 12))))
    byte = data.draw(st.integers(0, 255))
    changed = whole[:at] + bytes([byte]) + whole[at + 1:] if data.draw(st.booleans()) else whole[:at]
    assert told(changed, 0) == told(changed, 1 << 40)
