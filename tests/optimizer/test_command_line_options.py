"""Options that the model or the machine limits (sizes, threads), and how results and rules are printed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model.timings import Timings
from graphs import save
from graphs.builder import Builder
from graphs.errors import InvalidOption
from graphs.machine import cores_visible
from graphs.text import parse_graph
from optimizer import optimize as optimize_graph
from optimizer.command_line import main
from optimizer.options import THREADS_PER_CORE
from optimizer.report import summary
from optimizer.report_html import render
from optimizer.rule_text import WIDTH
from rules.catalogue import all_rules

Output = pytest.CaptureFixture[str]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(parse_graph('graph "m" opset 18 (x: float32[n, 4]) -> (y) { a = Neg(x) y = Neg(a) }'), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def egraft(*words: object) -> int:
    return main([str(word) for word in words])


def optimize(model: Path, out: Path, *more: object) -> int:
    return egraft("optimize", model, "-o", out, "--target", "roofline", "--effort", "low", "--timings",
                  out.parent / "timings.db", *more)


def one_line(output: Output, *words: str) -> None:
    """There is a single line on standard error, and it has these words."""
    lines = output.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("egraft: error["), lines
    for word in words:
        assert word in lines[0]


def test_more_threads_than_the_machine_can_run(model: Path, tmp_path: Path, capsys: Output) -> None:
    most = THREADS_PER_CORE * cores_visible()
    assert optimize(model, tmp_path / "out.onnx", "--threads", 4000) == 2
    one_line(capsys, "--threads 4000", f"the limit here is {most}:", "core")
    assert optimize(model, tmp_path / "out.onnx", "--threads", most, "-q") == 0


def test_names_of_dimensions(model: Path, tmp_path: Path, capsys: Output) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((3, 4), np.float32))
    out = tmp_path / "out.onnx"
    for words in (["run", model], ["check", model, model], ["optimize", model, "-o", out, "--target", "roofline"]):
        for more in ([], ["--inputs", tmp_path / "in.npz"]):
            assert egraft(*words, *more, "--dim", "m=3") == 2
            one_line(capsys, "--dim m", "known: n")
    for words in (["run", model], ["check", model, model]):
        assert egraft(*words, "--dim", "n=1,8") == 2
        one_line(capsys, "--dim n", "one size")
        assert egraft(*words, "--dim", "n=3") == 0
    assert not out.exists()


def test_a_rule_is_printed_on_lines_that_fit(capsys: Output) -> None:
    for rule in all_rules():
        assert egraft("rules", rule.name) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[2] == "before" and "after" in lines
        assert max(map(len, lines[2:])) <= 2 * WIDTH, rule.name
        told = "".join(lines[3 : lines.index("after")]).replace(" ", "")
        assert told == "".join(map(str, rule.before)).replace(" ", "")


def test_numbers_and_their_nouns(capsys: Output) -> None:
    assert egraft("rules", "check", "add-zero", "--instances", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 rule holds, 0 do not"


@pytest.mark.parametrize(("before", "after", "words"), [
    (3.1e-8, 2.94e-8, "31.000 ns -> 29.400 ns: 1.054x"), (2.84e-6, 2.81e-6, "2.840 us -> 2.810 us: 1.011x"),
    (6.75e-5, 6.46e-5, "67.5 us -> 64.6 us: 1.045x"), (1e-6, 0.0, "1.000 us -> 0 ns: nothing is left to compute"),
])
def test_a_predicted_time_has_digits(before: float, after: float, words: str) -> None:
    size = {"nodes": 1, "constant_bytes": 1}
    report = {"target": {"name": "t", "threads": 1}, "before": size, "after": size, "chosen": "a", "steps": 1,
              "predicted": {"before": before, "after": after, "source": "roofline"}}
    assert f"predicted  {words} (sum of node times: roofline)" in summary(report).splitlines()


@pytest.mark.parametrize(("after", "words"), [(0.143, "medians of all rounds"), (0.170, "speed changed meanwhile")])
def test_the_speed_up_is_no_quotient_of_the_times(after: float, words: str) -> None:
    measured: Mapping[str, Any] = {"speed_up": 1.033, "low": 1.01, "high": 1.05, "verdict": "faster", "noise": 0.01,
                                   "before": 0.147, "after": after, "rounds": 1, "kind": "measured"}
    size = {"nodes": 1, "constant_bytes": 1}
    text = summary({"target": {"name": "t", "threads": 1}, "before": size, "after": size, "measured": measured,
                    "chosen": "a", "steps": 1})
    assert "1.033x [1.010, 1.050], faster, the median ratio of 1 round (" in text
    assert words in next(line for line in text.splitlines() if line.startswith("times"))
    assert "1 thread)" in text and "trace      1 step" in text.splitlines()


@pytest.mark.parametrize("target", ["egraft:cpu", "onnxruntime:cpu"])
def test_what_the_speed_up_is_against(target: str, tmp_path: Path) -> None:
    graph = parse_graph('graph "m" opset 18 (x: float32[64, 512]) -> (y) { a = Exp(x) b = Neg(a) y = Neg(b) }')
    report = optimize_graph(graph, target=target, effort="low", timings=str(tmp_path / "t.db")).report
    assert report["measured"]["against"] == f"the input on {target}"
    told = [line for line in summary({**report, "unchanged": False}).splitlines() if line.startswith("against")]
    assert bool(told) == (target == "egraft:cpu") and all("the input on egraft:cpu;" in line for line in told)
    assert f"against the input on {target}" in render({**report, "unchanged": False})


@pytest.mark.parametrize("words", [[], ["--help"], ["optimize", "--help"], ["nonsense"], ["optimize"]])
def test_usage(words: list[str], capsys: Output) -> None:
    assert egraft(*words) in ((2,) if words in (["nonsense"], ["optimize"]) else (0, 2))
    assert "Traceback" not in capsys.readouterr().err


def test_results_of_a_folder_take_no_model_s_place(model: Path, tmp_path: Path, capsys: Output) -> None:
    before = model.read_bytes()
    assert egraft("zoo", tmp_path, "-o", tmp_path, "--target", "roofline") == 2
    one_line(capsys, "invalid-option", "overwrites")
    assert model.read_bytes() == before and list(tmp_path.iterdir()) == [model]
    for _ in range(2):
        assert egraft("zoo", tmp_path, "-o", tmp_path / "results", "--target", "roofline", "--timings",
                      tmp_path / "t.db") == 0
        assert "[1/1] m.onnx" in capsys.readouterr().out


def test_the_text_form_says_that_it_is_for_reading(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert optimize(model, tmp_path / "m.txt") == 0
    assert "for reading" in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    ["run", "MODEL", "--outputs", "PIPE"], ["bench", "MODEL", "--target", "egraft:cpu", "--json", "PIPE"],
    ["timings", "export", "PIPE", "--timings", "FOLDER/t.db"], ["grad", "MODEL", "--loss", "y", "-o", "PIPE"],
    ["train-step", "MODEL", "--loss", "mse", "-o", "PIPE"],
], ids=lambda words: words[0])
def test_no_command_puts_a_file_into_the_place_of_a_pipe(words: list[str], model: Path, tmp_path: Path,
                                                        capsys: Output) -> None:
    """Nor of a device: `bench --json /dev/null` took the place of /dev/null where the user may write there."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with Timings(tmp_path / "t.db") as timings:
        timings.records()
    given = {"MODEL": model, "PIPE": pipe, "FOLDER/t.db": tmp_path / "t.db"}
    assert egraft(*(given.get(word, word) for word in words)) == 2
    one_line(capsys, str(pipe), "no regular file")
    with pytest.raises(InvalidOption, match="no regular file"):  # whoever calls, from Python as well
        save(parse_graph('graph "m" opset 18 (x: float32[4]) -> (y) { y = Neg(x) }'), pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize(("line", "dim", "says"), [
    ("w = constant float32[2, 1] [1, 2] y = MatMul(x, w)", "k=3", "--dim k=3: the model does not take this size"),
    ("y = ArgMax(x, axis=0)", "n=0", "--dim n=0: the model does not run on empty inputs"),
])
def test_run_names_a_size_that_the_model_cannot_have(line: str, dim: str, says: str, tmp_path: Path,
                                                     capsys: Output) -> None:
    save(parse_graph(f'graph "m" opset 18 (x: float32[n, k]) -> (y) {{ {line} }}'), tmp_path / "m.onnx")
    assert egraft("run", tmp_path / "m.onnx", "--dim", dim) == 2
    one_line(capsys, says)


def test_a_run_finds_sizes_that_agree_with_a_given_one_or_names_the_guessed(tmp_path: Path, capsys: Output) -> None:
    """Without a large array: images of 16000 x 16000 were tried."""
    text = """graph "m" opset 18 (x: float32[a, 3, h, w], t: float32[b, 3, {}]) -> (y) {{ y = Concat(x, t, axis=1) }}"""
    (tmp_path / "agree.txt").write_text(text.format("h, w"))
    (tmp_path / "never.txt").write_text(text.format("7, 9"))
    assert egraft("run", tmp_path / "agree.txt", "--dim", "a=3") == 0
    assert "float32[3, 6, 32, 32]" in capsys.readouterr().out
    assert egraft("run", tmp_path / "never.txt", "--dim", "a=3") == 2
    one_line(capsys, "(guessed here: h, w, b)")


@pytest.mark.parametrize("command", [["optimize", "--target", "roofline"], ["grad", "--loss", "mse"]])
def test_a_text_without_its_constants_is_for_reading_only(command: list[str], tmp_path: Path, capsys: Output) -> None:
    b = Builder("m", opset=18)
    x = b.input("x", "float32", [2, 100])
    b.output(b.Add(b.Mul(x, np.arange(100, dtype=np.float32)), np.ones(2, np.float32)[:, None]), "y")
    save(b.graph(), tmp_path / "m.onnx")
    for out in ("out.txt", "out.onnx"):
        assert egraft(command[0], tmp_path / "m.onnx", "-o", tmp_path / out, *command[1:]) == 0
        told = "out.txt is for reading only: 1 large constant left out" in capsys.readouterr().out
        assert told is (out == "out.txt")
    assert egraft("run", tmp_path / "out.txt") == 2
    one_line(capsys, "give the model as .onnx or .json")
