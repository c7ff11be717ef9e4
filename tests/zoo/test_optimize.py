"""Small models through `optimize`: still the same model to whoever runs it, and the textbook rewrites are seen."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from graphs import zoo
from optimizer import Result, optimize
from search.trace import same_graph

from .helpers import SMALL, assert_close, checked, feeds_of, interface, session, sizes_of


@cache
def optimized(name: str, objective: str = "nodes") -> Result:
    """Fewest nodes does not depend on what was measured on a busy machine, so that something is always rewritten."""
    with TemporaryDirectory() as folder:
        return optimize(zoo.build(name), target="onnxruntime:cpu", effort="low", threads=1, objective=objective,
                        timings=str(Path(folder) / "timings.db"))


def rules_of(report: dict[str, Any]) -> set[str]:
    """Rules that were used, or found and not used because they do not pay."""
    return set(report["rules_used"]) | {row["rule"] for row in report["not_used"]}


@pytest.mark.parametrize("name", SMALL)
def test_the_result_is_the_same_model(name: str) -> None:
    result = optimized(name)
    before, after = checked(zoo.build(name)), checked(result.graph)
    assert interface(after) == interface(before)
    original, changed = session(before), session(after)
    outputs = result.original.outputs
    for number, sizes in enumerate(sizes_of(result.original)):
        feeds = feeds_of(result.original, number, sizes)
        assert_close(original.run(outputs, feeds), changed.run(outputs, feeds))
    assert result.report["unchanged"] or result.report["validation"]["ok"]
    assert not result.report["dropped"]
    assert result.report["target"]["sizes"].keys() == sizes_of(result.original)[0].keys()  # what was measured at


@pytest.mark.parametrize("name", SMALL)
def test_the_trace_replays(name: str) -> None:
    result = optimized(name)
    assert same_graph(result.trace.replay(zoo.build(name)), result.graph)


def test_for_time_the_input_is_the_worst_that_comes_back() -> None:
    result = optimized("resnet-tiny", "time")
    assert result.report["unchanged"] or result.report["measured"]["verdict"] != "slower"
    assert same_graph(result.trace.replay(zoo.build("resnet-tiny")), result.graph)


def test_batch_normalization_goes_into_the_convolution() -> None:
    result = optimized("resnet-tiny")
    operators = Counter(node.op for node in result.graph.nodes)
    assert operators["BatchNormalization"] == 0
    assert operators["Conv"] == Counter(node.op for node in result.original.nodes)["Conv"]
    assert any("batch-norm" in step["rule"] for step in result.trace.steps)


def test_projections_are_merged_or_known_not_to_pay() -> None:
    report = optimized("bert-tiny").report
    assert {"join-matmuls", "join-biased-matmuls"} & rules_of(report), sorted(rules_of(report))


def test_normalization_in_parts_is_recognised() -> None:
    report = optimized("bert-tiny").report
    assert any(rule.startswith("layer-norm") for rule in rules_of(report)), sorted(rules_of(report))


def test_fusion_candidate_between_two_sums() -> None:
    rows = optimized("multiply-add").report["fusion_candidates"]
    assert any(row["nodes"] == 3 and row["expression"] == "D + ((A + B) * C)" for row in rows), rows
