"""What only a GPU can show: the zoo at its real sizes, kernels against float64, capture against single launches.

Run by `make test-gpu`; skipped where no GPU answers. The tests of `tests/runtime/cuda` run there on the GPU as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_model import protocol
from cost_model.sizes import default_measure_sizes
from cost_model.targets import find_target
from graphs import load, save, zoo
from graphs.builder import Builder
from graphs.errors import ExecutionFailed
from graphs.ir import is_fused
from optimizer import optimize
from runtime import Session, run
from runtime.cuda import cupy_device
from runtime.feeds import draw
from search.fusions import FusionBudget, discover

_missing = cupy_device.unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_missing is not None, reason=str(_missing))]
MODELS = ("logistic-regression", "bilstm-tagger", "bert-2", "llama-block", "resnet18", "resnet50")


@pytest.mark.parametrize("name", MODELS)
def test_the_zoo_agrees_with_numpy_and_stays_on_the_gpu(name: str) -> None:
    graph = zoo.build(name)
    feeds = draw(graph, 0, default_measure_sizes(graph, {}))
    session = Session(graph, target="egraft:cuda")
    wanted = run(graph, feeds)
    first = session.run(feeds)
    for output, right in wanted.items():
        scale = max(float(np.abs(right).max()), 1e-6)
        assert float(np.abs(first[output] - right).max()) <= 2e-4 * scale, output
    assert not session.report.on_numpy  # type: ignore[attr-defined]
    for _ in range(2):  # recorded, then replayed
        again = session.run(feeds)
        assert all(np.array_equal(first[output], again[output]) for output in wanted)
    assert session.report.captured, session.report.not_captured  # type: ignore[attr-defined]
    session.close()


@pytest.mark.parametrize("name", ["bert-2", "llama-block", "resnet18"])
def test_fusions_are_found_agree_and_take_fewer_kernels(name: str) -> None:
    graph = zoo.build(name)
    sizes = default_measure_sizes(graph, {})
    feeds = draw(graph, 0, sizes)
    found = discover(graph, sizes, budget=FusionBudget(candidates=12, seconds=60.0), target="egraft:cuda")
    assert not found.faults and not found.note, (found.faults, found.note)
    assert found.groups and found.gain > 0, found.lines()
    plain, fused = (Session(each, target="egraft:cuda") for each in (graph, found.graph))
    wanted, first = run(graph, feeds), fused.run(feeds)
    plain.run(feeds)
    for output, right in wanted.items():
        scale = max(float(np.abs(right).max()), 1e-6)
        assert float(np.abs(first[output] - right).max()) <= 2e-4 * scale, output
    before, after = plain.report, fused.report
    assert not after.on_numpy and after.kernels < before.kernels  # type: ignore[attr-defined]
    for _ in range(2):  # recorded, then replayed
        assert all(np.array_equal(first[output], again) for output, again in fused.run(feeds).items())
    assert after.captured, after.not_captured  # type: ignore[attr-defined]
    for session in (plain, fused):
        session.close()


def test_a_file_that_was_fused_for_the_gpu_runs_as_fused(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "fused.onnx"
    save(zoo.build("bert-tiny"), source)
    result = optimize(source, target="egraft:cuda", effort="low", timings=str(tmp_path / "t.db"))
    result.save(made)
    assert result.report["validation"]["ok"]
    assert result.report["validation"]["device"]["status"] == "passed", result.report["validation"]["device"]
    graph = load(made)
    feeds = draw(graph, 0, default_measure_sizes(graph, {}))
    session = Session(graph, target="egraft:cuda")
    for output, found in session.run(feeds).items():
        right = run(load(source), feeds)[output]
        assert float(np.abs(found - right).max()) <= 2e-4 * max(float(np.abs(right).max()), 1e-6)
    assert sum(map(is_fused, session.graph.nodes)) == sum(map(is_fused, result.graph.nodes))


@pytest.mark.parametrize("precision", ["rounding", "exact"])
@pytest.mark.parametrize("name", ["bert-2", "llama-block", "resnet18"])
def test_a_result_is_validated_in_a_captured_session(name: str, precision: str, tmp_path: Path) -> None:
    result = optimize(zoo.build(name), target="egraft:cuda", effort="low", precision=precision,
                      timings=str(tmp_path / "t.db"))
    assert not result.report["dropped"], result.report["dropped"]
    if not result.report["unchanged"]:
        found = result.report["validation"]["device"]
        assert found["status"] == "passed" and found["captured"] and not found["on_numpy"], found
        assert found["against"].startswith("the original on the CPU"), found


def test_too_little_memory_is_an_error_of_one_line_and_the_device_goes_on() -> None:
    b = Builder("huge", opset=18)
    x = b.input("x", "float32", [1, 1])
    wide = b.Expand(x, np.array([1 << 20, 1 << 20], np.int64))  # 4 TiB, once it is more than a view
    b.output(b.MatMul(b.Transpose(b.Exp(wide), perm=[1, 0]), b.Exp(wide)), "y")
    session = Session(b.graph(), target="egraft:cuda")
    with pytest.raises(ExecutionFailed, match="memory is too small"):
        session.run({"x": np.ones((1, 1), np.float32)})
    session.close()
    small = Builder("small", opset=18)
    small.output(small.Exp(small.input("x", "float32", [4])), "y")
    found = run(small.graph(), {"x": np.zeros(4, np.float32)}, target="egraft:cuda")["y"]
    np.testing.assert_array_equal(found, np.ones(4, np.float32))


@pytest.mark.parametrize("op", ["Exp", "Tanh", "Erf", "Sigmoid", "Sqrt", "Log", "Softplus", "Gelu"])
def test_functions_are_as_close_to_float64_as_numpy_is(op: str) -> None:
    values = np.random.default_rng(0).uniform(0.01 if op in ("Sqrt", "Log") else -8, 8, 1 << 16)
    found = {}
    for dtype in (np.float32, np.float64):
        b = Builder("one", opset=20)
        b.output(getattr(b, op)(b.input("x", np.dtype(dtype).name, [values.size])), "y")
        graph = b.graph()
        x = values.astype(np.float32).astype(dtype)
        found[dtype] = run(graph, {"x": x}, target="egraft:cuda" if dtype is np.float32 else "egraft:cpu")["y"]
    exact = found[np.float64]
    error = np.abs(found[np.float32] - exact) / np.maximum(np.spacing(np.abs(exact).astype(np.float32)), 1e-30)
    assert float(error.max()) <= 4.0  # units in the last place


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_products_accumulate_in_float32_without_tf32(dtype: str) -> None:
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    random = np.random.default_rng(0)
    left, right = (random.uniform(-1, 1, (256, 256)).astype(kind) for _ in range(2))
    b = Builder("product", opset=21)
    b.output(b.MatMul(b.input("a", dtype, [256, 256]), b.input("b", dtype, [256, 256])), "y")
    found = run(b.graph(), {"a": left, "b": right}, target="egraft:cuda")["y"].astype(np.float64)
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    half_an_ulp = {"float32": 2e-6, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert float(np.abs(found - wanted).max()) <= 1.1 * half_an_ulp * float(np.abs(wanted).max()) + 1e-5


def test_events_time_what_the_device_does() -> None:
    graph = zoo.build("bert-2")
    target = find_target("egraft:cuda")
    runner = target.prepare(graph, draw(graph, 0, default_measure_sizes(graph, {})))
    measured = protocol.measure_one(runner.run, budget=0.5)
    assert measured.clock == "device" and 1e-5 < measured.median < 1.0
    runner.close()
