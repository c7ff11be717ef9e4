"""`ai.onnx.ml`: onnx.reference gives what ONNX Runtime gives, types are those of the values, models are optimized
around them and validated whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from graphs import TensorType
from graphs.dtypes import name_of
from graphs.errors import NotExecutable
from graphs.onnx_io import load_onnx, proto_bytes
from optimizer import optimize
from runtime import run, validate

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 4)).astype(np.float32)
IDS = np.array([[0, 2], [1, 1], [2, 0]], np.int64)
WORDS = np.array([["a", "b"], ["c", "z"]], object)


def tree(classes: int = 0, targets: int = 0) -> dict[str, Any]:
    """Two trees of a root and two leaves; each leaf has a weight for every class or target."""
    count, kind = (classes, "class") if classes else (targets, "target")
    leaves = [(tree_, node, each) for tree_ in (0, 1) for node in (1, 2) for each in range(count)]
    return dict(
        nodes_treeids=[0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2] * 2, nodes_featureids=[0, 0, 0, 3, 0, 0],
        nodes_values=[0.1, 0, 0, -0.2, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 0, 0, 2, 0, 0],
        nodes_missing_value_tracks_true=[0] * 6, nodes_hitrates=[1.0] * 6,
        **{f"{kind}_treeids": [each[0] for each in leaves], f"{kind}_nodeids": [each[1] for each in leaves],
           f"{kind}_ids": [each[2] for each in leaves],
           f"{kind}_weights": [float(w) for w in np.round(RNG.uniform(0.1, 1, len(leaves)), 3)]})


SVM = {"kernel_type": "LINEAR", "kernel_params": [0.5, 0.0, 3.0]}
VECTORS = [float(v) for v in np.round(RNG.normal(size=16), 3)]
CASES: list[tuple[str, str, dict[str, Any], list[np.ndarray], int]] = [
    ("scaler", "Scaler", {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 0.5]}, [X], 1),
    ("one scale", "Scaler", {"offset": [0.5], "scale": [2.0]}, [X], 1),
    ("scaler of integers", "Scaler", {"offset": [0.5], "scale": [2.0]}, [IDS], 1),
    *((f"normalizer {norm}", "Normalizer", {"norm": norm}, [X], 1) for norm in ("MAX", "L1", "L2")),
    ("binarizer", "Binarizer", {"threshold": 0.25}, [X], 1),
    ("imputer", "Imputer", {"imputed_value_floats": [7.0, 8.0, 9.0, 1.0], "replaced_value_float": float(X[1, 2])},
     [X], 1),
    ("imputer of integers", "Imputer", {"imputed_value_int64s": [9], "replaced_value_int64": 2}, [IDS], 1),
    ("labels to text", "LabelEncoder", {"keys_int64s": [0, 1], "values_strings": ["no", "yes"], "default_string": "?"},
     [IDS], 1),
    ("text to floats", "LabelEncoder", {"keys_strings": ["a", "b"], "values_floats": [0.5, 2.0], "default_float": -1.0},
     [WORDS], 1),
    ("one-hot", "OneHotEncoder", {"cats_int64s": [0, 1, 2], "zeros": 1}, [IDS], 1),
    ("one-hot of text", "OneHotEncoder", {"cats_strings": ["a", "c"], "zeros": 1}, [WORDS], 1),
    ("extractor", "ArrayFeatureExtractor", {}, [X, np.array([[3, 0, 0]], np.int64)], 1),
    ("features", "FeatureVectorizer", {"inputdimensions": [4, 2]}, [X, X[:, :2].copy()], 1),
    ("linear regressor", "LinearRegressor", {"coefficients": [0.1, 0.2, -0.3, 0.4] * 2, "intercepts": [0.5, -0.5],
                                                 "targets": 2}, [X], 1),
    ("linear classifier", "LinearClassifier", {
        "coefficients": [0.1, 0.2, -0.3, 0.4, 0.2, -0.5, 0.3, 0.1, -0.2, 0.1, 0.4, 0.2], "intercepts": [0.5, -0.5, 0.1],
        "classlabels_ints": [3, 5, 9], "multi_class": 0, "post_transform": "SOFTMAX"}, [X], 2),
    ("two classes of text", "LinearClassifier", {
        "coefficients": [-0.1, -0.2, 0.3, -0.4, 0.1, 0.2, -0.3, 0.4], "intercepts": [0.25, -0.25],
        "classlabels_strings": ["no", "yes"], "post_transform": "LOGISTIC"}, [X], 2),
    ("tree regressor", "TreeEnsembleRegressor", dict(n_targets=2, **tree(targets=2)), [X], 1),
    ("tree classifier", "TreeEnsembleClassifier", dict(classlabels_int64s=[0, 1, 2], **tree(classes=3)), [X], 2),
    ("tree classifier of text", "TreeEnsembleClassifier", dict(
        classlabels_strings=["a", "b", "c"], post_transform="SOFTMAX", **tree(classes=3)), [X], 2),
    ("svm regressor", "SVMRegressor", dict(n_supports=2, support_vectors=VECTORS[:8], rho=[0.3],
                                           coefficients=[0.4, -0.3], **SVM), [X], 1),
    ("svm classifier", "SVMClassifier", dict(classlabels_ints=[1, 2], vectors_per_class=[2, 2], rho=[0.1],
                                             support_vectors=VECTORS, coefficients=[0.4, -0.3, 0.2, 0.1],
                                                  **SVM), [X], 2),
    # Where onnx.reference alone would give something else.
    ("scaler of doubles", "Scaler", {"offset": [0.5], "scale": [2.0]}, [X.astype(np.float64)], 1),
    ("normalizer of integers", "Normalizer", {"norm": "L2"}, [IDS + 1], 1),
    ("features of integers", "FeatureVectorizer", {"inputdimensions": [2, 2]}, [IDS, IDS], 1),
    ("one-hot of floats", "OneHotEncoder", {"cats_int64s": [0, 1], "zeros": 1}, [X], 1),
    ("no intercepts", "LinearRegressor", {"coefficients": [0.1, 0.2, -0.3, 0.4]}, [X], 1),
    ("trees of doubles", "TreeEnsembleRegressor", dict(n_targets=2, **tree(targets=2)), [X.astype(np.float64)], 1),
]  # fmt: skip


def model_of(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[str]) -> bytes:
    """The first axis of every input has the size "n"."""
    infos = [onnx.helper.make_tensor_value_info(
        name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), ["n" if len(value) > 1 else 1, *value.shape[1:]])
        for name, value in feeds.items()]
    graph = onnx.helper.make_graph(nodes, "g", infos, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def by_onnxruntime(model: bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize(("op", "attrs", "inputs", "outputs"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])
def test_values_and_types(op: str, attrs: dict[str, Any], inputs: list[np.ndarray], outputs: int) -> None:
    feeds = {f"x{index}": value for index, value in enumerate(inputs)}
    names = [f"y{index}" for index in range(outputs)]
    model = model_of([onnx.helper.make_node(op, list(feeds), names, domain="ai.onnx.ml", **attrs)], feeds, names)
    graph = load_onnx(model)
    found, wanted = run(graph, feeds), by_onnxruntime(model, feeds)
    for name, right in zip(names, wanted):
        mine, right = found[name], np.asarray(right)
        if right.dtype.kind == "O":
            assert mine.tolist() == right.tolist()
        else:
            assert mine.dtype == right.dtype
            np.testing.assert_allclose(mine, right, rtol=2e-6, atol=1e-6)
        type_ = graph.type_of(name)
        assert isinstance(type_, TensorType) and type_.dtype == name_of(right.dtype)
        if type_.shape is not None:
            assert [len(inputs[0]) if dim == graph.types["x0"].shape[0] else dim for dim in type_.shape] == [  # type: ignore[union-attr]
                *right.shape]
        else:
            assert (op, name) == ("SVMClassifier", "y1")  # the specification leaves its scores open


@pytest.mark.parametrize(("op", "attrs"), [
    ("TreeEnsembleRegressor", dict(n_targets=1, post_transform="LOGISTIC", **tree(targets=1))),
    ("TreeEnsembleClassifier", dict(classlabels_int64s=[0, 1], post_transform="LOGISTIC", **tree(classes=1))),
    ("LinearClassifier", {"coefficients": [0.1, 0.2, -0.3, 0.4], "intercepts": [0.1], "classlabels_ints": [0, 1]}),
    ("SVMClassifier", dict(classlabels_ints=[1, 2, 5], vectors_per_class=[1, 1, 2], rho=[0.1, 0.2, -0.1],
         prob_a=[-1.0] * 3,
                           prob_b=[0.1] * 3, coefficients=[0.1] * 8, support_vectors=VECTORS, **SVM)),
    ("Scaler", {"offset": [0.5], "scale": [2.0]}),
])  # fmt: skip
def test_what_runtimes_compute_differently_is_not_executed(op: str, attrs: dict[str, Any]) -> None:
    outputs = ["y0", "y1"][: 2 if op.endswith("Classifier") else 1]
    model = model_of([onnx.helper.make_node(op, ["x0"], outputs, domain="ai.onnx.ml", **attrs)], {"x0": X}, outputs)
    by_onnxruntime(model, {"x0": X})  # it is a valid model
    if op == "Scaler":
        assert run(load_onnx(model), {"x0": X})["y0"].shape == X.shape
    else:
        with pytest.raises(NotExecutable):
            run(load_onnx(model), {"x0": X})


def around() -> tuple[bytes, dict[str, np.ndarray]]:
    """Rewrites before, between and after: x * 1, two Adds of constants, Neg of Neg."""
    make = onnx.helper.make_node
    constant = [make("Constant", [], [name], value=onnx.numpy_helper.from_array(np.array(value, np.float32)))
                for name, value in (("one", 1.0), ("a", 0.25), ("b", 0.5))]
    scaler, trees = CASES[0][2], dict(n_targets=2, **tree(targets=2))
    nodes = [*constant, make("Mul", ["x0", "one"], ["m"]),
             make("Scaler", ["m"], ["s"], domain="ai.onnx.ml", **scaler),
             make("Neg", ["s"], ["n1"]), make("Neg", ["n1"], ["n2"]),
             make("TreeEnsembleRegressor", ["n2"], ["t"], domain="ai.onnx.ml", **trees),
             make("Add", ["t", "a"], ["p"]), make("Add", ["p", "b"], ["y"])]
    return model_of(nodes, {"x0": X}, ["y"]), {"x0": X}


def test_a_model_is_optimized_around_them_and_validated_whole() -> None:
    model, feeds = around()
    graph = load_onnx(model)
    result = optimize(graph, target="roofline", effort="low", objective="nodes")
    assert [node.op for node in result.graph.nodes] == ["Scaler", "TreeEnsembleRegressor", "Add"]
    for mine, right in zip(by_onnxruntime(proto_bytes(result.graph), feeds), by_onnxruntime(model, feeds)):
        np.testing.assert_allclose(mine, right, rtol=1e-6)
    found = validate(graph, result.graph)
    assert found.ok and not found.executed["not_executed"], found.summary()
    assert len(found.executed["by_reference"]) == 2
    wrong = result.graph.copy()
    wrong.nodes[1].attrs["nodes_values"] = tuple(-value for value in wrong.nodes[1].attrs["nodes_values"])
    assert validate(graph, wrong).status == "failed"
