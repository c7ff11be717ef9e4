"""Large weights are streamed into files: the bytes are those of an ordinary message."""

from __future__ import annotations

from pathlib import Path

import onnx

from graphs import load, save, zoo
from graphs.onnx_io import to_model_proto
from graphs.onnx_io.files import proto_bytes


def test_streamed_file_is_an_ordinary_model(tmp_path: Path) -> None:
    graph = zoo.build("resnet-tiny", width=32)
    assert any(constant.nbytes >= 1 << 16 for constant in graph.constants.values())
    save(graph, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    whole = to_model_proto(graph)
    assert onnx.load(tmp_path / "model.onnx") == whole
    assert onnx.load_from_string(proto_bytes(graph)) == whole
    assert load(tmp_path / "model.onnx").constants == graph.constants
