"""`egraft grad` and `egraft train-step`: files that ONNX Runtime runs, numbers against formulas, refusals, and a
validation that notices what is wrong."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import egraft
from graphs import load, save
from graphs.errors import InvalidOption, ValidationFailed
from graphs.text import parse_graph
from optimizer.command_line import main
from optimizer.deriving import TrainOptions, grad, iterations, train_step
from optimizer.deriving.differences import place_of
from optimizer.deriving.report import _settings
from optimizer.deriving.run import optimizer_of
from runtime.gradients import rows
from runtime.gradients.rows import pointwise
from runtime.training import SGD, add_loss, training_step

Output = pytest.CaptureFixture[str]
MODEL = """graph "m" opset 18 (x: float32[n, 3], ids: int64[n]) -> (y, total) {
  w = constant float32[3, 2] [0.5, -1, 0.25, 2, -0.75, 1.5]
  shift = constant float32[2] [0.1, -0.2]
  unused = constant float32[2] [1, 1]
  p = MatMul(x, w) y = Add(p, shift) squares = Mul(y, y) total = ReduceSum(squares, keepdims=0, axes=[0, 1])
  extra = Add(unused, shift) }"""
X = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
T = np.random.default_rng(6).normal(size=(4, 2)).astype(np.float32)
IDS = np.zeros(4, np.int64)
W = np.array([[0.5, -1], [0.25, 2], [-0.75, 1.5]], np.float32)
SHIFT = np.array([0.1, -0.2], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(parse_graph(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def command(*words: object) -> int:
    return main([str(word) for word in words])


def in_onnxruntime(path: Path) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(str(path), full_check=True)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_a_model_with_gradients(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, report = tmp_path / "grad.onnx", tmp_path / "report.json"
    assert command("grad", model, "--loss", "mse", "--wrt", "w,sh*,unused", "-o", out, "--report", report) == 0
    text = capsys.readouterr().out
    assert "does not depend on unused" in text and "passed: derivatives against central differences" in text
    session = in_onnxruntime(out)
    assert [each.name for each in session.get_inputs()] == ["x", "ids", "target"]
    assert session.get_inputs()[0].shape == ["n", 3] and session.get_inputs()[2].shape == ["n", 2]
    found = dict(zip([each.name for each in session.get_outputs()],
                     session.run(None, {"x": X, "ids": IDS, "target": T})))
    error = X @ W + SHIFT - T
    np.testing.assert_allclose(found["loss"], np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(found["grad_w"], 2 / T.size * X.T @ error, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["grad_shift"], 2 / T.size * error.sum(0), rtol=1e-4, atol=1e-6)
    assert not found["grad_unused"].any()
    facts = json.loads(report.read_text())["derivation"]
    assert [row["connected"] for row in facts["wrt"]] == [True, True, False]
    assert facts["validation"]["ok"] and facts["validation"]["difference"] < 1e-6
    assert {row["runtime"] for row in facts["validation"]["own_types"]} == {"egraft:cpu", "onnxruntime:cpu"}


def test_a_loss_of_the_model_and_inner_values(model: Path) -> None:
    found = grad(model, loss="total", wrt=["x", "p"])
    session = onnxruntime.InferenceSession(_bytes(found.graph), providers=["CPUExecutionProvider"])
    gradient_x, gradient_p = session.run(["grad_x", "grad_p"], {"x": X, "ids": IDS})
    np.testing.assert_allclose(gradient_p, 2 * (X @ W + SHIFT), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient_x, 2 * (X @ W + SHIFT) @ W.T, rtol=1e-4, atol=1e-6)
    assert found.report["derivation"]["validation"]["ok"]


def _bytes(graph: egraft.Graph) -> bytes:
    from graphs.onnx_io import proto_bytes

    return bytes(proto_bytes(graph))


def test_forward_mode(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "forward.onnx"
    assert command("grad", model, "--mode", "forward", "--wrt", "x", "-o", out, "--quiet") == 0
    move = np.ones_like(X)
    y, total = in_onnxruntime(out).run(["tangent_y", "tangent_total"], {"x": X, "ids": IDS, "tangent_x": move})
    np.testing.assert_allclose(y, move @ W, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(total, np.sum(2 * (X @ W + SHIFT) * (move @ W)), rtol=1e-4)


def test_a_training_step_that_a_user_loops(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, report = tmp_path / "step.onnx", tmp_path / "report.html"
    assert command("train-step", model, "--loss", "mse", "--optimizer", "momentum", "--lr", "rate", "--freeze", "sh*",
                   "-o", out, "--report", report) == 0
    assert "w -> next_w, w_momentum -> next_w_momentum" in capsys.readouterr().out
    assert "next_w_momentum" in report.read_text()
    session, state = in_onnxruntime(out), dict[str, np.ndarray]()
    handed_on = json.loads(session.get_modelmeta().custom_metadata_map["egraft.training_state"])
    assert handed_on == {"w": "next_w", "w_momentum": "next_w_momentum"}
    w, buffer = np.asarray(W, np.float64), np.zeros(W.shape)
    feeds = {"x": X, "ids": IDS, "target": T, "rate": np.array(0.1, np.float32)}
    for _ in range(4):
        values = session.run(list(handed_on.values()), {**feeds, **state})
        state = dict(zip(handed_on, values))
        buffer = 0.9 * buffer + 2 / T.size * X.T @ (X @ w + SHIFT - T)
        w = w - 0.1 * buffer
        np.testing.assert_allclose(state["w"], w, rtol=1e-4, atol=1e-6)


def test_a_superoptimized_step_follows_the_step(model: Path, tmp_path: Path) -> None:
    out, trace, report = tmp_path / "fast.onnx", tmp_path / "trace.json", tmp_path / "report.json"
    assert command("train-step", model, "--loss", "mse", "--optimizer", "adamw", "-o", out, "--optimize", "--target",
                   "roofline", "--effort", "low", "--timings", tmp_path / "t.db", "--trace", trace, "--report",
                   report, "--quiet") == 0
    found = json.loads(report.read_text())
    steps = found["derivation"]["iterations"]
    assert steps["ok"] and {"egraft:cpu, optimized", "onnxruntime:cpu, optimized"} <= set(steps["losses"])
    assert found["after"]["nodes"] < found["before"]["nodes"] and json.loads(trace.read_text())["steps"]
    assert load(out).metadata["egraft.training_state"] and "w" in load(out).defaults
    in_onnxruntime(out)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(("words", "told"), [
    (["--loss", "y"], "--loss y: it is float32[n, 2]"),
    (["--loss", "mes"], "did you mean mse?"),
    ([], "no loss is given"),
    (["--loss", "mse", "--output", "ids"], "int64[n]: a loss is of floats"),
    (["--loss", "mse", "--labels"], "mse has no labels"),
    (["--loss", "total", "--output", "y"], "'total' is a value of the model"),
    (["--loss", "mse", "--wrt", "wt"], "did you mean w?"),
    (["--loss", "mse", "--wrt", "q*"], "inputs and initializers that hold floats: x, target, w, shift, unused"),
    (["--loss", "mse", "--wrt", "ids"], "only floats have derivatives"),
    (["--loss", "mse", "--effort", "low"], "add --optimize"),
    (["--mode", "forward"], "needs what moves"),
    (["--mode", "sideways"], "'reverse' or 'forward'"),
])  # fmt: skip
def test_what_cannot_be_meant(model: Path, tmp_path: Path, capsys: Output, words: list[str], told: str) -> None:
    assert command("grad", model, "-o", tmp_path / "out.onnx", *words) == 2
    found = capsys.readouterr().err
    assert told in found and found.startswith("egraft: error[invalid-option]") and found.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("settings", "told"), [
    ({"optimizer": "adam", "momentum": 0.5}, "adam has no such number; it takes --lr, --beta1"),
    ({"lr": -1}, "from 0 up"),
    ({"freeze": ["*"]}, "no parameter is left"),
    ({"wrt": ["y"]}, "no initializer and no input"),
])
def test_steps_that_cannot_be_meant(model: Path, settings: dict, told: str) -> None:
    with pytest.raises(InvalidOption, match=told.replace("*", r"\*")):
        train_step(model, loss="mse", **settings)


def test_an_operator_without_a_row_is_named(tmp_path: Path, capsys: Output) -> None:
    save(parse_graph("""graph "m" opset 18 (x: float32[4]) -> (y) {
      a = Relu(x) u, i, j, c = Unique(a, axis=0) y = ReduceSum(u, keepdims=0, axes=[0]) }"""), tmp_path / "m.onnx")
    assert command("grad", tmp_path / "m.onnx", "--loss", "y", "--wrt", "x", "-o", tmp_path / "o.onnx") == 2
    found = capsys.readouterr().err
    assert "not-differentiable" in found and "Unique" in found and "--freeze" in found


def test_the_settings_of_an_optimizer_are_words() -> None:
    told = _settings({"name": "muon", "steps": 5, "numbers": [3.4, -4.8], "others": {"beta1": 0.9, "counts": True}})
    assert told == "steps 5, numbers 3.4 -4.8; others by adamw: beta1 0.9"


def test_numbers_reach_the_optimizer() -> None:
    muon = optimizer_of(TrainOptions(optimizer="muon", lr=0.5, momentum=0.25, beta2=0.5, weight_decay=0.0))
    assert (muon.learning_rate, muon.momentum, muon.others.beta2, muon.weight_decay) == (0.5, 0.25, 0.5, 0.0)  # type: ignore[attr-defined]
    assert optimizer_of(TrainOptions(optimizer="momentum", lr="rate")) == SGD("rate", momentum=0.9)


# ---------------------------------------------------------------- the validation notices


def test_a_wrong_row_is_noticed_and_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**rows.table(), ("", "Add"): pointwise(lambda s, g: g, lambda s, g: g * 1.01)}
    monkeypatch.setattr(import_module("runtime.gradients.reverse"), "table", lambda: wrong)
    with pytest.raises(ValidationFailed, match="wrong along shift"):
        grad(model, loss="mse")
    monkeypatch.undo()
    assert grad(model, loss="mse").report["derivation"]["validation"]["ok"]


def test_a_function_of_jumps_is_not_called_validated() -> None:
    graph = parse_graph("""graph "m" opset 18 (x: float32[64]) -> (y) {
      k = constant float32[] 30000000
      a = Mul(x, k) b = Round(a) c = Mul(b, x) y = ReduceSum(c, keepdims=0, axes=[0]) }""")
    found = grad(graph, loss="y", wrt=["x"]).report["derivation"]
    assert found["validation"]["status"] == "not validated" and "do not settle" in found["warnings"][0]


def test_a_gradient_of_rounding_alone_is_no_yardstick() -> None:
    """What is added to all elements before their mean is taken off has the derivative 0, but for rounding."""
    graph = parse_graph("""graph "m" opset 18 (x: float32[64], c: float32[1]) -> (y) {
      a = Add(x, c) m = ReduceMean(a, axes=[0]) d = Sub(a, m) e = Exp(d) y = ReduceSum(e, keepdims=0, axes=[0]) }""")
    rows = grad(graph, loss="y", wrt=["x", "c"]).report["derivation"]["validation"]["own_types"]
    assert all(row["of"] == "grad_x" and row["difference"] < 1e-5 for row in rows)


def test_ties_are_not_called_wrong() -> None:
    """The derivative of Relu at 0 is 0, and differences see the half of its two sides."""
    tie = parse_graph("""graph "m" opset 18 (x: float32[2]) -> (y) {
      zero = constant float32[2] [0, 0] w = constant float32[2] [1, 1]
      a = Mul(w, zero) b = Relu(a) c = Mul(b, x) y = ReduceSum(c, keepdims=0, axes=[0]) }""")
    found = grad(tie, loss="y", wrt=["a"]).report["derivation"]["validation"]
    assert found["status"] == "not validated"


def test_a_step_that_strays_is_noticed(model: Path) -> None:
    graph = add_loss(load(model), "mse", "y")
    step, other = (training_step(graph, "loss", SGD(rate), ["w", "shift"]) for rate in (0.01, 0.0101))
    place, _ = place_of(graph, "loss", 0, None, None)
    assert place is not None
    assert iterations.check(step, step, "loss", place, 5, 1).ok
    found = iterations.check(step, other, "loss", place, 5, 1)
    assert found.status == "failed" and "strays" in found.reason


def test_a_step_that_diverges_is_not_called_validated(model: Path) -> None:
    found = train_step(model, loss="mse", lr=1e30).report["derivation"]
    assert not found["iterations"]["ok"] and "lower learning rate" in found["iterations"]["reason"]


def test_names_of_the_package() -> None:
    assert egraft.grad is grad and egraft.train_step is train_step and egraft.training_step is training_step
