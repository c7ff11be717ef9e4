"""Records of nodes alone, of another machine: what they add up to is a prediction, and is not called measured."""

from pathlib import Path

import pytest

from graphs import save
from graphs.errors import InvalidOption
from graphs.text import parse_graph
from optimizer import optimize
from optimizer.command_line import main

MODEL = """graph "g" opset 18 (x: float32[64, 64]) -> (y) {
  one = constant float32[] 1.0
  a = Mul(x, one)
  b = Neg(a)
  c = Neg(b)
  y = Exp(c)
}"""


def test_sums_of_recorded_times_are_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, other, database = tmp_path / "m.onnx", tmp_path / "o.onnx", tmp_path / "t.db"
    save(parse_graph(MODEL), source)
    save(parse_graph(MODEL.replace("Exp", "Tanh")), other)
    for model in (source, other):
        assert main(["optimize", str(model), "-o", str(tmp_path / "there.onnx"), "--target", "egraft:cpu",
                     "--effort", "low", "--timings", str(database)]) in (0, None)
    capsys.readouterr()
    unseen = tmp_path / "unseen.onnx"
    save(parse_graph(MODEL.replace("Neg(b)", "Exp(b)")), unseen)
    assert main(["optimize", str(unseen), "-o", str(tmp_path / "here.onnx"), "--target", f"egraft:cpu@{database}",
                 "--effort", "low"]) in (0, None)
    printed = capsys.readouterr().out
    assert "0 rounds" not in printed and "measured   nothing: nothing was measured: sums of recorded" in printed


def test_sizes_are_those_of_the_run_that_was_recorded(tmp_path: Path) -> None:
    """Ids are looked up at 16 positions at most: the guessed sizes do not run."""
    graph = parse_graph("""graph "g" opset 18 (x: float32[batch, sequence]) -> (y) {
      one = constant int64[] 1
      table = constant float32[16] [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
      sizes = Shape(x)
      count = Gather(sizes, one, axis=0)
      last = Sub(count, one)
      shift = Gather(table, last, axis=0)
      a = Neg(x)
      b = Neg(a)
      y = Add(b, shift)
    }""")
    database = str(tmp_path / "t.db")
    there = optimize(graph, target="egraft:cpu", effort="low", timings=database).report["target"]
    here = optimize(graph, target=f"egraft:cpu@{database}", effort="low", timings=str(tmp_path / "own.db"))
    assert here.report["target"]["sizes"] == there["sizes"] and there["sizes"]["sequence"] <= 16


@pytest.mark.parametrize("content", [b"no database at all" * 400, None])
def test_a_damaged_file_is_told_as_one(content: bytes | None, tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    optimize(parse_graph(MODEL), target="egraft:cpu", effort="low", timings=str(database))
    cut = tmp_path / "cut.db"
    cut.write_bytes(database.read_bytes()[:30000] if content is None else content)
    with pytest.raises(InvalidOption, match=r"cut\.db (is damaged|holds no records that can be read) \("):
        optimize(parse_graph(MODEL), target=f"egraft:cpu@{cut}", effort="low")
