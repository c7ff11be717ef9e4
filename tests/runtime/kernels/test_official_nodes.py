"""The node tests that ship with ONNX, for convolution, normalization, recurrent, attention, quantization, random."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from tests.runtime.kernels.harness import canonical, check_close, check_types, evaluate_ours, plain_attribute

FAMILIES = ("convolution", "normalization", "recurrent", "attention", "quantization", "random", "losses")
# Test -> why our kernel is right or cannot follow.
EXCEPTIONS = {
    "test_training_dropout": "expects NumPy's legacy random stream",
    "test_bernoulli": "random",
    "test_maxunpool_export_with_output_shape": "runtimes differ on indices under another output shape",
    "test_resize_downsample_scales_linear_align_corners": "uses the fractional output size; ONNX Runtime does not",
    "test_resize_downsample_scales_cubic_align_corners": "uses the fractional output size; ONNX Runtime does not",
}


@lru_cache(maxsize=1)
def cases() -> list[tuple[str, onnx.ModelProto, list]]:
    ours = {o.name for family in FAMILIES for o in import_module(f"graphs.operators.{family}").OPERATORS}
    found = []
    for test in load_model_tests(kind="node"):
        model = test.model if test.model_dir is None else onnx.load(f"{test.model_dir}/model.onnx")
        nodes = model.graph.node
        if len(nodes) == 1 and not nodes[0].domain and nodes[0].op_type in ours:
            found.append((test.name, model, test.data_sets or []))
    return found


def arrays(values: list) -> Iterator[np.ndarray]:
    for value in values:
        yield numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_of_them() -> None:
    ran, failed = 0, []
    for name, model, data_sets in cases():
        if any(name.startswith(key) for key in EXCEPTIONS):
            continue
        node, opset = model.graph.node[0], model.opset_import[0].version
        for inputs, outputs in data_sets:
            feeds = dict(zip((info.name for info in model.graph.input), arrays(inputs)))
            expected = dict(zip((info.name for info in model.graph.output), arrays(outputs)))
            given = [feeds.get(key) for key in node.input]
            try:
                form = canonical(node.op_type, {a.name: plain_attribute(a) for a in node.attribute}, given, opset)
                assert form is not None, "opaque"
                ours = evaluate_ours(node.op_type, *form, len(node.output))
                wanted = [expected.get(key) for key in node.output]
                check_close([a for a, b in zip(ours, wanted) if b is not None],
                            [b for b in wanted if b is not None], slack=10)
                check_types(node.op_type, *form, ours)
            except (AssertionError, NotImplementedError) as reason:
                failed.append(f"{name}: {' '.join(str(reason).split())[:150]}")
            ran += 1
    if not ran:
        pytest.skip("this onnx package ships its node tests elsewhere")
    assert not failed, "\n".join(failed)
    assert ran > 300
