"""Training operators of ONNX (`ai.onnx.preview.training`): the cases that ship with ONNX, and what Gradient means."""

from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphs import load
from graphs.errors import NotDifferentiable
from runtime import Session
from runtime.training.preview import DOMAIN, without_training_operators

Case = tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]


def _of_optimizers() -> dict[str, Case]:
    from onnx.backend.test.case.node import _NodeTestCases

    for family in ("adagrad", "adam", "momentum"):  # reading them makes their cases
        import_module(f"onnx.backend.test.case.node.{family}")
    found = {}
    for case in _NodeTestCases:
        if DOMAIN not in {each.domain for each in case.model.opset_import}:
            continue
        ((inputs, outputs),) = case.data_sets
        graph = case.model.graph
        found[case.name] = (case.model, dict(zip((each.name for each in graph.input), inputs)),
                            dict(zip((each.name for each in graph.output), outputs)))
    return found


def _of_gradient() -> dict[str, Case]:
    found = {}
    for folder in sorted((Path(onnx.__file__).parent / "backend/test/data/simple").glob("test_gradient_*")):
        model = onnx.load(folder / "model.onnx")

        def read(kind: str, infos: object, folder: Path = folder) -> dict[str, np.ndarray]:
            return {info.name: numpy_helper.to_array(onnx.load_tensor(folder / f"test_data_set_0/{kind}_{k}.pb"))
                    for k, info in enumerate(infos)}  # type: ignore[arg-type, attr-defined]

        found[folder.name] = (model, read("input", model.graph.input), read("output", model.graph.output))
    return found


CASES = {**_of_optimizers(), **_of_gradient()}


@pytest.mark.parametrize("name", CASES)
def test_cases_that_ship_with_onnx(name: str) -> None:
    model, feeds, expected = CASES[name]
    graph = without_training_operators(load(model.SerializeToString()))
    assert {node.domain for node in graph.nodes} == {""} and DOMAIN not in graph.opsets
    found = Session(graph).run(feeds)
    for output, value in expected.items():
        np.testing.assert_allclose(found[output], value, rtol=2e-6, err_msg=output)
        assert found[output].dtype == value.dtype and found[output].shape == value.shape


def test_all_cases_are_there() -> None:
    assert len([name for name in CASES if "gradient" in name]) == 2 and len(CASES) >= 9


def _model(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> bytes:
    def values(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in names]

    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs))
    return helper.make_model(graph, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]).SerializeToString()


def test_a_gradient_at_other_values_than_it_names() -> None:
    """y = x z z; what is fed for x and z are two further inputs: dy/dx = z z there, and z is not differentiated by."""
    content = _model([
        helper.make_node("Mul", ["x", "z"], ["t"]), helper.make_node("Mul", ["t", "z"], ["y"]),
        helper.make_node("Gradient", ["p", "q"], ["g"], domain=DOMAIN, xs=["x"], zs=["z"], y="y"),
        helper.make_node("Mul", ["g", "p"], ["out"]),
    ], ["x", "z", "p", "q"], ["y", "out"])
    feeds = {name: np.float32([k + 1, 3]) for k, name in enumerate("xzpq")}
    found = Session(load(content)).run(feeds)
    np.testing.assert_allclose(found["out"], feeds["q"] ** 2 * feeds["p"])
    np.testing.assert_allclose(found["y"], feeds["x"] * feeds["z"] ** 2)


def test_a_gradient_of_a_gradient() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Mul", ["e", "x"], ["y"]),
             helper.make_node("Gradient", ["x"], ["g"], domain=DOMAIN, xs=["x"], y="y"),
             helper.make_node("Gradient", ["x"], ["h"], domain=DOMAIN, xs=["x"], y="g")]
    x = np.float32([0.5, -1])
    found = Session(load(_model(nodes, ["x"], ["g", "h"]))).run({"x": x})
    np.testing.assert_allclose(found["g"], np.exp(x) * (x + 1), rtol=1e-6)
    np.testing.assert_allclose(found["h"], np.exp(x) * (x + 2), rtol=1e-6)


def test_an_operator_without_a_row_is_named() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["y"], domain="my"),
             helper.make_node("Gradient", ["x"], ["g"], domain=DOMAIN, xs=["x"], y="y")]
    with pytest.raises(NotDifferentiable, match="Foo"):
        without_training_operators(load(_model(nodes, ["x"], ["g"])))
