"""Blocks of ```python in README.md and docs/ run as they stand; `python no-run` needs more than a reader has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphs import save, zoo
from graphs.text import parse_graph

ROOT = Path(__file__).parents[1]
MODEL = """graph "m" opset 18 (x: float32[n, 64]) -> (y) {
  w = constant float32[64] [%s]
  a = Add(x, w) b = Transpose(a, perm=[1, 0]) c = Transpose(b, perm=[1, 0]) y = Softmax(c) }"""


def blocks() -> list[tuple[str, str]]:
    """(page and line, code) of every block that is meant to run."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found.append((f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}", match[1]))
    return found


BLOCKS = blocks()


def test_there_are_blocks() -> None:
    assert {"README.md", "search.md"} <= {place.partition(":")[0] for place, _ in BLOCKS}


@pytest.mark.parametrize("code", [code for _, code in BLOCKS], ids=[place for place, _ in BLOCKS])
def test_a_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(zoo, "fetch", lambda name: tmp_path / f"{name}.onnx")  # no test loads packages
    save(parse_graph(MODEL % ", ".join(map(str, range(64)))), tmp_path / "model.onnx")
    if "trace.json" in code:
        from optimizer import optimize

        optimize("model.onnx", target="roofline", effort="low", timings="t.db").trace.save("trace.json")
    exec(compile(code, "<block>", "exec"), {"__name__": "__main__"})
