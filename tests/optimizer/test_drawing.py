"""Drawings of steps: which boxes and lines, from the lines of the trace."""

from __future__ import annotations

from optimizer.drawing import HEIGHT, MOST_NODES, WIDTH, drawing

BEFORE = ["`a b` = Conv(x, weights, , pads=[0, 0], strides=[1, 1])",
          "y, `s,1` = com.microsoft.Norm(`a b`, scale, x, note=\"a, b\")"]
AFTER = ["c = constant float32[2, 3] sha256:00", "y, `s,1` = com.microsoft.Norm(`a b`, scale, x, note=\"a, b\")",
         "z = If(c, then_branch=graph () -> (t) { t = Neg(x) }, else_branch=graph () -> (e) { e = Abs(y) })"]


def lines_of(side: dict) -> set[tuple[str, str]]:
    """(label, label) of the boxes that lines join: from the bottom of one to the top of the other."""
    ends = {(box["x"], box["y"]): box["label"] for box in side["boxes"]}
    return {(ends[line["x1"] - WIDTH / 2, line["y1"] - HEIGHT], ends[line["x2"] - WIDTH / 2, line["y2"]])
            for line in side["lines"]}


def test_boxes_and_lines() -> None:
    before, after = drawing({"before": BEFORE, "after": AFTER})
    assert lines_of(before) == {("x", "Conv"), ("weights", "Conv"), ("Conv", "com.microsoft.Norm"),
                                ("scale", "com.microsoft.Norm"), ("x", "com.microsoft.Norm")}
    assert lines_of(after) == {("a b", "com.microsoft.Norm"), ("scale", "com.microsoft.Norm"),
                               ("x", "com.microsoft.Norm"), ("float32[2, 3]", "If")}
    kinds = {box["label"]: box["kind"] for side in (before, after) for box in side["boxes"]}
    assert kinds["Conv"] == "node" and kinds["com.microsoft.Norm"] == "kept" and kinds["float32[2, 3]"] == "constant"
    for side in (before, after):
        assert all(line["y1"] < line["y2"] for line in side["lines"])
        places = [(box["x"], box["y"]) for box in side["boxes"]]
        assert len(set(places)) == len(places)
        assert all(0 <= x <= side["width"] - WIDTH and 0 <= y <= side["height"] - HEIGHT for x, y in places)


def test_what_is_not_drawn() -> None:
    many = [f"v{index} = Neg(x)" for index in range(MOST_NODES + 1)]
    assert drawing({"before": many[:-1], "after": []}) and not drawing({"before": many, "after": []})
    assert not drawing({"before": [], "after": []})
    assert not drawing({"before": ["something else"], "after": ["y = Neg(x)"]})
    assert not drawing({"before": ["a = Neg(b)", "b = Neg(a)"], "after": []})
