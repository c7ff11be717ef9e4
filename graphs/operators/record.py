"""The operator record: one per operator, everything the rest of egraft needs to know about its form.

Canonical form of a node whose operator has a record:

* attributes: exactly the names in `Operator.attrs`, defaults filled in (an attribute whose default is `REQUIRED` is
  always there; one whose default is None may be None = not given);
* inputs that only decide the meaning (axes, pads, a Reshape target) become attributes where they are constants:
  `Operator.static` says which. Such a node has '' (or nothing) at that input. A runtime value stays an input, and
  the attribute is then `RUNTIME`;
* axes may be negative as the model has them; `infer` and kernels normalise.

The ONNX reader and writer convert between the canonical form and any version in `Operator.versions`: whether a static
attribute is an attribute or an input at a version is read from the ONNX schema itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..constants import Constant
from ..dims import DimLike, data_dim
from ..errors import InferenceError
from ..types import TensorType, Type


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


REQUIRED = _Mark("REQUIRED")  # default of an attribute that must be given
RUNTIME = _Mark("RUNTIME")  # value of a static attribute whose input is not a constant

Contents = tuple[DimLike, ...]  # elements of a small integer tensor, row-major, as dimensions


@dataclass(slots=True)
class Site:
    """What inference sees of one node: attributes, input types, and what is known of input contents.

    `types[i]` is None for an absent input or an unknown type. `contents[i]` is not None where input i is an integer
    tensor (or a bool) of at most 64 elements whose elements are known as dimensions. `label` makes sizes that only
    data decide unique.
    """

    op: str
    attrs: Mapping[str, object]
    types: Sequence[TensorType | None]
    contents: Sequence[Contents | None]
    constants: Sequence[Constant | None]
    outputs: int
    label: str

    def type(self, index: int) -> TensorType | None:
        """Type of input `index`, None if absent or unknown."""
        return self.types[index] if index < len(self.types) else None

    def content(self, index: int) -> Contents | None:
        """Known elements of input `index`."""
        return self.contents[index] if index < len(self.contents) else None

    def constant(self, index: int) -> Constant | None:
        """Input `index` where it is a constant."""
        return self.constants[index] if index < len(self.constants) else None

    def unknown_dim(self, index: int = 0) -> DimLike:
        """A size that only data decide, the same for the same label and index."""
        return data_dim(self.label, index)

    def fail(self, found: str, fix: str = "correct the model at this node") -> InferenceError:
        """The error to raise for inputs that the operator does not accept."""
        return InferenceError(f"{self.op} {self.label!r}", found, fix)


Infer = Callable[[Site], "list[Type | None]"]
InferContents = Callable[[Site], "Contents | None"]
Convert = Callable[[dict[str, object], int], "dict[str, object] | None"]
PureIf = Callable[[Mapping[str, object]], bool]


@dataclass(frozen=True)
class Operator:
    """The record of an operator.

    `versions`: the `since_version`s (of ONNX schemas) that the canonical form covers. `read(attrs, version)` turns
    attributes of an older version into canonical ones (None: keep this node opaque), `write(attrs, version)` the
    reverse (None: cannot be written at that version). `static`: attribute -> input index it comes from if constant.
    `commutative`: the first two inputs may be exchanged bit for bit. `pointwise`: each output element depends on the
    aligned input elements only (ONNX broadcasting). `movement`: output elements are input elements, moved or copied.
    `contents`: known elements of the (single) integer output. `pure_if`: whether a node with these attributes is
    pure, where that depends on them (training mode); ask `graphs.operators.is_pure(node)`.
    """

    name: str
    infer: Infer
    versions: tuple[int, ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    static: Mapping[str, int] = field(default_factory=dict)
    domain: str = ""
    pure: bool = True  # False: random, training-mode or stateful: never merged, folded or duplicated
    commutative: bool = False
    pointwise: bool = False
    movement: bool = False
    contents: InferContents | None = None
    read: Convert | None = None
    write: Convert | None = None
    pure_if: PureIf | None = None
    standard: bool = True  # False: the domain is ONNX's, but only ONNX Runtime defines the operator

    @property
    def key(self) -> tuple[str, str]:
        """(domain, name)."""
        return self.domain, self.name
