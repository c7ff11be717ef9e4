"""Arithmetic that kernels share: wider intermediate types, erf, reading attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from . import Arrays


def wide(x: np.ndarray) -> np.ndarray:
    """float16, bfloat16 and narrower floats as float32, everything else as it is."""
    if x.dtype == np.float16 or is_small_float(x.dtype):
        return x.astype(np.float32)
    return x


@lru_cache(maxsize=256)  # asking a dtype for its name takes longer than adding two small arrays
def is_small_float(dtype: np.dtype) -> bool:
    """A float type that NumPy does not know (bfloat16, float8)."""
    return "float" in dtype.name and dtype.itemsize <= 2 and dtype != np.float16


def is_floating(dtype: np.dtype) -> bool:
    """Any float type."""
    return "float" in dtype.name


def narrow(x: np.ndarray | np.generic, dtype: np.dtype) -> np.ndarray:
    """The result in the operator's type, rounded once."""
    return np.asarray(x).astype(dtype, copy=False)


def unary(
    function: Callable[[np.ndarray], np.ndarray],
) -> Callable[[Mapping[str, object], Arrays], list[np.ndarray]]:
    """A kernel of one input that keeps its type."""

    def run(attrs: Mapping[str, object], inputs: Arrays) -> list[np.ndarray]:
        x = given(inputs, 0)
        with np.errstate(all="ignore"):
            return [narrow(function(wide(x)), x.dtype)]

    return run


def given(inputs: Arrays, position: int) -> np.ndarray:
    """An input that must be there."""
    value = inputs[position]
    assert value is not None, position
    return value


def optional(inputs: Arrays, position: int) -> np.ndarray | None:
    """An input that may be absent."""
    return inputs[position] if position < len(inputs) else None


def number(attrs: Mapping[str, object], name: str) -> float:
    """A float attribute."""
    return float(attrs[name])  # type: ignore[arg-type]


def integer(attrs: Mapping[str, object], name: str) -> int:
    """An integer attribute, or a static one whose input had one element."""
    value = attrs[name]
    return int(value[0]) if isinstance(value, tuple) else int(value)  # type: ignore[call-overload]


def integers(attrs: Mapping[str, object], name: str) -> tuple[int, ...] | None:
    """A list attribute, None where not given; a scalar counts as a list of one."""
    value = attrs[name]
    if value is None:
        return None
    return tuple(int(item) for item in value) if isinstance(value, tuple) else (int(value),)  # type: ignore[call-overload]


_P = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
      1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
      5.57535335369399327526e2)  # fmt: skip
_Q = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
      1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3,
      5.57535340817727675546e2)  # fmt: skip
_T = (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
      5.55923013010394962768e4)  # fmt: skip
_U = (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
      4.92673942608635921086e4)  # fmt: skip


# For float32: x + x*P(x^2) near zero, 1 - exp(-x*(1 + P(x))) beyond (coefficients of N. Juffa's erff).
_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
_FAR = (-1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
        -1.28717512e-1)  # fmt: skip
_BLOCK = 8192  # elements whose intermediate results stay in the cache


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += x.dtype.type(coefficient)
    return total


def _erf32(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    near = _polynomial(x * x, _NEAR)
    near *= x
    near += x
    np.minimum(size, 4, out=size)  # from there on erf is 1 in float32
    far = _polynomial(size, _FAR)
    far *= size
    far -= size
    np.exp(far, out=far)
    np.subtract(1, far, out=far)
    return np.where(size > np.float32(0.927734375), np.copysign(far, x), near)


def _erf64(x: np.ndarray) -> np.ndarray:
    size = np.minimum(np.abs(x), 6.5)  # from 6 on erf is 1 in float64
    square = size * size
    small = size * _polynomial(square, _T) / _polynomial(square, _U)
    large = 1.0 - np.exp(-square) * _polynomial(size, _P) / _polynomial(size, _Q)
    return np.copysign(np.where(size <= 1.0, small, large), x)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function of float32 or float64, to a few units in the last place."""
    function = _erf32 if x.dtype == np.float32 else _erf64
    flat = np.ascontiguousarray(x).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        result[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return result.reshape(x.shape)
