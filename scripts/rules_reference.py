"""Write docs/rules.md from the declarations of the rules: `python -m scripts.rules_reference`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from rules.catalogue import all_rules
from rules.declare import EXACTNESS, Rule

OUT = Path(__file__).resolve().parent.parent / "docs" / "rules.md"
_HEAD = """# Rules

Generated from the declarations in `rules/` by `python -m scripts.rules_reference`; do not edit.

{count} rules. Each has a class: `exact` (bit for bit), `rounding` (equal in real arithmetic, NaN and infinities stay),
`finite` (equal where no NaN or infinity occurs), `approximate`. A request loads the rules of its class and of the
stronger ones. Patterns: `$w` is a constant, `?b` may be absent, `*xs` takes all inputs, `c:` labels a node; `...` on
a right side is built by the rule's function. `Reshape` stands for Flatten, Squeeze and Unsqueeze too.
`egraft rules NAME` shows a rule with its example and its near miss, and says of other steps of a trace
(`fold-constants`, `fuse`) what they do.

| family | {classes} | rules |
|---|{bars}---|
"""


def _table(rules: list[Rule]) -> Iterator[str]:
    for family in sorted({rule.family for rule in rules}):
        own = [rule.exactness for rule in rules if rule.family == family]
        cells = " | ".join(str(own.count(name)) for name in EXACTNESS)
        yield f"| [{family}](#{family}) | {cells} | {len(own)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def reference() -> str:
    """The text of the reference page."""
    rules = sorted(all_rules(), key=lambda rule: rule.family)
    head = _HEAD.format(count=len(rules), classes=" | ".join(EXACTNESS), bars="---|" * len(EXACTNESS))
    lines = [head + "\n".join(_table(rules))]
    for family, own in groupby(rules, key=lambda rule: rule.family):
        lines.append(f"\n## {family}\n\n| rule | class | meaning | before => after | source |\n|---|---|---|---|---|")
        for rule in own:
            source = rule.source.partition(":")[0]
            lines.append(f"| `{rule.name}` | {rule.exactness} | {_cell(rule.meaning)} | `{_cell(rule.text())}` "
                         f"| [{source}](../{source}) |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUT.write_text(reference(), encoding="utf-8")
