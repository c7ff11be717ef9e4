"""Work rows on types that inference gives."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.work import Work, work
from graphs.constants import Constant
from graphs.types import TensorType
from runtime.execute import evaluate
from tests.runtime.kernels import cases_movement  # noqa: F401 (fills CASES)
from tests.runtime.kernels.cases import CASES, DTYPES, make
from tests.runtime.kernels.models import node_of


def f32(*shape: int) -> TensorType:
    return TensorType("float32", shape)


@pytest.mark.parametrize("op", sorted(CASES))
def test_every_operator_has_finite_work(op: str) -> None:
    attrs, inputs = make(op, 0, DTYPES[op][0])
    outputs = {"Split": 3, "TopK": 2, "Unique": 4}.get(op, 1)
    results = evaluate(node_of(op, attrs, inputs, outputs, 1), inputs)
    types = [None if array is None else Constant.of(array).type for array in inputs]
    found = work(op, "", attrs, types, [Constant.of(array).type for array in results])
    assert np.isfinite([found.flops, found.bytes]).all() and found.flops >= 0 and found.bytes >= 0


def test_products() -> None:
    a, b, out = f32(2, 3, 4), f32(4, 5), f32(2, 3, 5)
    assert work("MatMul", "", {}, [a, b], [out]) == Work(2 * 4 * 30, 4 * (24 + 20 + 30))
    gemm = {"alpha": 1.0, "beta": 1.0, "transA": 1, "transB": 0}
    assert work("Gemm", "", gemm, [f32(4, 3), b, f32(5)], [f32(3, 5)]).flops == (2 * 4 + 2) * 15
    einsum = {"equation": "bij,bjk->bik"}
    assert work("Einsum", "", einsum, [a, f32(2, 4, 5)], [out]).flops == 2 * 4 * 30


def test_views_are_free_and_a_gather_reads_only_what_it_takes() -> None:
    assert work("Reshape", "", {}, [f32(6)], [f32(2, 3)]) == Work(0.0, 0.0)
    table, ids = f32(30000, 768), TensorType("int64", (8,))
    assert work("Gather", "", {"axis": 0}, [table, ids], [f32(8, 768)]).bytes == 64 + 2 * 4 * 8 * 768


def test_symbolic_types_are_refused() -> None:
    from graphs.dims import symbol

    with pytest.raises(ValueError, match="static"):
        work("Add", "", {}, [TensorType("float32", (symbol("n"),))] * 2, [TensorType("float32", (symbol("n"),))])
