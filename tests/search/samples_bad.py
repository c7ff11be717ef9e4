"""Rules that misbehave inside the search process."""

from __future__ import annotations

import os
import signal
import time

from rules.declare import Match, Outcome, rule

EXAMPLE = "graph opset 17 (x: float32[2, 3]) -> (y) { y = Relu(x) }"


def _rule(before, after, group=""):
    return rule(family="test", exactness="exact", meaning="For tests.", before=before, after=after, example=EXAMPLE,
                near_miss=EXAMPLE, group=group)


@_rule("Relu(x)", "x")
def b_kills_its_process(m: Match) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


@_rule("Relu(x)", "x")
def b_never_answers(m: Match) -> Outcome:
    time.sleep(1000)
    return None


@_rule("Relu(x)", "x")
def b_computes_for_ever(m: Match) -> Outcome:
    while True:
        pass


@_rule("Relu(x)", "x")
def b_raises(m: Match) -> Outcome:
    raise RuntimeError("a defect")


@_rule("Relu(x)", "x")
def b_panics(m: Match) -> Outcome:
    raise BaseException("what a Rust panic looks like")


@_rule("Relu(x)", "Relu(Neg(x))")
def b_grows(m: Match) -> Outcome:
    """Unsound too, but what matters is that it never ends."""
    return None


@_rule("Mul(x, $c)", "x")
def b_mul_is_first(m: Match) -> Outcome:
    """Unsound: x * c = x."""
    return None
