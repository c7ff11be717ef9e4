"""Processes of the fuzzer: one that ends or hangs loses nothing but the case it was at, and a log is gone on from."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from graphs.onnx_io import to_model_proto
from graphs.text import parse_graph

from .checking import session_apart
from .jobs import Record, read, run
from .tally import Tally


def examine(seed: int, kind: str, timings: str, careful: bool) -> Record:
    if kind == "hangs":
        time.sleep(60)
    if kind == "ends" or (kind == "ends unless careful" and not careful):
        os._exit(7)
    return {"seed": seed, "kind": kind, "fault": "", "careful": careful}


def test_a_process_that_ends_or_hangs_costs_one_case(tmp_path: Path) -> None:
    kinds = ["", "ends", "", "ends unless careful", "", "hangs", ""]
    found = {each["seed"]: each for each in run(enumerate(kinds), examine, tmp_path, 2, hung=0.7, slice_=4)}
    assert {seed: each["fault"] for seed, each in found.items() if each["fault"]} == {
        1: "died: it ended the process (status 7)", 5: "died: it hung for 0.7 s"}
    assert [seed for seed, each in found.items() if each.get("careful")] == [3]
    assert sorted(found) == list(range(len(kinds)))


def test_a_log_is_read_again_without_its_broken_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"seed": 1, "kind": "", "fault": "wrong: x"}\n{"seed": 1, "kind": "", "fault": ""}\n{"seed": 2, "k')
    assert read(log) == {(1, ""): {"seed": 1, "kind": "", "fault": ""}}
    assert read(tmp_path / "none") == {}


def test_counts() -> None:
    tally = Tally([{"seed": 1, "kind": "", "fault": "", "rewritten": True, "replayed": True, "again": []},
                   {"seed": 2, "kind": "nested", "fault": "wrong: x", "replayed": True, "again": ["a"]},
                   {"seed": 3, "kind": "", "fault": "", "invalid": True},
                   {"seed": 5, "kind": "", "fault": "", "invalid": True, "one_refusal": True},
                   {"seed": 4, "kind": "", "fault": "", "dropped": "dropped: r"}])
    assert tally.line("all").startswith(
        "all: 3 graphs, rewritten 33.33%, changed 0.00%, compared 0.00%, replayed 66.67%, different 1, other faults 0, "
        "dropped by validation 1, ended ONNX Runtime 0, invalid 2, invalid for ONNX Runtime alone 1")
    assert tally.failed
    assert tally.line("all").endswith("stays 50.0% of 2")
    tally.add({"seed": 2, "kind": "nested", "fault": ""})
    assert not tally.failed


def test_onnx_runtime_in_a_process_of_its_own() -> None:
    graph = parse_graph('graph "g" opset 18 (x: float32[2]) -> (y) { y = Neg(x) }')
    found = session_apart(to_model_proto(graph))({"x": np.array([1, -2], np.float32)})
    assert found["y"].tolist() == [-1, 2]
