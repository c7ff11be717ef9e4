"""Ctrl-C ends the command line quietly, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from graphs import save
from graphs.text import parse_graph
from optimizer import interrupts
from optimizer.command_line import _Interrupts, main
from optimizer.progress import Clock

# What the console script does, with a sign that the interpreter has started (before that nothing can be caught).
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
from optimizer import command_line
real = command_line.signal.signal
command_line.signal.signal = lambda *handler: (real(*handler), os.write(1, b"started"))
sys.exit(command_line.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.2, 0.35, 0.6, 1.0])
def test_interrupt(delay: float, tmp_path: Path) -> None:
    rows = "\n".join(f"a{index} = Mul(a{index - 1}, w) b{index} = Softmax(a{index})" for index in range(1, 60))
    text = f"""graph "m" opset 18 (x: float32[n, 40, 40]) -> (b59) {{
      w = constant float32[40] [{", ".join(map(str, range(40)))}]
      a0 = MatMul(x, x)
      {rows} }}"""
    save(parse_graph(text), tmp_path / "model.onnx")
    (tmp_path / "results").mkdir()
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, "optimize", str(tmp_path / "model.onnx"), "-o",
                                str(tmp_path / "results" / "out.onnx"), "--timings", str(tmp_path / "timings.db")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                               cwd=Path(__file__).parents[2])
    assert process.stdout is not None
    assert process.stdout.read(7) == b"started"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the search process too
    errors = process.communicate(timeout=60)[1].decode()
    assert (process.returncode, errors) == (130, "egraft: interrupted\n")
    assert not list((tmp_path / "results").iterdir())


def test_an_interrupt_that_was_lost_ends_the_run_at_the_next_stage() -> None:
    clock = Clock()
    clock.enter("load")
    try:
        with suppress(KeyboardInterrupt):  # as a callback out of C does
            _Interrupts.handle(_loaded(), signal.SIGINT, None)
        with pytest.raises(KeyboardInterrupt):
            clock.enter("normalize")
    finally:
        interrupts.forget()


def _loaded() -> _Interrupts:
    found = _Interrupts()
    found.loading = False
    return found


def test_a_command_that_was_interrupted_does_not_end_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(arguments: list[str]) -> int:
        interrupts.note()
        return 0

    monkeypatch.setattr("optimizer.arguments.parse", lost)
    assert main(["rules"]) == 130
    Clock().enter("load")
