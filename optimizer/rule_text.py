"""A rule as people read it: its patterns and its examples on several lines."""

from __future__ import annotations

from graphs.text import parse_graph, print_graph
from rules.declare import Rule

WIDTH = 100


def describe_rule(rule: Rule) -> str:
    """What `egraft rules NAME` prints."""
    lines = [f"{rule.name} ({rule.family}, {rule.exactness}), {rule.source}", f"  {rule.meaning}", "before"]
    for pattern in rule.before:
        lines += spread(str(pattern))
    lines.append("after")
    for result in rule.after or ("... (its guard makes it)",):
        lines += spread(str(result))
    for title, text in (("applies to", rule.example), ("refuses", rule.near_miss)):
        lines += [title, *(f"  {line}" for line in print_graph(parse_graph(text)).splitlines())]
    return "\n".join(lines)


def other_steps() -> dict[str, str]:
    """The steps of a trace that are no rules of the search: name -> what they do."""
    from . import finalists, fusing, journaling, limiting, pipeline, rewriting, specialize
    from .normalize import PASSES

    return {**{each.name: each.meaning for each in PASSES}, fusing.RULE: "Several nodes become one kernel, which was "
            "faster where it was measured (docs/fusions.md).", fusing.ALONE: "One node becomes a kernel, which was "
            "faster where it was measured (docs/fusions.md).", journaling.REGION: f"{journaling.REGION_MEANING}.",
            rewriting.BODIES: rewriting.BODIES_MEANING, limiting.RULE: limiting.MEANING,
            pipeline.UNPACK: pipeline.UNPACKED, finalists.FORGET: finalists.FORGET_MEANING,
            specialize.FIX: specialize.FIX_MEANING, specialize.PIECEWISE: specialize.PIECEWISE_MEANING}


def spread(text: str, indent: int = 2, width: int = WIDTH) -> list[str]:
    """The lines of a nested call: on one line where it fits, else with an argument a line."""
    if indent + len(text) <= width or "(" not in text:
        return [" " * indent + text]
    head, _, rest = text.partition("(")
    arguments, tail = _arguments(rest)
    lines = [" " * indent + head + "("]
    for place, argument in enumerate(arguments):
        inner = spread(argument, indent + 2, width)
        inner[-1] += "," if place + 1 < len(arguments) else f"){tail}"
        lines += inner
    return lines


def _arguments(text: str) -> tuple[list[str], str]:
    """The arguments up to the bracket that closes them, and what follows it."""
    found, start, depth = [], 0, 0
    for place, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            found.append(text[start:place].strip())
            start = place + 1
            if letter == ")":
                return found, text[start:]
        depth += (letter in "([") - (letter in ")]")
    return [text], ""
