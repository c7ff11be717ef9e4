"""The node tests that ship with ONNX on the emulated device, for every operator that has a lowering.

A seeded sample of them, unless `EGRAFT_ALL_NODES=1` asks for all (`make test-gpu-emulated`).
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import graphs
from graphs.operators import find
from runtime.codegen import Kernel, emulation
from runtime.cuda import lowering
from runtime.cuda.emitter import NeedsValue
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.executor import Executor
from runtime.execute import Context
from runtime.session import check_feeds
from tests.runtime.kernels.harness import check_close
from tests.runtime.kernels.test_official_nodes import EXCEPTIONS

from .harness import needs_compiler

SAMPLE = 250
CHUNK = 150  # kernels that one call of the compiler gets
LEAST_SHARE = 0.9  # of the cases run on kernels and views alone
# Operators some cases of which NumPy runs on purpose; what else falls back is listed by the test.
RANDOM = ("Dropout", "Bernoulli")


class Collecting(EmulatedDevice):
    """Keeps the kernels of plans, so that those of many plans are compiled at once."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.wanted: list[Kernel] = []

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        self.wanted.extend(kernels)


class Case:
    """One model with its data."""

    def __init__(self, name: str, model: onnx.ModelProto, data: tuple[list, list]) -> None:
        self.name, self.op = name, model.graph.node[0].op_type
        inputs = dict(zip((info.name for info in model.graph.input), map(_array, data[0])))
        self.expected = [_array(each) for each in data[1]]
        self.graph = graphs.load(_with_constants(model, inputs).SerializeToString())
        self.feeds = {key: value for key, value in inputs.items() if key in self.graph.inputs}
        self.executor = Executor(self.graph, Collecting(), Context.of(self.graph))

    def plan(self, device: EmulatedDevice) -> None:
        self.executor.device = device
        self.executor.weights.device = device
        values, self.sizes = check_feeds(self.graph, self.feeds)
        self.feeds = dict(zip(self.graph.inputs, values))
        try:
            self.executor.prepare(self.feeds, self.sizes)
        except NeedsValue:
            pass  # run node by node

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
    models = _models()
    if not models:
        pytest.skip("this onnx package ships its node tests elsewhere")
    if os.environ.get("EGRAFT_ALL_NODES") != "1":
        models = random.Random(0).sample(models, min(SAMPLE, len(models)))
    device = Collecting()
    cases, failed, on_numpy = [], [], []
    for name, model, data_sets in models:
        for data in data_sets:
            try:
                case = Case(name, model, data)
                case.plan(device)
                cases.append(case)
            except Exception as error:  # all failures are listed together
                failed.append(f"{name}: planning: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    times = [time.process_time()]
    kernels = list({each.key: each for each in device.wanted}.values())
    for first in range(0, len(kernels), CHUNK):
        emulation.prepare(kernels[first : first + CHUNK])
    times.append(time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
    for case in cases:
        try:
            case.run()
        except Exception as error:
            failed.append(f"{case.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        on_numpy.extend(f"{case.name}: {each}" for each in case.executor.on_host)
    share = 1 - len({each.partition(":")[0] for each in on_numpy}) / max(len(cases), 1)
    with capsys.disabled():
        print(f"\n{len(cases)} official cases, {len(kernels)} kernels planned, {share:.1%} without NumPy, {times}, {time.process_time()} {len(device.launches)} launches")
    assert not failed, "\n".join(failed)
    assert share >= LEAST_SHARE, "\n".join(on_numpy)
