"""Other optimizers run on small zoo models as the bench runs them; needs the extra `bench` (`make test-bench`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from graphs import save, zoo
from runtime.feeds import draw

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_peers.py"


@pytest.mark.bench
@pytest.mark.parametrize("tool", ["onnxslim", "onnxsim"])
@pytest.mark.parametrize("name", ["resnet-tiny", "logistic-regression"])
def test_a_peer_runs_as_the_bench_runs_it(tool: str, name: str, tmp_path: Path) -> None:
    graph = zoo.build(name)
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    save(graph, model)
    subprocess.run([sys.executable, str(SCRIPT), tool, str(model), str(out)], check=True, timeout=300)
    feeds = draw(graph, 0)
    want, got = (onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
                 for path in (model, out))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)
