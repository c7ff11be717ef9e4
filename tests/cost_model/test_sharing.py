"""Sessions that read large weights where the graph holds them compute and optimize as those of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_model.targets import find_target, sharing
from graphs import zoo
from graphs.builder import Builder
from runtime.feeds import draw


@pytest.mark.parametrize("name", ["bert-tiny", "resnet-tiny"])
def test_the_same_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = zoo.build(name)
    target = find_target("onnxruntime:cpu")
    feeds = draw(graph, 0, {each: size for each, size in {"batch": 2, "sequence": 9}.items()
                            if each in zoo.describe(name).dims})
    expected = target.prepare(graph, feeds).outputs()
    assert not sharing.shares_weights(graph)
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1)
    assert sharing.shares_weights(graph)
    runner = target.prepare(graph, feeds)
    del graph
    found = runner.outputs()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)


def _private_bytes() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["RssAnon"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what memory is used")
def test_a_table_of_rows_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1 << 20)
    b = Builder("rows")
    table = np.arange(8_000_000, dtype=np.float32).reshape(8000, 1000)
    b.output(b.Gather(b.constant(table, "table"), b.input("i", "int64", ["n"]), axis=0), "y")
    graph, target = b.graph(), find_target("onnxruntime:cpu")
    feeds = {"i": np.array([3, 7999])}
    target.prepare(zoo.build("bert-tiny"), draw(zoo.build("bert-tiny"), 0, {"batch": 1, "sequence": 4}))  # imports
    before = _private_bytes()
    runner = target.prepare(graph, feeds)
    np.testing.assert_array_equal(runner.outputs()["y"], table[[3, 7999]])
    assert _private_bytes() - before < table.nbytes // 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell what memory is used")
@pytest.mark.parametrize("transposed", [True, False])
def test_a_table_that_is_a_weight_too_is_held_once_as_it_is_packed(
        monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    monkeypatch.setattr(sharing, "SHARED_BYTES", 1 << 20)
    b = Builder("tied")
    table = np.random.default_rng(0).standard_normal((8000, 1000)).astype(np.float32)
    tokens = b.constant(table, "table")
    weight = b.Transpose(tokens, perm=(1, 0)) if transposed else tokens
    x = b.input("x", "float32", ["m", 1000 if transposed else 8000])
    b.output(b.Gather(tokens, b.input("i", "int64", ["n"]), axis=0), "rows")
    b.output(x @ weight, "y")
    graph, target = b.graph(), find_target("onnxruntime:cpu")
    feeds = {"i": np.array([3, 7999]), "x": np.random.default_rng(1).standard_normal((2, x.shape[1])).astype("f4")}
    target.prepare(zoo.build("bert-tiny"), draw(zoo.build("bert-tiny"), 0, {"batch": 1, "sequence": 4}))  # imports
    before = _private_bytes()
    runner = target.prepare(graph, feeds)
    grown = _private_bytes() - before
    found = runner.outputs()
    np.testing.assert_array_equal(found["rows"], table[[3, 7999]])
    np.testing.assert_allclose(found["y"], feeds["x"] @ (table.T if transposed else table), rtol=1e-4, atol=1e-3)
    assert grown < 1.5 * table.nbytes
    assert graph.constants.keys() == {"table"} and len(graph.nodes) == 2 + transposed  # the graph is as it was


def test_values_in_host_memory_are_announced_to_sessions_on_the_host_alone() -> None:
    class Recorded:
        def __init__(self) -> None:
            self.external: list[str] = []
            self.values: list[str] = []

        def add_external_initializers(self, names: list[str], weights: list[object]) -> None:
            self.external += names

        def add_initializer(self, name: str, value: object) -> None:
            self.values.append(name)

    b = Builder("rows")
    table = b.constant(np.ones((50, 40), np.float32), "table")
    rows = b.Gather(table, b.input("i", "int64", ["n"]), axis=0)
    b.output(rows @ b.constant(np.ones((40, 40), np.float32), "w"), "y")
    host, device = Recorded(), Recorded()
    sharing.shared_model(b.graph(), host)
    sharing.shared_model(b.graph(), device, on_host=False)
    assert sorted(host.external) == sorted(device.external) == ["table", "w"]
    assert host.values == ["table"] and not device.values
