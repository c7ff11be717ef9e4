"""The node tests that ship with ONNX, for every operator that has a lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import graphs
from graphs.operators import find
from runtime.codegen import Kernel, emulation
from runtime.cuda import lowering
from runtime.cuda.device import Device
from runtime.cuda.emitter import NeedsValue
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.session import check_feeds
from tests.runtime.kernels.harness import check_close
from tests.runtime.kernels.test_official_nodes import EXCEPTIONS

from .harness import ON_GPU, make_device, needs_compiler

CHUNK = 150  # kernels that one call of the compiler gets
# Reasons for which NumPy may run a case; any other fails the test.
LEFT = ("element type float8", "element type int", "element type uint", "element type float4", "training",
        "no GPU kernel", "strings")


class Collecting(EmulatedDevice):
    """Keeps the kernels of plans, so that those of many plans are compiled at once."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.wanted: list[Kernel] = []

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        self.wanted.extend(kernels)


class Case:
    """One model with its data, planned."""

    def __init__(self, name: str, model: onnx.ModelProto, data: tuple[list, list], device: Device) -> None:
        self.name = name
        inputs = dict(zip((info.name for info in model.graph.input), map(_array, data[0])))
        self.expected = [_array(each) for each in data[1]]
        graph = graphs.load(_with_constants(model, inputs).SerializeToString())
        values, self.sizes = check_feeds(graph, {key: inputs[key] for key in graph.inputs})
        self.feeds = dict(zip(graph.inputs, values))
        self.executor = Executor(graph, device, Context.of(graph))
        with contextlib.suppress(NeedsValue):  # it is run node by node
            self.executor.prepare(self.feeds, self.sizes)

    def run(self) -> None:
        found = self.executor.run(self.feeds, self.sizes)
        assert len(found) == len(self.expected)
        for ours, wanted in zip(found, self.expected):
            items = isinstance(wanted, list)
            check_close(ours if items else [ours], wanted if items else [wanted], slack=10)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.SequenceProto):
        return [_array(each) for each in value.tensor_values]
    if not isinstance(value, onnx.TensorProto):
        return value
    array = numpy_helper.to_array(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _with_constants(model: onnx.ModelProto, inputs: dict[str, Any]) -> onnx.ModelProto:
    """Inputs that only decide the meaning (axes, shapes) become constants, as they are in models."""
    record = find(model.graph.node[0].op_type, "")
    static = {model.graph.node[0].input[index] for index in (record.static.values() if record else ())
              if index < len(model.graph.node[0].input)}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.input[:]
    changed.graph.input.extend(each for each in model.graph.input if each.name not in static)
    changed.graph.initializer.extend(numpy_helper.from_array(inputs[name], name) for name in static if name in inputs)
    return changed


@lru_cache(maxsize=1)
def _models() -> list[tuple[str, onnx.ModelProto, list]]:
    with_lowering = {op for domain, op in lowering.table() if not domain}
    found = []
    for test in load_model_tests(kind="node"):
        model = test.model if test.model_dir is None else onnx.load(f"{test.model_dir}/model.onnx")
        nodes = model.graph.node
        skipped = any(test.name.startswith(key) for key in EXCEPTIONS)
        if len(nodes) == 1 and not nodes[0].domain and nodes[0].op_type in with_lowering and not skipped:
            found.append((test.name, model, test.data_sets or []))
    return sorted(found, key=lambda each: each[0])


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_official_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    device = make_device() if ON_GPU else Collecting()
    cases, failed, on_numpy = [], [], []
    for name, model, data_sets in _models():
        for data in data_sets:
            try:
                cases.append(Case(name, model, data, device))
            except Exception as error:  # all failures are listed together
                failed.append(f"{name}: planning: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    if not cases:
        pytest.skip("this onnx package ships its node tests elsewhere")
    kernels = [] if ON_GPU else list({each.key: each for each in device.wanted}.values())
    for first in range(0, len(kernels), CHUNK):
        emulation.prepare(kernels[first : first + CHUNK])
    for case in cases:
        try:
            case.run()
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        on_numpy.extend(f"{case.name}: {each}" for each in case.executor.on_host)
    share = 1 - len({each.partition(":")[0] for each in on_numpy}) / len(cases)
    with capsys.disabled():
        print(f"\n{len(cases)} official cases, {share:.1%} of them without NumPy")
    failed.extend(each for each in on_numpy if not any(f": {reason}" in each for reason in LEFT))
    assert not failed, "\n".join(failed)
