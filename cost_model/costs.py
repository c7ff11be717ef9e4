"""The answer to "what does this node cost?" and the description of the node that is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from graphs.types import TensorType

Source = Literal["measured", "database", "roofline", "free", "unsupported"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one node takes on a target, and how that is known.

    `measured`: by this process; `database`: measured before, on the same device; `roofline`: an optimistic
    estimate; `free`: no work at run time; `unsupported` (infinite seconds): the target has no kernel for
    it. `spread` is the median absolute deviation of the samples in seconds, 0 where nothing was measured.
    `note` says what else matters.
    """

    seconds: float
    source: Source
    spread: float = 0.0
    note: str = ""

    @property
    def is_measured(self) -> bool:
        """The number was measured on the target, now or earlier."""
        return self.source in ("measured", "database")


FREE = Cost(0.0, "free")


@dataclass(frozen=True, slots=True, eq=False)
class NodeInput:
    """One input of a node that is to be priced.

    `type` is None where it is unknown. `constant`: known before the run (a weight), so that the target may
    prepare it. `array`: the elements, given only where they are few (an exponent, a Reshape target); an
    input that is not constant may have them too, as an example of what it holds at run time.
    """

    type: TensorType | None
    constant: bool = False
    array: np.ndarray | None = None
    absent: bool = False


ABSENT = NodeInput(None, absent=True)


@dataclass(frozen=True, slots=True, eq=False)
class NodeSpec:
    """Everything that decides what a node costs; names of values are not part of it. Types are static or
    None.
    """

    op: str
    domain: str
    attrs: Mapping[str, object]
    inputs: tuple[NodeInput, ...]
    output_count: int
    opset: int
    version: int = -1  # of the record the node was read with; -1: the one in force at `opset`
    opsets: Mapping[str, int] = field(default_factory=dict)  # of other domains

    @property
    def label(self) -> str:
        """`domain.Op` for messages."""
        return f"{self.domain}.{self.op}" if self.domain else self.op
