"""What the fuzzer must not report: faults of the runtimes that it asks, and models that nothing runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphs.dims import DimLike
from graphs.onnx_io import to_model_proto
from graphs.text import parse_graph
from rules.check.mutate import INT64, _finished, _varied

from .__main__ import _show, case
from .checking import _refused, examine, reference, session

LOOP = ("m = constant int64[] 2 k = constant bool[] true y = Loop(m, k, body=graph (i: int64[], c: bool[]) -> "
        "(d, %s) { d = Identity(c) t = Identity(i) })")


def test_global_max_pool_of_other_ranks_is_not_asked() -> None:
    def run(shape: tuple[DimLike, ...]) -> np.ndarray:
        sizes = ", ".join(map(str, shape))
        graph = parse_graph(f'graph "g" opset 18 (x: float32[{sizes}]) -> (y) {{ y = GlobalMaxPool(x) }}')
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)  # type: ignore[arg-type]
        return reference(to_model_proto(graph))({"x": x})["y"]

    assert run((1, 2, 2, 2)).reshape(-1).tolist() == [3, 7]
    with pytest.raises(NotImplementedError):
        run((1, 2, 3))


def test_an_output_without_a_name_is_nobodys_input() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[1, 1, 2, 2]) -> (z) {
      y,  = MaxPool(x, kernel_shape=[2, 2])
      z = Clip(y, max=9.0)
    }""")
    run = reference(to_model_proto(graph))
    assert run({"x": np.array([[[[0, 0], [0, 1]]]], np.float32)})["z"].tolist() == [[[[1]]]]


def test_onnx_runtime_is_not_asked_for_a_maximum_of_nan() -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[1, 1, 2]) -> (y) { y = GlobalMaxPool(x) }')
    run = session(to_model_proto(graph))
    assert run({"x": np.array([[[1, 2]]], np.float32)})["y"].tolist() == [[[2]]]
    with pytest.raises(NotImplementedError, match="maximum of NaN"):  # it gives -3.4e38
        run({"x": np.array([[[np.nan, np.nan]]], np.float32)})


@pytest.mark.parametrize("scan, asked", [("i", False), ("t", True)])
def test_a_loop_that_gives_its_iteration_number(scan: str, asked: bool) -> None:
    model = to_model_proto(parse_graph(f'graph "g" opset 18 () -> (y) {{ {LOOP % scan} }}'))
    with pytest.raises(NotImplementedError, match="stacks scan outputs"):
        reference(model)({})  # it gives [[0], [1]]
    if asked:
        assert session(model)({})["y"].tolist() == [0, 1]
    else:
        with pytest.raises(NotImplementedError, match="ONNX Runtime"):
            session(model)({})


@pytest.mark.parametrize("dims, asked", [("", False), ("2", True), ("2, 3", False)])
def test_the_reference_evaluator_is_asked_for_scan_outputs_of_rank_1(dims: str, asked: bool) -> None:
    body = "body=graph (i: int64[], c: bool[]) -> (d, t) { d = Identity(c) t = Identity(x) }"
    model = to_model_proto(parse_graph(
        f'graph "g" opset 18 (x: float32[{dims}]) -> (y) {{ m = constant int64[] 3 k = constant bool[] true '
        f"y = Loop(m, k, {body}) }}"))
    if asked:
        assert reference(model)({"x": np.zeros(2, np.float32)})["y"].shape == (3, 2)
    else:
        with pytest.raises(NotImplementedError, match="rank 1"):  # it gives [3, 1], and [6, 3]
            reference(model)


@pytest.mark.parametrize("state, asked", [("i", False), ("t", True)])
def test_a_loop_that_ends_with_its_iteration_number(state: str, asked: bool) -> None:
    body = f"body=graph (i: int64[], c: bool[], s: int64[]) -> (d, {state}) {{ d = Identity(c) t = Identity(i) }}"
    model = to_model_proto(parse_graph(
        f'graph "g" opset 18 (s: int64[]) -> (y) {{ m = constant int64[] 2 y = Loop(m, , s, {body}) }}'))
    if asked:
        assert session(model)({"s": np.array(7)})["y"] == 1
    else:
        with pytest.raises(NotImplementedError, match="ONNX Runtime"):  # it gives 2
            session(model)({"s": np.array(7)})


@pytest.mark.parametrize("seed, kind", [(500225, "functions"), (501362, "mixed")])
def test_a_model_that_nothing_runs_is_invalid(seed: int, kind: str, tmp_path: Path) -> None:
    graph, precision, objective = case(seed, kind)
    outcome = examine(graph, precision, str(tmp_path / "timings.db"), objective, seed)
    assert outcome.invalid and not outcome.fault


@pytest.mark.parametrize("target, opset, body, found", [
    (9, 18, "", (False, False)), (4, 18, "", (True, False)),
    (4, 9, "y = BatchNormalization(i, o, z, z, o)", (True, True)),  # the reference evaluator is not asked for it
])
def test_who_refuses_a_model(target: int, opset: int, body: str, found: tuple[bool, bool]) -> None:
    graph = parse_graph(f'graph "g" opset {opset} (x: float32[n, 3], i: float32[1, 1, 2, 2]) -> (r, y) {{ '
                        f"o = constant float32[1] [1] z = constant float32[1] [0] s = constant int64[1] [{target}] "
                        f"r = Reshape(x, s, shape=runtime) {body or 'y = Neg(i)'} }}")
    assert _refused(graph, to_model_proto(graph), 0, False) == found


def test_attributes_stay_int64() -> None:
    rng = np.random.default_rng(0)
    found = {_varied(INT64.max, rng) for _ in range(50)} | {_varied(INT64.min, rng) for _ in range(50)}
    assert all(isinstance(each, int) and INT64.min <= each <= INT64.max for each in found)
    case(503109, "nested")  # was an OverflowError


def test_auto_pad_has_no_pads_beside_it() -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[1, 1, 5], w: float32[1, 1, 3]) -> (y) '
                        '{ y = Conv(x, w, auto_pad="VALID", pads=[1, 1]) }')
    made = _finished(graph)
    assert made is not None and made.nodes[0].attrs["pads"] is None
    assert made.types["y"].shape == (1, 1, 3)  # type: ignore[union-attr]


def test_a_fault_of_the_generator_is_shown_without_making_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    _show({"seed": 1, "kind": "no kind", "fault": "fuzzer: OverflowError: too large"}, "")
    assert "fuzzer: OverflowError" in capsys.readouterr().out
