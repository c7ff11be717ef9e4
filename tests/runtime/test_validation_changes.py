"""Which constants and attributes count as another graph's own."""

import warnings

import pytest

from graphs.inference import infer
from graphs.ir import Graph
from graphs.text import parse_graph
from runtime.validation.changes import changes


def graph(value: str, alpha: str) -> Graph:
    found = parse_graph(f"""graph "g" opset 18 (x: float64[2]) -> (y) {{
      w = constant float64[2] [{value}, {value}]
      s = Mul(x, w) y = LeakyRelu(s, alpha={alpha}) }}""")
    infer(found)
    return found


@pytest.mark.parametrize("value, alpha, known", [
    ("3e38", repr(0.5), False),
    ("0.125", repr(0.125), True),  # the weight became the attribute
    ("1e39", repr(0.5), False),  # no float32 holds it
    ("1e39", "inf", False),  # and an infinity does not come from it
    ("inf", "inf", True),
])
def test_an_attribute_that_was_a_weight_is_no_change(value: str, alpha: str, known: bool) -> None:
    before, after = graph(value, "0.25"), graph("7", alpha)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, new = changes(before, after)
    assert (len(new.attributes) == 0) is known
