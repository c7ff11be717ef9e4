"""Types of values: a tensor's element type and shape, or a type that egraft only hands through."""

from __future__ import annotations

from dataclasses import dataclass

from . import dtypes
from .dims import DimLike, Expr, depends_on_data, product

Shape = tuple[DimLike, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """`float32[batch, 3]`; `shape` is None where even the rank is unknown (`float32[...]`)."""

    dtype: str
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None where unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Every dimension is an integer."""
        return self.shape is not None and not any(isinstance(dim, Expr) for dim in self.shape)

    @property
    def is_known(self) -> bool:
        """The shape follows from the sizes of the inputs alone."""
        return self.shape is not None and not any(map(depends_on_data, self.shape))

    @property
    def elements(self) -> DimLike | None:
        """Number of elements, None where the rank is unknown."""
        return None if self.shape is None else product(self.shape)

    @property
    def static_bytes(self) -> float | None:
        """Bytes of the tensor where its shape is static."""
        count = self.elements
        return count * dtypes.item_bytes(self.dtype) if isinstance(count, int) else None

    def with_shape(self, shape: Shape | None) -> TensorType:
        """The same element type with another shape."""
        return TensorType(self.dtype, shape)

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class RawAttribute:
    """An attribute of an opaque node that has no plain form (a type, a sparse tensor, an empty list of floats, a
    reference to a function's attribute), kept as the bytes of its ONNX AttributeProto."""

    proto: bytes


@dataclass(frozen=True, slots=True)
class OtherType:
    """A sequence, optional, map or sparse type, kept as the bytes of its ONNX TypeProto."""

    proto: bytes
    text: str = "other"

    def __str__(self) -> str:
        return self.text


Type = TensorType | OtherType
