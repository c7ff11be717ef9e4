"""The suite of kernels: each case has a kernel that passes the check, and can be measured."""

import pytest

from runtime.codegen.c import FusedKernel, unavailable
from runtime.codegen.c.check import fault
from scripts.bench_kernels import SUITE, Case, measure

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
NAMES = [case.name for case in SUITE]


@pytest.mark.parametrize("case", SUITE, ids=NAMES)
def test_a_case_has_a_kernel_that_is_right(case: Case) -> None:
    graph = case.graph(scale=0.001)
    shapes = {name: graph.type_of(name).shape for name in graph.inputs}  # type: ignore[union-attr]
    for exact in (False, True)[: 1 + case.exact]:
        assert fault(FusedKernel(graph, exact), shapes) is None  # type: ignore[arg-type]


def test_a_case_is_measured_beside_its_peers() -> None:
    row, _ = measure(SUITE[NAMES.index("rotary")], threads=1, seconds=0.1, scale=0.001, classes=["rounding", "exact"])
    assert row["fused rounding ms"] > 0 and {"numpy", "fused exact"} <= row.keys()
    assert all(value > 0 for value in row.values())
