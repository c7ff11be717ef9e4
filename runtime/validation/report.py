"""What a validation found, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from graphs.wording import counted

PASSED, FAILED, NOT_VALIDATED = "passed", "failed", "not validated"


@dataclass(slots=True)
class OutputCheck:
    """One output (or one input of a node that was not executed or is pinned) in its worst round.

    `error` and `allowed` belong to the element that came nearest to its limit or went furthest beyond, `ratio` is
    the first by the second. `against` says what the error was measured from. `share` is the part of the elements
    that could be compared: the original itself is stable there. `neighbours` is the number of elements of its order of
    magnitude (see `levels`).
    """

    name: str
    ok: bool = True
    error: float = 0.0
    allowed: float = 0.0
    ratio: float = 0.0
    against: str = "the original"
    share: float = 1.0
    elements: int = 0
    neighbours: int = 0
    reason: str = ""
    round: int = -1
    at: tuple[int, ...] | None = None
    unpinnable: bool = False  # the difference may come from pairing the wrong discrete nodes
    pin: str = ""  # which pair's input this is

    def worse_than(self, other: OutputCheck) -> bool:
        """Orders checks of one output by how bad they are."""
        return (not self.ok, self.ratio) > (not other.ok, other.ratio)


@dataclass(slots=True)
class Round:
    """One draw of inputs: enough to draw them again with `runtime.feeds.draw`."""

    seed: int
    sizes: dict[str, int]
    special: bool = False
    huge: bool = False
    given: bool = False  # the user's own data
    wide: bool = True  # compared in float64 as well
    spread: str = "normal"  # of numbers, see `runtime.feeds.SPREADS`
    ok: bool = True
    reason: str = ""


@dataclass(slots=True)
class Validation:
    """The verdict on an optimized graph. `ok` is true only where outputs were really compared and agree. `device`: of a
    graph for a GPU, what its run there came to (`optimizer.on_device`)."""

    exactness: str
    status: str = NOT_VALIDATED
    reason: str = ""
    outputs: list[OutputCheck] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    executed: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    device: dict[str, object] | None = None

    @property
    def ok(self) -> bool:
        """Passed."""
        return self.status == PASSED

    @property
    def worst(self) -> OutputCheck | None:
        """The output nearest to its limit or furthest beyond it."""
        found: OutputCheck | None = None
        for check in self.outputs:
            if found is None or check.worse_than(found):
                found = check
        return found

    def to_dict(self) -> dict[str, object]:
        """As JSON: floats that JSON lacks become text."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return {"ok": self.ok, **plain, "summary": self.summary()}

    def summary(self) -> str:
        """One line."""
        text = f"{self.status} ({self.exactness})"
        if self.reason:
            text += f": {self.reason}"
        worst = self.worst
        if worst is not None and worst.allowed:
            text += (f"; nearest to its limit: error {worst.error:.3g} of {worst.allowed:.3g} allowed, "
                     f"output {worst.name!r}, against {worst.against}")
        return f"{text}; {self._draws()}{self._not_executed()}" if self.rounds else text

    def _not_executed(self) -> str:
        labels = self.executed.get("not_executed")
        if not isinstance(labels, list) or not labels:
            return ""
        regions = self.executed.get("regions")
        return f"; not executed: {_short(labels)}" + (f" ({regions} regions between)" if regions else "")

    def _draws(self) -> str:
        """How many rounds there were, of which kind, with which seeds and sizes; `rounds` has each one."""
        plain = [each for each in self.rounds if not each.special and not each.given]
        special = [each for each in self.rounds if each.special]
        parts = [f"{counted(sum(each.given for each in self.rounds), 'round')} of given data"]
        parts += [f"{len(rows)} {kind} (seeds {min(each.seed for each in rows)} to {max(each.seed for each in rows)})"
                  for kind, rows in (("random", plain), ("with special values", special)) if rows]
        sizes = dict.fromkeys(", ".join(f"{name}={size}" for name, size in each.sizes.items())
                              for each in self.rounds if each.sizes)
        where = f" at {' and at '.join(sizes)}" if sizes else ""
        given = any(each.given for each in self.rounds)
        return f"{counted(len(self.rounds), 'round')}: {', '.join(parts if given else parts[1:])}{where}"


def _short(labels: list[object]) -> str:
    shown = ", ".join(map(str, labels[:3]))
    return shown + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
