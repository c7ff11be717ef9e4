"""What the checker found out about one rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """A graph that a rule changed wrongly (or should have changed, or not), as text that parses back."""

    kind: str  # example, near miss, instance, crash; "... in ONNX Runtime"
    reason: str
    before: str
    after: str = ""
    seed: int = -1


@dataclass(slots=True)
class RuleReport:
    """The verdict on one rule: `fired` instances were changed by it, of which `checked` could be executed, and
    `elsewhere` (None: not asked for) in ONNX Runtime as well."""

    name: str
    exactness: str
    instances: int = 0
    typed: int = 0
    fired: int = 0
    checked: int = 0
    elsewhere: int | None = None
    failures: list[Failure] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)  # why instances could not be compared

    @property
    def ok(self) -> bool:
        """Nothing speaks against the rule."""
        return not self.failures

    def text(self) -> str:
        """One line, and the first failure if there is one."""
        line = (f"{self.name} ({self.exactness}): {'ok' if self.ok else 'UNSOUND'}, "
                f"{self.checked} of {self.fired} fired instances compared")
        line += "" if self.elsewhere is None else f", {self.elsewhere} in ONNX Runtime"
        if self.failures:
            first = self.failures[0]
            line += f"\n  {first.kind}: {first.reason}\n  before: {first.before}"
            line += f"\n  after: {first.after}" if first.after else ""
        return line

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "ok": self.ok}
