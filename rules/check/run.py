"""Running the checks: what a rule makes of its example, of its near miss, and of random instances."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import numpy as np

from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.text import parse_graph, print_graph
from runtime import run
from runtime.feeds import draw, size_candidates
from runtime.validation import Executor, Validation, validate

from ..apply import apply_at, matches
from ..catalogue import all_rules
from ..declare import Refusal, Rule
from .foreign import OnnxRuntime
from .mutate import mutated
from .report import Failure, RuleReport

MAX_MATCHES = 3
ATTEMPTS = 4  # variations drawn for each instance until one is well-typed


def check_all(names: Iterable[str] | None = None, instances: int = 30, seed: int = 0,
              elsewhere: bool = False) -> list[RuleReport]:
    """Check all rules, or those named; `elsewhere`: in ONNX Runtime too. The same arguments give the same reports."""
    wanted = None if names is None else set(names)
    rules = [rule for rule in all_rules() if wanted is None or rule.name in wanted]
    if wanted is not None and len(rules) < len(wanted):
        raise KeyError(f"no rule {', '.join(sorted(wanted - {rule.name for rule in rules}))}")
    with OnnxRuntime() if elsewhere else nullcontext() as other:
        return [check_rule(rule, instances, seed, other) for rule in rules]


def check_rule(rule: Rule, instances: int = 30, seed: int = 0, other: Executor | None = None) -> RuleReport:
    """Check one rule (it need not be in the catalogue), in another runtime too if one is given."""
    report = RuleReport(rule.name, rule.exactness, elsewhere=0 if other else None)
    example = _declared(rule, "example", report)
    near_miss = _declared(rule, "near miss", report)
    if example is None or near_miss is None:
        return report
    if not _check(rule, example, "example", report, other):
        report.failures.append(Failure("example", _why_not(rule, example), rule.example))
    if not report.failures and report.checked == 0:
        report.failures.append(Failure("example", "it could not be compared", rule.example))
    fired = [new for match in matches(near_miss, rule) if isinstance(new := apply_at(near_miss, rule, match), Graph)]
    if fired:
        report.failures.append(Failure("near miss", "the rule fires", rule.near_miss, print_graph(fired[0])))
    for index in range(instances):
        if report.failures:
            break
        _instance(rule, example if index % 4 else near_miss, seed + index, report, other)
    return report


def _declared(rule: Rule, kind: str, report: RuleReport) -> Graph | None:
    text = rule.example if kind == "example" else rule.near_miss
    try:
        return parse_graph(text)
    except EgraftError as error:
        report.failures.append(Failure(kind, str(error), text))
        return None


def _why_not(rule: Rule, graph: Graph) -> str:
    reasons = [new.reason for match in matches(graph, rule) if isinstance(new := apply_at(graph, rule, match), Refusal)]
    return "the rule does not fire: " + ("; ".join(reasons) or "the pattern does not match")


def _instance(rule: Rule, start: Graph, seed: int, report: RuleReport, other: Executor | None) -> None:
    rng = np.random.default_rng((seed, sum(map(ord, rule.name))))
    report.instances += 1
    for _ in range(ATTEMPTS):
        graph = mutated(start, rng)
        if graph is not None:
            report.typed += 1
            if _check(rule, graph, "instance", report, other, seed):
                return


def _check(rule: Rule, graph: Graph, kind: str, report: RuleReport, other: Executor | None, seed: int = 0) -> bool:
    """Compare what the rule makes of a graph with the graph; False where it does not fire."""
    fired = False
    for count, match in enumerate(matches(graph, rule)):
        if count >= MAX_MATCHES or report.failures:
            break
        try:
            new = apply_at(graph, rule, match)
        except Exception as error:  # a guard must not fail: it runs inside the search
            report.failures.append(Failure("crash", f"{type(error).__name__}: {error}", print_graph(graph), seed=seed))
            return True
        if isinstance(new, Refusal):
            continue
        fired = True
        report.fired += 1
        _compare(rule, graph, new, kind, report, seed, other)
    return fired


def _compare(rule: Rule, graph: Graph, new: Graph, kind: str, report: RuleReport, seed: int,
             other: Executor | None) -> None:
    changed = next((name for name in graph.outputs if new.type_of(name) != graph.type_of(name)), None)
    if changed is not None:
        reason = f"output {changed} has type {new.type_of(changed)}, not {graph.type_of(changed)}"
        report.failures.append(Failure(kind, reason, print_graph(graph), print_graph(new), seed))
        return
    if _holds(rule, graph, new, kind, report, seed, None):
        report.checked += 1
        if other is not None and report.elsewhere is not None:
            report.elsewhere += _holds(rule, graph, new, f"{kind} in ONNX Runtime", report, seed, other)


def _holds(rule: Rule, graph: Graph, new: Graph, kind: str, report: RuleReport, seed: int,
           runner: Executor | None) -> bool:
    """Both graphs were run and are equal. A difference and what could not be run go into the report."""
    try:
        verdict = validate(graph, new, rule.exactness, seed=seed, executor=runner)
    except Exception as error:  # a defect of the validation says nothing about the rule
        report.undecided.append(f"{type(error).__name__}: {error}")
        return False
    if verdict.ok or (rule.exactness == "exact" and runner is None and verdict.status == "failed"
                      and _identical(graph, new, seed)):
        return True
    if verdict.status == "failed" and not _chance(rule, graph, new, seed, verdict, runner):
        report.failures.append(Failure(kind, verdict.reason, print_graph(graph), print_graph(new), seed))
    return False


def _chance(rule: Rule, graph: Graph, new: Graph, seed: int, verdict: Validation, runner: Executor | None) -> bool:
    """A failure with special values that does not come again: numbers near the limits of the type may cancel exactly,
    and the smallest ones vanish, in one form only."""
    if rule.exactness != "rounding" or not verdict.rounds or not verdict.rounds[-1].special:
        return False
    again = [validate(graph, new, rule.exactness, seed=seed + extra, executor=runner) for extra in (1009, 2003, 3001)]
    return sum(not each.ok for each in again) <= 1


def _identical(graph: Graph, new: Graph, seed: int) -> bool:
    """Bit for bit the same on several draws. `validate` pairs discrete nodes (Floor of Floor) by kind, which may pair
    the wrong ones; a rule of class exact needs no pairing."""
    base = next(size_candidates(graph))
    for extra in range(8):
        feeds = draw(graph, seed + extra, base, special=extra > 1)
        before, after = run(graph, feeds), run(new, feeds)
        if any(_bits(before[name]) != _bits(after[name]) for name in graph.outputs):
            return False
    return True


def _bits(value: np.ndarray) -> tuple[object, ...]:
    """Type, shape and bits, with one kind of NaN."""
    array = np.ascontiguousarray(value)
    if array.dtype.kind not in "biuO":
        array = np.where(array != array, np.full((), np.nan, array.dtype), array)
    return array.dtype, array.shape, array.tobytes()
