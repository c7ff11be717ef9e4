"""The program that measures GPUs, where none is."""

from __future__ import annotations

import pytest

from runtime.codegen import emulation
from scripts import bench_gpu


@pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
def test_it_runs_on_the_emulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gpu.main(["--emulate", "--only", "logistic-regression"]) == 0
    assert "nothing is written" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_gpu.main(["--emulate", "--only", "bert-2,no-such"]) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1 and "no-such" in found and "bert-12" in found
