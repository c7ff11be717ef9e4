"""The yardstick: how far two values of one output may be apart, element by element and on the whole.

For `rounding` the noise of an element is the largest of what was seen of the original itself: its distance from its
own float64 twin, and how far it moves when inputs and weights move by one ulp. Single elements are lucky now and
then, so the noise is at least the level of its row and column (`levels`). On top come a few ulps of the
element's size, or of the level of sizes around it; where both graphs run in float64, of its own size alone, since
there is no rounding but that of constants which only one of them has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from graphs import dtypes

from .levels import GROUP, Levels, band_level, local_level, sure_gap
from .report import OutputCheck

MEAN_FACTOR, MEAN_ULPS = 4.0, 4.0  # root mean square over the tensor
PEAK_FACTOR, PEAK_ULPS = 10.0, 8.0  # every single element
WIDE_MEAN_ULPS, WIDE_PEAK_ULPS = 0.5, 2.0  # of float32, where both graphs run in float64
WIDE_LEVEL_ULPS = 2.0**-21  # of float32, of the level: more than float64 rounds
MEANINGFUL = 0.25  # allowed error beyond this part of the output's size: the element counts as not compared
EDGE_ULPS = 64.0  # so near to the largest number, rounding decides whether it is infinite
FLIPS_FACTOR, FLIPS_SHARE = 4.0, 1e-5  # discrete places that are not pinned: elements that may jump
# However far the original is from its float64 twin, the result stays near the original: a cast to half precision
# and back is there to round, and dropping it is more than rounding.
NEAR_FACTOR, NEAR_ULPS = 64.0, 256.0
BLIND_FACTOR = 2.5  # without a float64 run rounding inside the original is not seen, only that of inputs and weights
SPECIAL_FACTOR = 4.0  # few values of very different size: their levels are rough. NaN and infinities are the point
NAN, PLUS, MINUS = 1, 2, 3
_FLOAT32_EPS = 2.0**-23


@dataclass(slots=True)
class Samples:
    """What the runs of one round gave for one output. `wide` is the float64 twin of the original (`wide_other` of
    the optimized graph); `moved` are runs of the original with moved inputs and weights. `wide_moved` are those
    runs in float64 where what the optimized graph lacks was moved, `wide_other_moved` those of the optimized graph
    where what is new there was moved. `extended` is the original in longdouble, of graphs in float64."""

    original: Any
    optimized: Any
    moved: list[Any] = field(default_factory=list)
    wide: Any = None
    wide_other: Any = None
    wide_moved: list[Any] = field(default_factory=list)
    wide_other_moved: list[Any] = field(default_factory=list)
    extended: Any = None


@dataclass(frozen=True, slots=True)
class Terms:
    """How strictly to compare."""

    exactness: str = "rounding"
    rtol: float | None = None
    atol: float | None = None
    jumps: bool = False  # discrete places upstream are not pinned
    coarse: float = 1.0  # epsilon of the narrowest type that the original computes in
    huge: bool = False  # inputs near the limits of the dtype: overflow inside is expected
    special: bool = False
    size: float = 0.0  # of this output in earlier rounds: one that is 0 here was still computed from larger numbers


def compare(name: str, samples: Samples, terms: Terms) -> OutputCheck:
    """Check one output of one round."""
    a, b = samples.original, samples.optimized
    if isinstance(a, list) or isinstance(b, list):
        return _compare_sequences(name, samples, terms)
    if a is None or b is None:
        return OutputCheck(name, a is None and b is None, reason="" if a is b else "one of the two is empty")
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        return OutputCheck(name, False, reason=f"dtype {b.dtype} instead of {a.dtype}", unpinnable=True)
    if a.shape != b.shape:
        return OutputCheck(name, False, reason=f"shape {list(b.shape)} instead of {list(a.shape)}", unpinnable=True)
    same_shape = _with_arrays(samples, a, b)
    a, b = same_shape.original, same_shape.optimized
    if dtypes.name_of(a.dtype) in dtypes.FLOATS or a.dtype.kind == "c":
        if terms.exactness == "exact":
            return _compare_bits(name, a, b)
        if terms.rtol is not None or terms.atol is not None or terms.exactness == "approximate":
            return _compare_tolerance(name, a, b, terms)
        if a.dtype.kind == "c":
            return _compare_parts(name, same_shape, terms)
        return _compare_rounding(name, same_shape, terms)
    return _compare_discrete(name, same_shape, terms)


def _with_arrays(samples: Samples, a: np.ndarray, b: np.ndarray) -> Samples:
    """The samples as arrays of rank 1 or more; those of another shape (data decided it) are left out."""
    def fits(value: Any) -> bool:
        return isinstance(value, np.ndarray | np.generic) and np.shape(value) == a.shape

    def arrays(values: list[Any]) -> list[np.ndarray]:
        return [np.atleast_1d(each) for each in values if fits(each)]

    wide, other = samples.wide, samples.wide_other
    both = fits(wide) and fits(other)
    return Samples(np.atleast_1d(a), np.atleast_1d(b), arrays(samples.moved),
                   np.atleast_1d(wide) if both else None, np.atleast_1d(other) if both else None,
                   arrays(samples.wide_moved), arrays(samples.wide_other_moved),
                   np.atleast_1d(samples.extended) if fits(samples.extended) else None)


def _compare_sequences(name: str, samples: Samples, terms: Terms) -> OutputCheck:
    a, b = samples.original, samples.optimized
    if not (isinstance(a, list) and isinstance(b, list) and len(a) == len(b)):
        return OutputCheck(name, False, reason="the sequences have different lengths", unpinnable=True)

    def item(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, list) and index < len(value) else None

    worst = OutputCheck(name, elements=0)
    for index in range(len(a)):
        part = Samples(a[index], b[index], [item(each, index) for each in samples.moved], item(samples.wide, index),
                       item(samples.wide_other, index), [item(each, index) for each in samples.wide_moved],
                       [item(each, index) for each in samples.wide_other_moved], item(samples.extended, index))
        check = compare(f"{name}[{index}]", part, terms)
        if check.worse_than(worst) or not worst.elements:
            worst = check
    return worst


def _compare_parts(name: str, samples: Samples, terms: Terms) -> OutputCheck:
    """Complex numbers as real and imaginary part, side by side."""
    def flat(value: Any) -> Any:
        if value is None:
            return None
        array = np.ascontiguousarray(value)
        return array.view(f"f{array.dtype.itemsize // 2}")

    parts = Samples(flat(samples.original), flat(samples.optimized), [flat(each) for each in samples.moved],
                    flat(samples.wide), flat(samples.wide_other), [flat(each) for each in samples.wide_moved],
                    [flat(each) for each in samples.wide_other_moved])
    return _compare_rounding(name, parts, terms)


def _classes(array: np.ndarray) -> np.ndarray:
    found = np.zeros(array.shape, np.int8)
    found[np.isnan(array)] = NAN
    found[np.isposinf(array)] = PLUS
    found[np.isneginf(array)] = MINUS
    return found


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(mask)[0]) if mask.ndim else ()


def _compare_bits(name: str, a: np.ndarray, b: np.ndarray) -> OutputCheck:
    """Bit-identical, except which NaN it is."""
    check = OutputCheck(name, elements=a.size)
    if a.dtype.kind == "c":
        a, b = (np.ascontiguousarray(each).reshape(-1).view(f"f{each.dtype.itemsize // 2}") for each in (a, b))
    bits = f"u{a.dtype.itemsize}"
    raw_a, raw_b = (np.ascontiguousarray(each).reshape(-1).view(bits).reshape(each.shape) for each in (a, b))
    differ = (raw_a != raw_b) & ~(np.isnan(a) & np.isnan(b))
    if bool(differ.any()):
        at = _first(differ)
        with np.errstate(all="ignore"):
            check.error = float(abs(np.float64(a[at]) - np.float64(b[at])))
        check.ok, check.at, check.ratio = False, at, float("inf")
        check.reason = f"{b[at]!s} instead of {a[at]!s} at {list(at)} ({int(differ.sum())} of {a.size} differ)"
    return check


def _compare_tolerance(name: str, a: np.ndarray, b: np.ndarray, terms: Terms) -> OutputCheck:
    rtol = terms.rtol if terms.rtol is not None else 1e-2 if terms.exactness == "approximate" else 0.0
    atol = terms.atol
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    wide_a, wide_b = a.astype(kind), b.astype(kind)
    if kind is np.complex128:
        classes_a, classes_b = (_classes(np.abs(each)) for each in (wide_a, wide_b))
    else:
        classes_a, classes_b = _classes(wide_a), _classes(wide_b)
    finite = (classes_a == 0) & (classes_b == 0)
    sizes = np.where(finite, np.abs(wide_a), 0.0)
    least = atol if atol is not None else rtol * 0.1 * _levels(sizes, finite, terms).whole(sizes)
    wrong = classes_a != classes_b
    if terms.exactness == "finite":
        wrong &= classes_a == 0
    if terms.huge:
        wrong[...] = False
    if bool(wrong.any()):
        return _not_finite(name, a, b, wrong)
    error = np.abs(np.where(finite, wide_a, 0.0) - np.where(finite, wide_b, 0.0))
    allowed = least + rtol * sizes
    return _worst(name, error, np.maximum(allowed, 1e-300), finite, a, b, "the original")


def _not_finite(name: str, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> OutputCheck:
    at = _first(wrong)
    return OutputCheck(name, False, float("inf"), 0.0, float("inf"), elements=a.size, at=at,
                       reason=f"{b[at]!s} instead of {a[at]!s} at {list(at)} ({int(wrong.sum())} of {a.size} places)")


def _worst(name: str, error: np.ndarray, allowed: np.ndarray, compared: np.ndarray, a: np.ndarray, b: np.ndarray,
           against: str) -> OutputCheck:
    if not bool(compared.any()):
        return OutputCheck(name, elements=a.size, share=0.0 if a.size else 1.0, against=against)
    with np.errstate(over="ignore"):  # infinitely more than nearly nothing is too much
        ratio = np.where(compared, error / allowed, 0.0)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape) if ratio.ndim else ()
    place = tuple(int(i) for i in at)
    worst = float(ratio[place])
    check = OutputCheck(name, worst <= 1, float(error[place]), float(allowed[place]), worst, against,
                        float(np.mean(compared)), a.size, at=place)
    if not check.ok:
        check.reason = (f"{b[place]!s} instead of {a[place]!s} at {list(place)}: error {check.error:.3g}, "
                        f"{check.allowed:.3g} allowed ({int((ratio > 1).sum())} of {a.size} elements)")
    return check


def _levels(sizes: np.ndarray, usable: np.ndarray, terms: Terms, least: int = GROUP,
            sure: int | None = None) -> Levels:
    """Of an output. Special values are few and of all sizes, and cancel where ordinary ones would not: one part."""
    return Levels.of(sizes, usable, not (terms.special or terms.huge), least, sure)


def _noise(reference: np.ndarray, others: Sequence[np.ndarray], levels: Levels, jumps: bool,
           bands: np.ndarray | None = None) -> np.ndarray:
    """How far the original's own variations are from it, element by element; at least the local level. `bands`: sizes
    of elements, of which only those of about one size say what the others may be off by."""
    largest, usable = np.zeros(reference.shape), levels.usable
    for other in others:
        distance = np.abs(other.astype(np.float64) - reference)
        largest = np.maximum(largest, np.where(usable & np.isfinite(distance), distance, 0.0))
    level = largest
    if jumps and largest.size:  # a few jumps must not raise everybody's level
        level = np.minimum(largest, 4 * np.median(largest[usable]) if bool(usable.any()) else 0.0)
    around = levels.local(level)
    if bands is not None:
        around = np.minimum(around, band_level(level, bands, usable)[0])
    return np.maximum(largest, around)


def _least(dtype: np.dtype, terms: Terms) -> float:
    """What is as good as nothing: special values hold the smallest normal number, which any other term absorbs."""
    info = ml_dtypes.finfo(dtype)
    return 4 * float(info.smallest_normal if terms.special else info.smallest_subnormal)


def _compare_rounding(name: str, s: Samples, terms: Terms) -> OutputCheck:
    a, b = s.original.astype(np.float64), s.optimized.astype(np.float64)
    info = ml_dtypes.finfo(s.original.dtype)
    eps, largest = float(info.eps), float(info.max)
    excused, wrong = _non_finite(a, b, s, terms, eps, largest)
    if bool(wrong.any()):
        return _not_finite(name, s.original, s.optimized, wrong)
    agreed = np.isinf(a) & (a == b)  # compared as well; a NaN hides what went on before it
    wide_check = _compare_wide(name, s, terms) if s.wide is not None else None
    if wide_check is not None and not wide_check.ok:
        return wide_check
    usable = np.isfinite(a) & np.isfinite(b) & ~excused
    reference, against = a, "the original"
    samples = list(s.moved)
    if s.wide is not None:
        usable &= np.isfinite(s.wide)
        samples.append(s.wide)
        if terms.huge:  # where the original overflowed or underflowed inside, it is no yardstick
            gap = np.abs(a - np.where(usable, s.wide, 0.0))
            usable &= gap <= min(1e4 * eps, 0.05) * np.abs(a)
        if not terms.jumps:
            reference, against = np.where(usable, s.wide, 0.0), "the original in float64"
    elif terms.huge:
        usable[...] = False
    error = np.where(usable, np.abs(np.where(usable, b, 0.0) - np.where(usable, reference, 0.0)), 0.0)
    size = np.where(usable, np.abs(a), 0.0)
    levels = _levels(size, usable, terms, sure=sure_gap(s.original.dtype))
    noise = _noise(np.where(usable, a, 0.0), samples, levels, terms.jumps)
    if s.wide is None:
        noise = noise * BLIND_FACTOR
    if terms.special:
        noise = noise * SPECIAL_FACTOR
    scale = np.maximum(size, levels.local(size))
    if s.wide is None:
        scale = np.maximum(scale, terms.size)
    floor = _least(s.original.dtype, terms)
    check = _judge(name, error, noise, scale * eps + floor, levels, s, against, terms)
    check.share += float(np.mean(agreed)) if agreed.size else 0.0
    if check.ok and reference is not a and not terms.huge:
        near = NEAR_FACTOR * _noise(np.where(usable, a, 0.0), s.moved, levels, False) + floor + (
            NEAR_ULPS * max(eps, terms.coarse) * np.maximum(scale, terms.size))
        distance = np.where(usable, np.abs(np.where(usable, b, 0.0) - np.where(usable, a, 0.0)), 0.0)
        moved_off = _worst(name, distance, near, usable, s.original, s.optimized, "the original")
        if not moved_off.ok:
            return moved_off
    if wide_check is not None and wide_check.ratio > check.ratio and check.ok:
        wide_check.share = check.share
        return wide_check
    return check


def _judge(name: str, error: np.ndarray, noise: np.ndarray, ulp: np.ndarray, levels: Levels, s: Samples,
           against: str, terms: Terms, mean_ulps: float = MEAN_ULPS, peak_ulps: float = PEAK_ULPS) -> OutputCheck:
    usable = levels.usable
    peak = PEAK_FACTOR * noise + peak_ulps * ulp
    check = _worst(name, error, peak, usable, s.original, s.optimized, against)
    check.neighbours = levels.neighbours(check.at) if check.at is not None else 0
    if terms.jumps and not check.ok:
        jumped = usable & (error > peak)
        if jumped.sum() <= _flips_allowed(s, peak, usable):
            error = np.where(jumped, 0.0, error)
            usable = usable & ~jumped
            check = _worst(name, error, peak, usable, s.original, s.optimized, against)
    if not check.ok or not bool(usable.any()):
        return check
    mean = MEAN_FACTOR * noise + mean_ulps * ulp
    ratios = error[usable] / mean[usable]
    level = float(np.sqrt(np.mean(ratios**2)))
    if level > 1:
        typical = float(np.sqrt(np.mean(error[usable] ** 2)))
        check.ok, check.ratio, check.error, check.allowed = False, level, typical, typical / level
        check.at = None
        check.reason = (f"the errors are {level:.3g} times what rounding explains, on the whole "
                        f"(root mean square {typical:.3g})")
    elif level > check.ratio:
        typical = float(np.sqrt(np.mean(error[usable] ** 2)))
        check.ratio, check.error, check.allowed, check.at = level, typical, typical / level if level else 0.0, None
    size = levels.whole(np.where(usable, np.abs(s.original.astype(np.float64)), 0.0))
    check.share = float(np.mean(usable & (peak <= MEANINGFUL * size))) if bool(size.any()) else check.share
    return check


def _flips_allowed(s: Samples, peak: np.ndarray, usable: np.ndarray) -> float:
    """How many elements of the original jump by themselves when it is moved (by the smaller of two samples)."""
    a = s.original.astype(np.float64)
    others = [*s.moved, *([s.wide] if s.wide is not None else [])]
    quiet = peak / PEAK_FACTOR  # `peak` holds the jumps of the samples themselves: compare with the local level
    level = local_level(np.minimum(quiet, 4 * np.median(quiet[usable]) if bool(usable.any()) else 0.0), usable)
    counts = [int((usable & (np.abs(each.astype(np.float64) - a) > PEAK_FACTOR * level)).sum()) for each in others]
    return FLIPS_FACTOR * (sum(counts) / max(1, len(counts))) + FLIPS_SHARE * a.size


def _compare_wide(name: str, s: Samples, terms: Terms) -> OutputCheck:
    """Both graphs in float64: what differs is not rounding, except that constants which only one of them has are
    rounded."""
    a, b = np.asarray(s.wide, np.float64), np.asarray(s.wide_other, np.float64)
    usable = np.isfinite(a) & np.isfinite(b)
    wrong = _classes(a) != _classes(b)
    for other in s.wide_moved:
        wrong &= _classes(other) == _classes(a)
    if terms.exactness == "finite":
        wrong &= np.isfinite(a)
    if bool(wrong.any()) and not terms.jumps:
        return _not_finite(name, a, b, wrong)
    error = np.where(usable, np.abs(np.where(usable, b, 0.0) - np.where(usable, a, 0.0)), 0.0)
    size = np.where(usable, np.abs(a), 0.0)
    levels = _levels(size, usable, terms, 1)
    bands = None if terms.special or terms.huge else size
    noise = np.maximum(_noise(np.where(usable, a, 0.0), s.wide_moved, levels, terms.jumps, bands),
                       _noise(np.where(usable, b, 0.0), s.wide_other_moved, levels, terms.jumps, bands))
    if terms.special:
        noise = noise * SPECIAL_FACTOR
    level = levels.local(size)
    scale = np.maximum(size, level if terms.special or terms.huge else WIDE_LEVEL_ULPS * level)
    tiny = _least(s.original.dtype, terms)
    both = Samples(a, b, s.wide_moved)
    check = _judge(name, error, noise, scale * _FLOAT32_EPS + tiny, levels, both, "the original, both in float64",
                   terms, WIDE_MEAN_ULPS, WIDE_PEAK_ULPS)
    if bands is not None and check.at is not None:
        check.neighbours = int(band_level(noise, size, usable)[1][check.at])
    return check


def _non_finite(a: np.ndarray, b: np.ndarray, s: Samples, terms: Terms, eps: float,
                largest: float) -> tuple[np.ndarray, np.ndarray]:
    """(places not to compare, places that are wrong) by where NaN and infinities stand."""
    classes_a, classes_b = _classes(a), _classes(b)
    differ = classes_a != classes_b
    excused = np.zeros(a.shape, bool)
    if not bool(differ.any()):
        return excused, differ
    edge = largest * (1 - EDGE_ULPS * eps)
    inner = np.where(np.isfinite(a), a, b)
    outer = np.where(np.isfinite(a), classes_b, classes_a)
    excused |= ((outer == PLUS) & (inner >= edge)) | ((outer == MINUS) & (inner <= -edge))
    for other in s.moved:
        excused |= _classes(other.astype(np.float64)) != classes_a
    if s.wide is not None:
        wide, wide_other = np.asarray(s.wide, np.float64), np.asarray(s.wide_other, np.float64)
        # The original overflows inside its dtype, the optimized graph does not, or elsewhere.
        excused |= (classes_a != 0) & np.isfinite(wide) & ((classes_b == 0) | np.isfinite(wide_other))
        if terms.huge:
            excused |= _classes(wide) == _classes(wide_other)
    elif terms.huge:
        excused[...] = True
    elif s.extended is not None:  # float64 overflowed inside, and the optimized graph gives what is right
        known = np.isfinite(s.extended) & np.isfinite(b)
        gap = np.abs(np.where(known, s.extended, 0) - np.where(known, b, 0))
        slack = EDGE_ULPS * eps * np.abs(np.where(known, b, 0)) + 4 * float(np.finfo(np.float64).smallest_subnormal)
        excused |= (classes_a != 0) & known & (gap <= slack)
    if terms.exactness == "finite":
        excused |= classes_a != 0
    if terms.jumps:
        excused |= differ & (int(differ.sum()) <= FLIPS_SHARE * a.size)
    return excused, differ & ~excused


def _compare_discrete(name: str, s: Samples, terms: Terms) -> OutputCheck:
    """Integers, booleans and strings: equal, except where the original itself is not stable."""
    a, b = s.original, s.optimized
    differ = np.asarray(a != b)
    check = OutputCheck(name, elements=a.size)
    if not bool(differ.any()):
        return check
    if terms.jumps:
        unstable = np.zeros(a.shape, bool)
        for other in (*s.moved, *([s.wide] if s.wide is not None else [])):
            unstable |= np.asarray(other != a)
        check.share = 1 - float(np.mean(unstable))
        differ = differ & ~unstable
        if differ.sum() <= FLIPS_FACTOR * unstable.sum() / max(1, len(s.moved)) + FLIPS_SHARE * a.size:
            return check
    at = _first(differ)
    check.ok, check.ratio, check.error, check.at = False, float("inf"), float("inf"), at
    check.reason = f"{b[at]!s} instead of {a[at]!s} at {list(at)} ({int(differ.sum())} of {a.size} differ)"
    return check
