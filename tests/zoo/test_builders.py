"""Every builder: valid ONNX, types known, the same numbers in ONNX Runtime and in egraft's executor."""

from __future__ import annotations

import time

import numpy as np
import pytest

from graphs import zoo
from graphs.errors import InvalidOption
from graphs.onnx_io import load_onnx
from runtime import Session

from .helpers import SMALL, assert_close, checked, feeds_of, interface, session, sizes_of


@pytest.mark.parametrize("name", SMALL)
def test_runs_alike_in_both_runtimes(name: str) -> None:
    graph = zoo.build(name)
    model = checked(graph)
    theirs, ours = session(model), Session(graph)
    for number, sizes in enumerate(sizes_of(graph)):
        feeds = feeds_of(graph, number, sizes)
        expected = theirs.run(graph.outputs, feeds)
        found = ours.run(feeds)
        assert_close(expected, [found[each] for each in graph.outputs])
        for array in expected:
            assert np.isfinite(array).all()
            assert array.size == 1 or float(array.std()) > 1e-3, "outputs must not be degenerate"


@pytest.mark.parametrize("name", SMALL)
def test_every_value_has_a_known_type(name: str) -> None:
    graph = zoo.build(name)
    for node in graph.nodes:
        for value in node.outputs:
            if value:
                found = graph.type_of(value)
                assert found is not None and found.is_known, f"{node.label}: {found}"


@pytest.mark.parametrize("name", SMALL)
def test_survives_a_file(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from graphs.onnx_io import save_onnx

    graph = zoo.build(name)
    save_onnx(graph, tmp_path / "model.onnx")
    back = load_onnx(tmp_path / "model.onnx")
    assert interface(checked(back)) == interface(checked(graph))
    assert [node.op for node in back.nodes] == [node.op for node in graph.nodes]


def test_symbols_stay_in_the_interface() -> None:
    rows = interface(checked(zoo.build("bert-tiny")))
    assert [(name, dims) for _, name, _, dims in rows] == [
        ("input_ids", ["batch", "sequence"]), ("attention_mask", ["batch", "sequence"]),
        ("token_type_ids", ["batch", "sequence"]), ("last_hidden_state", ["batch", "sequence", 32]),
        ("pooler_output", ["batch", 32])]


def test_large_models_build_fast_and_the_same_way() -> None:
    start = time.process_time()
    graph = zoo.build("bert-12")
    assert time.process_time() - start < 5
    assert sum(constant.size for constant in graph.constants.values()) > 108_000_000
    name = "encoder.layer.3.attention.self.query.weight"
    again = zoo.build("bert-12", layers=4)
    assert np.array_equal(graph.constants[name].array, again.constants[name].array)
    assert abs(float(graph.constants[name].array.std()) - 768**-0.5) < 1e-3


def test_written_as_exporters_write() -> None:
    operators = {node.op for node in zoo.build("bert-tiny").nodes}
    assert {"Shape", "Gather", "Concat", "Reshape", "ReduceMean", "Pow", "Sqrt", "Erf"} <= operators
    assert {node.op for node in zoo.build("resnet-tiny").nodes} >= {"Conv", "BatchNormalization"}
    names = [node.name for node in zoo.build("bert-tiny").nodes]
    assert "/encoder/layer.1/attention/self/query/MatMul" in names
    assert len(set(names)) == len(names)


def test_sizes_and_names_are_checked() -> None:
    assert len(zoo.build("bert-tiny", layers=1).nodes) < len(zoo.build("bert-tiny").nodes)
    with pytest.raises(InvalidOption, match="depth"):
        zoo.build("bert-tiny", depth=3)
    with pytest.raises(InvalidOption, match="bert-12"):
        zoo.build("bert")
    with pytest.raises(InvalidOption, match="build"):
        zoo.fetch("bert-tiny")
    assert {"bert-12", "magika"} <= set(zoo.names())
    assert set(zoo.names(trained=True)) | set(zoo.names(trained=False)) == set(zoo.names())
    assert zoo.describe("bert-12").dims == {"batch": 1, "sequence": 128}
    assert zoo.describe("magika").licence == "Apache-2.0"
