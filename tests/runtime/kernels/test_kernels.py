"""Kernels against ONNX Runtime (or `onnx.reference` where that lacks a type), at every version of every record."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.operators import find
from runtime.execute import evaluate
from runtime.kernels import elementwise, indexing, linear, movement, reduction
from tests.runtime.kernels import cases_movement  # noqa: F401 (fills CASES)
from tests.runtime.kernels.cases import CASES, DTYPES, make
from tests.runtime.kernels.models import by_onnxruntime, by_reference, model_of, node_of

FAMILIES = (elementwise, linear, reduction, movement, indexing)
OUTPUTS = {"Split": 3, "TopK": 2, "Unique": 4}
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-9}
# Computed with float32 constants or in float32 on the other side.
ROUGH = {"HardSwish": 1e-6, "Shrink": 1e-6, "Erf": 1e-6, "Gelu": 1e-6, "Sigmoid": 1e-6, "Tanh": 1e-6, "Mish": 1e-6}
# No runtime here executes these versions; `test_round_trip.py` writes and reads them.
NOT_EXECUTED = {("Clip", 1), ("Cast", 1)}


def same(ours: np.ndarray, theirs: np.ndarray, op: str) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs)
        return
    tolerance = max(TOLERANCE[ours.dtype.name], ROUGH.get(op, 0.0))
    if op == "Sign":  # ONNX leaves the sign of NaN open, and ONNX Runtime gives 0 for float16
        ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)


def compare(op: str, version: int, dtype: str, seed: int) -> bool:
    """True where another runtime executed the case."""
    attrs, inputs = make(op, seed, dtype)
    if op == "ReduceProd":  # small integers, whose product does not overflow
        inputs = [None if a is None else np.minimum(a, 2).astype(a.dtype) for a in inputs]
    node = node_of(op, attrs, inputs, OUTPUTS.get(op, 1), version)
    if op == "Pow" and version < 12 and inputs[0].dtype != inputs[1].dtype:  # type: ignore[union-attr]
        return False
    results = evaluate(node, inputs)
    model = model_of(node, inputs, version, results)
    if isinstance(model, str):
        return False
    feeds = {name: array for name, array in zip(node.inputs, inputs) if array is not None}
    expected = by_onnxruntime(model, feeds)
    if expected is None:
        try:
            expected = by_reference(model, feeds)
        except (RuntimeError, NotImplementedError, KeyError, TypeError):  # it lacks the operator's version too
            return False
    for ours, theirs in zip(results, expected):
        same(ours, theirs, op)
    return True


@pytest.mark.parametrize("op", sorted(CASES))
def test_every_version(op: str) -> None:
    record = find(op)
    assert record is not None
    for version in record.versions:
        done = [compare(op, version, dtype, seed) for dtype in DTYPES[op] for seed in range(4)]
        seed = 4
        while not any(done) and seed < 40:  # an old version may take few of the cases
            done = [compare(op, version, dtype, seed) for dtype in DTYPES[op]]
            seed += 1
        assert any(done) or (op, version) in NOT_EXECUTED, f"{op} at version {version} was never compared"


def test_every_kernel_has_a_case() -> None:
    assert {name for family in FAMILIES for name in family.KERNELS} == set(CASES)


def test_kernels_leave_their_inputs_alone() -> None:
    for op in CASES:
        for seed in range(3):
            attrs, inputs = make(op, seed, DTYPES[op][0])
            before = [None if a is None else a.copy() for a in inputs]
            evaluate(node_of(op, attrs, inputs, OUTPUTS.get(op, 1), 1), inputs)
            for a, b in zip(inputs, before):
                np.testing.assert_array_equal(a, b)
