"""Every rule: its example fires and is equal under the rule's class, its near miss does not fire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from graphs.text import parse_graph
from rules import catalogue
from rules.apply import apply_at, matches
from rules.check import OnnxRuntime, check_rule, runtime_version
from rules.declare import EXACTNESS, Refusal, Rule
from scripts.rules_reference import OUT, reference

RULES = catalogue.all_rules()


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_example_and_near_miss(rule: Rule) -> None:
    report = check_rule(rule, instances=0)
    assert report.ok, report.text()
    assert report.checked > 0


@pytest.fixture(scope="module")
def other() -> Iterator[OnnxRuntime | None]:
    if runtime_version() is None:
        yield None
        return
    with OnnxRuntime() as runtime:
        yield runtime


@pytest.mark.parametrize("rule", RULES[::9], ids=[rule.name for rule in RULES[::9]])
def test_random_instances(rule: Rule, other: OnnxRuntime | None) -> None:
    """A fixed share of the rules on a few instances; `egraft rules check` does all of them on many."""
    report = check_rule(rule, 2, 7, other)
    assert report.ok, report.text()


def test_declarations_are_complete() -> None:
    assert len(RULES) >= 40
    for rule in RULES:
        assert rule.exactness in EXACTNESS
        assert rule.meaning.endswith(".") and rule.family and rule.source.startswith("rules/")
        assert rule.after is not None or "..." in rule.text()


def test_lookup_by_name_and_family() -> None:
    assert catalogue.by_name("neg-neg").before
    with pytest.raises(KeyError, match="did you mean"):
        catalogue.by_name("neg-ne")
    assert {rule.family for rule in catalogue.by_family("linear")} == {"linear"}
    exact = catalogue.permitted("exact", disabled=["neg-neg"])
    assert all(rule.exactness == "exact" for rule in exact) and "neg-neg" not in {rule.name for rule in exact}


def test_permitted_classes_are_nested() -> None:
    counts = [len(catalogue.permitted(name)) for name in EXACTNESS]
    assert counts == sorted(counts) and counts[0] < counts[1] < counts[2]


def test_a_refusal_gives_its_reason() -> None:
    rule = catalogue.by_name("matmul-add-gemm")
    graph = parse_graph(rule.near_miss)
    reasons = [new.reason for match in matches(graph, rule) if isinstance(new := apply_at(graph, rule, match), Refusal)]
    assert reasons == ["the bias does not broadcast to the product"]


@pytest.mark.parametrize(("name", "dtype", "body"), [
    ("add-sub", "float32", "a = constant {0}[] 2 b = constant {0}[] 2 t = Add(x, a) y = Sub(t, b)"),
    ("add-add", "float64", "a = constant {0}[] 2 b = constant {0}[] -1.9 t = Add(x, a) y = Add(t, b)"),
    ("hard-sigmoid-parts", "float16", "y = HardSigmoid(x, alpha=0.2)"),
])
def test_digits_that_would_move(name: str, dtype: str, body: str) -> None:
    """(x + 2) - 2 has lost digits of a small x; 0.2 in float16 is another slope."""
    text = f"graph opset 17 (x: {dtype}[3]) -> (y) {{ {body.format(dtype)} }}"
    kinder = text.replace("1.9", "0.5").replace("[] 2 t", "[] 0.5 t").replace("alpha=0.2", "alpha=0.25")
    rule = catalogue.by_name(name)
    for graph, refused in ((parse_graph(text), True), (parse_graph(kinder), False)):
        found = [isinstance(apply_at(graph, rule, match), Refusal) for match in matches(graph, rule)]
        assert found == [refused]


@pytest.mark.parametrize(("dtype", "refused"), [("float16", True), ("float32", False)])
def test_scales_of_both_operands_are_not_joined_in_half_precision(dtype: str, refused: bool) -> None:
    """0.004 a times 0.004 b: 1.6e-5 times 0.5 is below the normal numbers of float16, which have 11 bits."""
    rule = catalogue.by_name("both-operands-scaled")
    graph = parse_graph(rule.example.replace("float32", dtype).replace("[] 0.5", "[] 0.004"))
    found = {isinstance(apply_at(graph, rule, match), Refusal) for match in matches(graph, rule)}
    assert found == {refused}


def test_reference_page_is_up_to_date() -> None:
    written = Path(OUT).read_text(encoding="utf-8") if Path(OUT).exists() else ""
    assert written == reference(), "run: python -m scripts.rules_reference"
