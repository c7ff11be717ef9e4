"""Discovering fusions for a GPU: the emulation computes, and a clock that the tests wind says what takes how long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model.targets import find_target
from cost_model.targets.cuda import EgraftCuda
from cost_model.timings import Timings
from graphs.errors import InvalidOption
from graphs.ir import Graph, is_fused
from graphs.text import parse_graph
from runtime import Session, run
from runtime.codegen import Kernel, emulation
from runtime.codegen.c import cuda
from runtime.cuda.emulated import EmulatedDevice
from runtime.feeds import draw
from runtime.fusion import VARIANT
from search.fusions import discover, takes_fusions
from search.fusions.apart import Apart, Trial
from search.fusions.enumerate import enumerate_groups
from search.fusions.gpu import kernel_text, measured_on
from search.fusions.trials import CHILD
from tests.runtime.cuda.wound import LAUNCH, ROW, Wound

pytestmark = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
SOFTMAX = """graph "g" opset 18 (x: float32[3, 40], m: float32[1, 40]) -> (y) {
  c = constant float32[] 0.125
  s = Mul(x, c)
  a = Add(s, m)
  y = Softmax(a)
}"""
PRODUCT = """graph "g" opset 18 (x: float32[4, 6], w: float32[6, 5], b: float32[5]) -> (y) {
  p = MatMul(x, w)
  q = Add(p, b)
  y = Tanh(q)
}"""
def target() -> EgraftCuda:
    return EgraftCuda(Wound())


def trying(where: EgraftCuda, tried: list[str]) -> Callable[[Graph, bool, int], Trial | None]:
    """Candidates are tried here, and named."""
    def attempt(body: Graph, exact: bool, threads: int) -> Trial | None:
        tried.append(" ".join(node.op for node in body.nodes))
        return measured_on(where, body, exact)

    return attempt


def fused(graph: Graph) -> list[str]:
    return [str(node.attrs.get(VARIANT, "")) for node in graph.nodes if is_fused(node)]


def test_the_fastest_way_to_launch_is_found_kept_and_run() -> None:
    graph, where, tried, timings = parse_graph(SOFTMAX), target(), list[str](), Timings(":memory:")
    found = discover(graph, {}, timings, attempt=trying(where, tried), target=where)
    assert fused(found.graph) == ["c128r1"] and tried[0] == "Mul Add Softmax" and found.note == ""
    (fusion,) = found.fusions
    assert fusion.fused == pytest.approx(LAUNCH) and fusion.unfused == pytest.approx(3 * LAUNCH + 3 * ROW)
    assert fusion.variant == "c128r1" and fusion.to_dict()["variant"] == "c128r1"
    feeds = draw(graph, 0)
    session = Session(found.graph, target="egraft:cuda", device=EmulatedDevice())
    np.testing.assert_allclose(session.run(feeds)["y"], run(graph, feeds)["y"], rtol=1e-5, atol=1e-6)
    assert session.report.kernels == 1  # type: ignore[attr-defined]
    (record,) = [each for each in timings.records("egraft:cuda", "fusion") if each.note["verdict"] == "faster"]
    assert record.fingerprint == where.fingerprint.digest and record.note["variant"] == "c128r1"
    again = discover(graph, {}, timings, attempt=trying(where, tried), target=where)
    assert fused(again.graph) == ["c128r1"] and len(tried) == len(set(tried)) and "measured" not in again.counts


def test_a_product_and_the_kernel_behind_it() -> None:
    graph, where = parse_graph(PRODUCT), target()
    found = discover(graph, {}, attempt=trying(where, []), target=where)
    assert [fusion.operators for fusion in found.fusions] in ([("MatMul", "Add", "Tanh")], [("Add", "Tanh")])
    text = kernel_text(found.fusions[0].body, False, found.fusions[0].variant)
    assert "EG_KERNEL(eg_fused)" in text and "tanh" in text and "#define" not in text
    whole = kernel_text(parse_graph(PRODUCT), False, "c128")
    assert whole.startswith("// cuBLAS: 1 x [4, 6] @ [6, 5] of float32\n// a block: 128 threads\n")


RESIDUAL = """graph "g" opset 18 (x: float32[4, 6], w: float32[6, 5], a: float32[4, 5], b: float32[4, 5]) -> (y, r) {
  r = Mul(a, b)
  p = MatMul(x, w)
  s = Add(p, r)
  y = Relu(s)
}"""
BESIDE = """graph "g" opset 18 (x: float32[4, 6], w: float32[6, 5], v: float32[6, 5], a: float32[4, 5]) -> (y, z) {
  p = MatMul(x, w)
  q = MatMul(x, v)
  s = Mul(p, a)
  y = Tanh(s)
  t = Add(q, a)
  z = Relu(t)
}"""


STREAM = """graph "g" opset 18 (x: float32[4, 6], w: float32[6, 8], c: float32[8], r: float32[4, 8], g: float32[8])
    -> (y, s) {
  p = Gemm(x, w, c)
  s = Add(p, r)
  y = LayerNormalization(s, g, axis=-1)
}"""


@pytest.mark.parametrize(("text", "operators", "launches"), [(STREAM, {"Gemm", "Add", "LayerNormalization"}, 2),
                                                             (RESIDUAL, {"Mul", "Add", "Relu"}, 2),
                                                             (BESIDE, {"Mul", "Tanh", "Add", "Relu"}, 3)])
def test_several_outputs_leave_the_kernel_behind_a_product(text: str, operators: set[str], launches: int) -> None:
    """On the processor what follows a product runs on its tiles, and one output leaves them; here it is a kernel."""
    graph, where = parse_graph(text), target()
    found = discover(graph, {}, attempt=trying(where, []), target=where)
    (fusion,) = found.fusions
    assert set(fusion.operators) == operators and len(fusion.body.outputs) == 2
    feeds = draw(graph, 0)
    session = Session(found.graph, target="egraft:cuda", device=EmulatedDevice())
    for name, right in run(graph, feeds).items():
        np.testing.assert_allclose(session.run(feeds)[name], right, rtol=1e-5, atol=1e-6)
    report: Any = session.report
    assert report.kernels + report.products == launches
    on_processor = enumerate_groups(graph, graph.types, 10_000, 99)
    assert not any(group.others and {graph.nodes[index].op for index in group.nodes} == operators
                   for group in on_processor.groups)


def test_what_is_constant_around_a_body_is_so_when_it_is_timed() -> None:
    """The Exp of weights is computed once, with fusion and without: it is no gain."""
    graph, where = parse_graph("""graph "g" opset 18 (x0: float32[4, 6], w1: float32[4, 6]) -> (y) {
      e = Exp(w1)
      a = Add(x0, e)
      y = Tanh(a)
    }"""), target()
    measured, _ = measured_on(where, graph, False)
    assert measured.unfused == pytest.approx(2 * (LAUNCH + ROW))


def test_what_is_not_faster_is_not_taken() -> None:
    graph, where = parse_graph(SOFTMAX), target()
    where.device.fused = 30e-6  # type: ignore[attr-defined]
    found = discover(graph, {}, attempt=trying(where, []), target=where)
    assert found.graph is graph and found.counts["slower"] >= 1


def test_a_wrong_kernel_is_faulty_and_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that leaves out a column, which the emulation finds, and one that computes with another number."""
    written = cuda.reading_of

    def wrong(*arguments: Any, **more: Any) -> cuda.Reading:
        reading = written(*arguments, **more)
        body = reading.kernel.body.replace("nc0 = 40;", "nc0 = 39;")
        kernel = Kernel(**{**vars(reading.kernel), "body": body})
        return cuda.Reading(kernel, reading.tensors)

    monkeypatch.setattr("runtime.codegen.c.readings.reading_of", wrong)
    graph, where = parse_graph(SOFTMAX), target()
    with pytest.raises(emulation.Faults):  # elements that nothing wrote are found by the emulation itself
        measured_on(where, graph, False)
    monkeypatch.setattr("runtime.codegen.c.readings.reading_of", lambda *arguments, **more: _shifted(
        written(*arguments, **more)))
    found = discover(graph, {}, attempt=trying(where, []), target=where)
    assert found.counts["faulty"] >= 1 and found.faults[0].startswith("Mul Add Softmax: y of ")
    assert not any("Mul" in fusion.operators for fusion in found.fusions)


def test_each_way_to_launch_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    written = cuda.reading_of

    def wrong(*arguments: Any, **more: Any) -> cuda.Reading:
        reading = written(*arguments, **more)
        return _shifted(reading) if reading.kernel.block == (512, 1) else reading

    monkeypatch.setattr("runtime.codegen.c.readings.reading_of", wrong)
    measured, samples = measured_on(target(), parse_graph(SOFTMAX), False)
    assert measured.verdict == "faulty" and measured.note.endswith("launched as c512r1") and not samples


def _shifted(reading: cuda.Reading) -> cuda.Reading:
    body = reading.kernel.body.replace("0.125f", "0.126f")
    return cuda.Reading(Kernel(**{**vars(reading.kernel), "body": body}), reading.tensors)


def test_what_has_no_kernel_is_impossible() -> None:
    where = target()
    for text, reason in (("y = MatMul(x, x)", "products of the library alone"),
                         ("y = Transpose(x, perm=[1, 0])", "views"), ("e = Exp(x)\n y = Det(e)", "NumPy")):
        graph = parse_graph(f'graph "g" opset 18 (x: float32[4, 4]) -> (y) {{\n{text}\n}}')
        measured, samples = measured_on(where, graph, False)
        assert measured.verdict == "impossible" and reason in measured.note and not samples


def test_records_of_a_gpu_that_is_elsewhere_give_the_same_graph(tmp_path: Path) -> None:
    graph, where, path = parse_graph(SOFTMAX), target(), tmp_path / "there.db"
    with Timings(str(path)) as timings:
        there = discover(graph, {}, timings, attempt=trying(where, []), target=where)
    here = discover(graph, {}, target=f"egraft:cuda@{path}")
    assert fused(here.graph) == fused(there.graph) == ["c128r1"]
    assert [each.to_dict() for each in here.fusions] == [each.to_dict() for each in there.fusions]
    other = discover(parse_graph(PRODUCT), {}, target=f"egraft:cuda@{path}")
    assert not other.groups and other.counts["left for want of budget"] >= 1


def test_a_frozen_database_tries_nothing() -> None:
    where, tried = target(), list[str]()
    found = discover(parse_graph(SOFTMAX), {}, Timings(":memory:", frozen=True), attempt=trying(where, tried),
                     target=where)
    assert not tried and not found.groups


def test_without_a_gpu_nothing_is_found_and_a_note_says_why() -> None:
    if find_target("egraft:cuda").available() is None:
        pytest.skip("a GPU is here")
    found = discover(parse_graph(SOFTMAX), {}, target="egraft:cuda")
    assert found.note and not found.groups and found.lines() == [f"no fusions: {found.note}"]
    apart = Apart(CHILD)  # the process in which candidates are tried opens the device first
    assert apart(parse_graph(SOFTMAX), False, 1) is None and apart(parse_graph(SOFTMAX), False, 1) is None
    assert "does not start: " in apart.note and "egraft:cuda" in apart.note
    apart.close()


def test_which_targets_there_are_fusions_for() -> None:
    assert [takes_fusions(name) for name in ("egraft:cpu", "egraft:cuda", "egraft:cuda@a.db", "onnxruntime:cpu")] == [
        True, True, True, False]
    with pytest.raises(InvalidOption):
        discover(parse_graph(SOFTMAX), {}, target="roofline")


