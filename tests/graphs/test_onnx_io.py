"""ONNX in and out: the contract survives, values survive, files are whole or absent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import Constant, load, save
from graphs.errors import InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io import files, load_onnx, proto_bytes, save_onnx, to_model_proto, writable
from graphs.operators import RUNTIME
from graphs.text import parse_graph, print_graph
from graphs.types import OtherType, TensorType


def tensor(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list, inputs: list, outputs: list, constants: dict | None = None, opset: int = 17, ir: int = 8,
          **rest: object) -> onnx.ModelProto:
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, made, **rest)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def read(proto: onnx.ModelProto) -> Graph:
    return load_onnx(proto.SerializeToString())


def outputs_of(proto: onnx.ModelProto, feeds: dict) -> list:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def test_interface_survives_to_the_letter() -> None:
    x = tensor("x", "batch size", None, 3)
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    x.doc_string = "pixels"
    proto = model([helper.make_node("Relu", ["x"], ["y"], name="first", doc_string="why")], [x, tensor("unused")],
                  [tensor("y", "seq+1", 5, None)])
    proto.producer_name, proto.model_version, proto.doc_string = "someone", 7, "doc"
    proto.metadata_props.add(key="a", value="b")
    proto.graph.doc_string = "graph doc"
    written = to_model_proto(read(proto))
    assert list(written.graph.input) == list(proto.graph.input)
    assert list(written.graph.output) == list(proto.graph.output)
    assert list(written.graph.node) == list(proto.graph.node)
    assert (written.producer_name, written.model_version, written.doc_string) == ("someone", 7, "doc")
    assert list(written.metadata_props) == list(proto.metadata_props)
    assert written.graph.doc_string == "graph doc" and written.ir_version == 8
    assert list(written.opset_import) == list(proto.opset_import)


def test_declared_types_of_outputs_are_not_trusted() -> None:
    graph = read(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", "n", 3)], [tensor("y", 7, 7)]))
    assert str(graph.types["y"]) == "float32[n, 3]"


def test_equal_dimension_names_are_equal_sizes_and_unnamed_ones_are_not() -> None:
    graph = read(model([helper.make_node("Concat", ["x", "z"], ["y"], axis=1)],
                       [tensor("x", "b", None), tensor("z", "b", None)], [tensor("y", "b", None)]))
    assert str(graph.types["y"]) == "float32[b, `?x.1` + `?z.1`]"


@pytest.mark.parametrize(("opset", "inputs", "constants", "attrs"), [
    (11, ["x"], {}, {"axes": [0]}), (13, ["x", "axes"], {"axes": np.array([0])}, {}),
])  # fmt: skip
def test_axes_have_one_form_at_every_opset(opset: int, inputs: list, constants: dict, attrs: dict) -> None:
    node = helper.make_node("Unsqueeze", inputs, ["y"], **attrs)
    proto = model([node], [tensor("x", 3)], [tensor("y", 1, 3)], constants, opset)
    graph = read(proto)
    assert print_graph(graph) == f'graph "g" opset {opset} (x: float32[3]) -> (y) {{\n  y = Unsqueeze(x, axes=[0])\n}}'
    assert graph.constants == {}
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    feeds = {"x": np.arange(3, dtype=np.float32)}
    np.testing.assert_array_equal(outputs_of(written, feeds)[0], outputs_of(proto, feeds)[0])


def test_a_runtime_value_stays_an_input() -> None:
    graph = read(model([helper.make_node("Reshape", ["x", "s"], ["y"])],
                       [tensor("x", 6), tensor("s", 2, kind=TensorProto.INT64)], [tensor("y", None, None)]))
    assert graph.nodes[0].inputs == ("x", "s") and graph.nodes[0].attrs["shape"] is RUNTIME


def test_a_default_that_the_caller_may_override_is_no_constant() -> None:
    proto = model([helper.make_node("Reshape", ["x", "s"], ["y"])],
                  [tensor("x", 6), tensor("s", 2, kind=TensorProto.INT64)], [tensor("y", None, None)],
                  {"s": np.array([2, 3])})
    graph = read(proto)
    assert list(graph.defaults) == ["s"] and graph.inputs == ["x", "s"]
    assert graph.nodes[0].attrs["shape"] is RUNTIME
    written = to_model_proto(graph)
    assert [info.name for info in written.graph.input] == ["x", "s"]
    assert [each.name for each in written.graph.initializer] == ["s"]


def test_initializers_of_old_files_stay_in_the_input_list_in_their_place() -> None:
    proto = model([helper.make_node("Add", ["w", "x"], ["t"]), helper.make_node("Add", ["t", "z"], ["y"])],
                  [tensor("w", 2), tensor("x", 2), tensor("v", 2), tensor("z", 2)], [tensor("y", 2)],
                  {"w": np.ones(2, np.float32), "v": np.ones(2, np.float32)}, opset=7, ir=3)
    graph = read(proto)
    assert graph.inputs == ["x", "z"] and graph.constants["w"].shape == (2,)
    written = to_model_proto(graph)
    assert [info.name for info in written.graph.input] == ["w", "x", "v", "z"]
    onnx.checker.check_model(written, full_check=True)


def test_new_constants_of_old_files_do_not_become_inputs() -> None:
    graph = read(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 2)], [tensor("y", 2)], opset=9, ir=3))
    graph.constants["two"] = Constant.of(np.float32([2, 2]))
    graph.nodes.append(parse_graph("graph (y, two) -> (z) { z = Mul(y, two) }").nodes[0])
    graph.outputs.append("z")
    infer(graph)
    written = to_model_proto(graph)
    assert [info.name for info in written.graph.input] == ["x"]
    onnx.checker.check_model(written)


@pytest.mark.parametrize(("attribute", "value", "expected"), [
    ("value_float", 1.5, np.float32(1.5)), ("value_ints", [1, 2], np.array([1, 2])),
    ("value_floats", [0.5], np.array([0.5], np.float32)), ("value_int", 3, np.int64(3)),
    ("value_string", "a", np.array("a", object)), ("value_strings", ["a", "b"], np.array(["a", "b"], object)),
])  # fmt: skip
def test_every_form_of_constant_node(attribute: str, value: object, expected: np.ndarray) -> None:
    node = helper.make_node("Constant", [], ["c"], **{attribute: value})
    graph = read(model([node], [], [helper.make_tensor_value_info("c", TensorProto.UNDEFINED, None)]))
    array = graph.constants["c"].array
    assert array.shape == np.shape(expected) and array.tolist() == expected.tolist() and not graph.nodes


def test_a_sparse_initializer_is_a_constant_and_stays_sparse() -> None:
    values = numpy_helper.from_array(np.float32([5, 6]), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 3]), "i"), [2, 2])
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 2, 2)], [tensor("y", 2, 2)],
                  sparse_initializer=[sparse])
    graph = read(proto)
    np.testing.assert_array_equal(graph.constants["w"].array, [[0, 5], [0, 6]])
    assert list(to_model_proto(graph).graph.sparse_initializer) == [sparse]


def test_a_sparse_constant_stays_a_node() -> None:
    """ONNX's own inference takes a sparse initializer for no input of Add, but the node."""
    values = numpy_helper.from_array(np.float32([5, 6]), "v")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 3]), "i"), [2, 2])
    proto = model([helper.make_node("Constant", [], ["w"], sparse_value=sparse),
                   helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 2, 2)], [tensor("y", 2, 2)])
    written = to_model_proto(read(proto))
    onnx.checker.check_model(written, full_check=True)
    assert written.graph.node == proto.graph.node


def test_unknown_operators_pass_verbatim() -> None:
    attrs = {"f": 0.1, "i": 3, "s": b"\xff", "ints": [1], "strings": ["a"], "empty": [],
             "t": numpy_helper.from_array(np.float32([1])), "g": helper.make_graph([], "inner", [], [])}
    node = helper.make_node("Foo", ["x", "", "x"], ["", "y"], "n", domain="my.domain",
                            **{key: value for key, value in attrs.items() if key != "empty"})
    node.attribute.add(name="empty", type=onnx.AttributeProto.FLOATS)
    node.attribute.add(name="type", type=onnx.AttributeProto.TYPE_PROTO).tp.tensor_type.elem_type = 1
    node.metadata_props.add(key="k", value="v")
    stated = tensor("y", 7)
    proto = model([node, helper.make_node("Relu", ["y"], ["z"])], [tensor("x", 2)], [tensor("z", None)],
                  value_info=[stated])
    proto.opset_import.add(domain="my.domain", version=2)
    graph = read(proto)
    assert graph.types["y"] == TensorType("float32")  # the stated element type, not the stated shape
    written = to_model_proto(graph)
    got, want = written.graph.node[0], proto.graph.node[0]
    assert sorted(map(str, got.attribute)) == sorted(map(str, want.attribute))
    got.ClearField("attribute"), want.ClearField("attribute")
    assert got == want and list(written.graph.value_info) == [stated]


def test_an_attribute_that_the_schema_lacks_makes_a_node_opaque() -> None:
    graph = read(model([helper.make_node("Relu", ["x"], ["y"], odd=1)], [tensor("x", 2)], [tensor("y", 2)]))
    assert graph.nodes[0].is_opaque and graph.nodes[0].attrs == {"odd": 1}


def test_an_opset_from_the_future_is_kept_as_it_is() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 2)], [tensor("y", 2)], opset=999)
    graph = read(proto)
    assert graph.nodes[0].is_opaque
    assert to_model_proto(graph) == proto


def test_outputs_that_are_inputs_constants_or_listed_twice() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", 2)],
                  [tensor("x", 2), tensor("w", 2), tensor("y", 2)], {"w": np.ones(2, np.float32)})
    written = to_model_proto(read(proto))
    assert [info.name for info in written.graph.output] == ["x", "w", "y"]
    assert outputs_of(written, {"x": np.float32([-1, 1])})[1].tolist() == [1, 1]


def test_shadowed_names_of_branches_become_names_of_their_own() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])], op, [],
                                 [tensor("y", 2)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    proto = model([helper.make_node("Exp", ["x"], ["t"]), node], [tensor("x", 2), tensor("c", kind=TensorProto.BOOL)],
                  [tensor("y", 2)])
    graph = read(proto)
    inner = [set(each.names()) - {"x"} for each in graph.nodes[-1].graphs]
    assert not inner[0] & {"t", "y"} and not inner[1] & {"t", "y"} and not inner[0] & inner[1]
    onnx.checker.check_model(to_model_proto(graph), full_check=True)


def test_a_branch_that_hands_out_an_outer_value_gets_an_identity() -> None:
    graph = parse_graph("graph opset 17 (c: bool[], x: float32[2]) -> (y) { y = If(c, then_branch=graph () -> (x) {},"
                        " else_branch=graph () -> (z) { z = Neg(x) }) }")
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    feeds = {"c": np.array(True), "x": np.float32([1, 2])}
    assert outputs_of(written, feeds)[0].tolist() == [1, 2]


def test_sequences_are_handed_through() -> None:
    proto = model([helper.make_node("SequenceConstruct", ["x"], ["s"])], [tensor("x", 2)],
                  [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)])
    graph = read(proto)
    assert isinstance(graph.declared["s"], OtherType)
    assert to_model_proto(graph) == proto


def test_writing_is_deterministic_and_settles() -> None:
    graph = parse_graph("graph (x: float32[2, n]) -> (y) { a = ReduceSum(x, axes=[0])\n y = Clip(a, min=0, max=1) }")
    first = proto_bytes(graph)
    assert first == proto_bytes(graph.copy()) == proto_bytes(load(first))


def test_equal_new_constants_are_written_once() -> None:
    graph = parse_graph("graph (x: float32[1, n]) -> (y) { a = Squeeze(x, axes=[0])\n y = Unsqueeze(a, axes=[0]) }")
    assert len(to_model_proto(graph).graph.initializer) == 1


# Opsets


def test_another_opset_rewrites_the_forms() -> None:
    graph = parse_graph("graph opset 13 (x: float32[2, 3]) -> (y) { y = ReduceSum(x, axes=[-1], keepdims=0) }")
    old = to_model_proto(graph, 11)
    onnx.checker.check_model(old, full_check=True)
    assert [each.name for each in old.graph.node[0].attribute] == ["axes", "keepdims"]
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert outputs_of(old, feeds)[0].tolist() == [3, 12]


def test_axes_count_from_the_front_before_opset_11() -> None:
    graph = parse_graph("graph opset 9 (x: float32[2, 3]) -> (y) { y = ReduceSum(x, axes=[-1]) }")
    written = to_model_proto(graph)
    assert list(written.graph.node[0].attribute[0].ints) == [1]
    onnx.checker.check_model(written, full_check=True)


@pytest.mark.parametrize(("text", "opset", "reason"), [
    ("y = Gelu(x)", 13, "no Gelu"), ("y = Relu(x)", 999, "999"),
    ("c = Cast(x, to=16)\n y = Cast(c, to=1)", 9, "bfloat16|Cast"),
])  # fmt: skip
def test_what_an_opset_lacks_is_a_reason(text: str, opset: int, reason: str) -> None:
    graph = parse_graph(f"graph opset 21 (x: float32[2]) -> (y) {{ {text} }}")
    problems = [found for node in graph.nodes if (found := writable(node, opset, graph))]
    assert problems
    with pytest.raises(InvalidOption, match=reason):
        to_model_proto(graph, opset)
    assert all(writable(node, 21, graph) is None for node in graph.nodes)


def test_reasons_reach_into_nested_graphs() -> None:
    graph = parse_graph("graph opset 21 (c: bool[], x: float32[2]) -> (y) { y = If(c, then_branch=graph () -> (g)"
                        " { g = Gelu(x) }, else_branch=graph () -> (n) { n = Neg(x) }) }")
    assert "Gelu" in str(writable(graph.nodes[0], 13, graph))


def test_an_opaque_node_moves_only_where_it_means_the_same() -> None:
    graph = parse_graph("graph opset 13 (x: float32[2]) -> (y) { a = opaque Relu(x)\n y = my.Foo(a) }")
    assert writable(graph.nodes[0], 13, graph) is None and writable(graph.nodes[0], 14, graph) is not None
    assert writable(graph.nodes[1], 14, graph) is None


def test_static_numbers_take_the_element_type_of_the_data() -> None:
    graph = parse_graph("graph (x: float16[2], i: int32[2]) -> (a, b) { a = Clip(x, min=0, max=6)\n"
                        " b = Clip(i, min=-5, max=2147483647) }")
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    kinds = {each.name: (each.data_type, numpy_helper.to_array(each).item()) for each in written.graph.initializer}
    assert kinds == {"a.min": (10, 0.0), "a.max": (10, 6.0), "b.min": (6, -5), "b.max": (6, 2147483647)}


def test_a_double_that_float32_cannot_hold_stays_an_input() -> None:
    proto = model([helper.make_node("Clip", ["x", "lo"], ["y"])], [tensor("x", 2, kind=TensorProto.DOUBLE)],
                  [tensor("y", 2, kind=TensorProto.DOUBLE)], {"lo": np.float64(0.1)})
    graph = read(proto)
    assert graph.nodes[0].attrs["min"] is RUNTIME
    assert numpy_helper.to_array(to_model_proto(graph).graph.initializer[0]) == np.float64(0.1)


def test_a_bound_whose_type_nobody_knows_stays_an_input() -> None:
    proto = model([helper.make_node("Foo", [], ["x"], domain="my"), helper.make_node("Clip", ["x", "lo"], ["y"])], [],
                  [tensor("y", None)], {"lo": np.float16(0.5)})
    proto.opset_import.add(domain="my", version=1)
    graph = read(proto)
    assert graph.nodes[1].inputs == ("x", "lo") and graph.nodes[1].attrs["min"] is RUNTIME
    assert to_model_proto(graph).graph.initializer[0].data_type == TensorProto.FLOAT16


def test_an_empty_list_at_an_input_stays_an_attribute() -> None:
    node = helper.make_node("Resize", ["x", "roi", "scales"], ["y"])
    proto = model([node], [tensor("x", 1, 1, 2, 2)], [tensor("y", 1, 1, 4, 4)],
                  {"roi": np.zeros(0, np.float32), "scales": np.float32([1, 1, 2, 2])}, opset=11)
    graph = read(proto)
    assert (graph.nodes[0].inputs, graph.nodes[0].attrs["roi"]) == (("x",), ())
    written = to_model_proto(graph)
    onnx.checker.check_model(written, full_check=True)
    feeds = {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)}
    np.testing.assert_array_equal(outputs_of(written, feeds)[0], outputs_of(proto, feeds)[0])


# Files


def external(folder: Path, data: bytes, **entries: str) -> Path:
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", 300)], [tensor("y", 300)])
    weight = proto.graph.initializer.add(name="w", data_type=1, dims=[300])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **entries}.items():
        weight.external_data.add(key=key, value=value)
    (folder / "w.bin").write_bytes(data)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


WEIGHTS = np.arange(300, dtype=np.float32)


def test_external_weights_stay_external(tmp_path: Path) -> None:
    path = external(tmp_path, b"head" + WEIGHTS.tobytes(), offset="4", length="1200")
    out = tmp_path / "sub" / "out.onnx"
    out.parent.mkdir()
    save(load(path), out)
    assert sorted(each.name for each in out.parent.iterdir()) == ["out.onnx", "out.onnx.data"]
    assert out.stat().st_size < 1000
    np.testing.assert_array_equal(load(out).constants["w"].array, WEIGHTS)
    onnx.checker.check_model(str(out), full_check=True)


def test_a_model_may_be_written_over_itself(tmp_path: Path) -> None:
    path = external(tmp_path, WEIGHTS.tobytes())
    save(load(path), path)
    save(load(path), path)
    np.testing.assert_array_equal(load(path).constants["w"].array, WEIGHTS)


def test_data_of_the_input_is_never_overwritten(tmp_path: Path) -> None:
    path = external(tmp_path, WEIGHTS.tobytes(), location="out.onnx.data")
    (tmp_path / "w.bin").rename(tmp_path / "out.onnx.data")
    save(load(path), tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == WEIGHTS.tobytes()
    np.testing.assert_array_equal(load(tmp_path / "out.onnx").constants["w"].array, WEIGHTS)


def test_data_are_not_written_over_and_go_with_their_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = load(external(first, WEIGHTS.tobytes())), load(external(second, (WEIGHTS + 1).tobytes()))
    out = tmp_path / "out.onnx"
    (tmp_path / "out.onnx.data").write_bytes(b"of someone else")
    save(one, out)
    save(two, out)
    save(two, tmp_path / "other.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == b"of someone else"
    assert {each.name for each in tmp_path.iterdir()} == {
        "first", "second", "out.onnx", "out.onnx.data", "out.onnx.2.data", "other.onnx", "other.onnx.data"}
    for path in (out, tmp_path / "other.onnx"):
        np.testing.assert_array_equal(load(path).constants["w"].array, WEIGHTS + 1)
    copy = tmp_path / "copy.onnx"  # it reads the data of out.onnx, which stay when out.onnx is written anew
    copy.write_bytes(out.read_bytes())
    save(load(copy), out)
    np.testing.assert_array_equal(load(copy).constants["w"].array, WEIGHTS + 1)


def test_untouched_weights_go_from_file_to_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(external(tmp_path, b"head" + WEIGHTS.tobytes(), offset="4"))

    def refused(constant: Constant) -> memoryview:
        raise AssertionError(f"{constant} went through the process")

    monkeypatch.setattr(files, "to_bytes", refused)
    save(graph, tmp_path / "out.onnx")
    np.testing.assert_array_equal(load(tmp_path / "out.onnx").constants["w"].array, WEIGHTS)
    monkeypatch.undo()
    (tmp_path / "new.bin").write_bytes(b"head" + bytes(1200))
    (tmp_path / "new.bin").replace(tmp_path / "w.bin")  # the path leads to another file now, the graph does not
    save(graph, tmp_path / "again.onnx")
    np.testing.assert_array_equal(load(tmp_path / "again.onnx").constants["w"].array, WEIGHTS)


def save_and_die(graph: Graph, out: Path, turns: int) -> int:
    """Save in a child process that is killed before it renames a file for the `turns + 1`-th time; its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    left, replace = iter(range(turns)), os.replace

    def dying(old: Path, new: Path) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(old, new)

    try:
        os.replace = dying  # type: ignore[assignment]
        save(graph, out)
    finally:
        os._exit(0)


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("present", [False, True])
def test_a_process_that_is_killed_leaves_no_half_model(tmp_path: Path, turns: int, present: bool) -> None:
    folder, out = tmp_path / "in", tmp_path / "out.onnx"
    folder.mkdir()
    if present:
        save(load(external(folder, WEIGHTS.tobytes())), out)
    status = save_and_die(load(external(folder, (WEIGHTS + 1).tobytes())), out, turns)
    assert status == (0 if turns == 2 else signal.SIGKILL)
    new = turns == 2
    assert out.exists() == (present or new)
    if out.exists():
        np.testing.assert_array_equal(load(out).constants["w"].array, WEIGHTS + new)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_beside_a_rename_leaves_no_model_without_its_data(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int, after: bool) -> None:
    folder, out, done, replace = tmp_path / "in", tmp_path / "out.onnx", iter(range(2)), os.replace
    folder.mkdir()
    graph = load(external(folder, WEIGHTS.tobytes()))

    def interrupted(old: Path, new: Path) -> None:
        here = next(done) == turn
        if not here or after:
            replace(old, new)
        if here:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(graph, out)
    assert out.exists() == (turn == 1 and after)
    if out.exists():
        np.testing.assert_array_equal(load(out).constants["w"].array, WEIGHTS)


def test_nothing_is_left_behind_by_a_failure(tmp_path: Path) -> None:
    graph = parse_graph("graph opset 21 (x: float32[2]) -> (y) { y = Gelu(x) }")
    with pytest.raises(InvalidOption):
        save_onnx(graph, tmp_path / "m.onnx", opset=13)
    with pytest.raises(InvalidOption, match="cannot be written"):
        save_onnx(graph, tmp_path / "missing" / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_four_bit_elements_keep_their_values() -> None:
    weight = helper.make_tensor("w", TensorProto.INT4, [3], [-8, 7, 1])
    proto = model([helper.make_node("Identity", ["w"], ["y"])], [], [tensor("y", 3, kind=TensorProto.INT4)], opset=21,
                  ir=10)
    proto.graph.initializer.append(weight)
    graph = read(proto)
    assert graph.constants["w"].array.astype(int).tolist() == [-8, 7, 1]
    again = read(to_model_proto(graph))
    assert again.constants["w"].array.astype(int).tolist() == [-8, 7, 1]


def test_names_for_new_constants_are_none_that_onnx_runtime_makes_itself() -> None:
    """ONNX Runtime 1.32 makes a Split of the Gathers, with a constant that it calls squeeze_axes without looking."""
    onnxruntime = pytest.importorskip("onnxruntime")
    graph = parse_graph("""graph opset 17 (x: float32[1, 3, 4]) -> (p, q, r) {
      squeeze = Squeeze(x, axes=[0])
      p = Gather(squeeze, i, axis=0)
      q = Gather(squeeze, j, axis=0)
      r = Gather(squeeze, k, axis=0)
      i = constant int64[] 0
      j = constant int64[] 1
      k = constant int64[] 2
    }""")
    session = onnxruntime.InferenceSession(proto_bytes(graph), providers=["CPUExecutionProvider"])
    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    for found, expected in zip(session.run(None, {"x": x}), x[0], strict=True):
        np.testing.assert_array_equal(found, expected)
