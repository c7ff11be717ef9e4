"""How the bench tells what a file of another optimizer does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphs import save
from graphs.text import parse_graph
from scripts.bench import does_not_run


def test_a_file_that_does_not_run(tmp_path: Path) -> None:
    """A tool that fixed the batch dimension: what ONNX Runtime says, without its codes and its advice."""
    runtime = pytest.importorskip("onnxruntime")
    save(parse_graph('graph "m" opset 17 (ids: float32[2, 4]) -> (y) { y = Neg(ids) }'), tmp_path / "m.onnx")
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    with pytest.raises(Exception) as found:
        session.run(None, {"ids": np.zeros((1, 4), np.float32)})
    assert does_not_run(found.value) == ("output does not run: Got invalid dimensions for input: ids for the following "
                                         "indices index: 0 Got: 1 Expected: 2")
    assert does_not_run(ValueError()) == "output does not run: ValueError"
    assert len(does_not_run(ValueError("long " * 100))) < 200
