"""The plot of time against memory."""

from xml.etree import ElementTree

from scripts.training_plot import Line, plot


def test_points_stand_where_their_numbers_say() -> None:
    lines = [Line("a", [(1.0, 1.0, 1.0, 1.0), (0.6, 1.2, 1.1, 1.3), (0.2, 1.4, 1.4, 1.4)]),
             Line("b", [(1.0, 0.8, 0.7, 0.9)])]
    root = ElementTree.fromstring(plot(lines))
    circles = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in root if each.tag.endswith("circle")]
    (x1, y1), (x2, y2), (x3, y3), (_, lowest) = circles
    assert x1 - x2 == x2 - x3 > 0  # equal steps of memory
    assert abs((y1 - y2) - (y2 - y3)) < 0.11 and y1 > y2 and lowest > y1  # more time is further up
    assert [each.text for each in root if each.text in ("a", "b")] == ["a", "b"]
