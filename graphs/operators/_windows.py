"""Sizes of sliding windows (Conv, ConvTranspose, pools), symbolic ones included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..dims import DimLike, add, ceildiv, floordiv, mul, smallest, sub
from .record import Site

SAME = ("SAME_UPPER", "SAME_LOWER")


def per_axis(attrs: Mapping[str, object], name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """An attribute with one integer per spatial axis, its default where it is not given."""
    value = attrs.get(name)
    return tuple(value) if value else (default,) * rank  # type: ignore[arg-type]


def explicit_pads(attrs: Mapping[str, object], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`pads` as (begins, ends); zeros where auto_pad VALID says so."""
    pads = per_axis(attrs, "pads", 2 * rank, 0)
    if attrs.get("auto_pad", "NOTSET") == "VALID":
        pads = (0,) * (2 * rank)
    return pads[:rank], pads[rank:]


def window_count(size: DimLike, kernel: DimLike, stride: int, dilation: int, begin: int, end: int,
                 ceil: bool) -> DimLike:
    """Number of window positions along one axis.

    With `ceil`, a last partial window counts unless it would start in the padding at the end (the rule of opset 22;
    ONNX Runtime applies it at every opset, the text of older opsets does not).
    """
    room = sub(add(size, begin + end), add(mul(dilation, sub(kernel, 1)), 1))
    if not ceil:
        return add(floordiv(room, stride), 1)
    return smallest(add(ceildiv(room, stride), 1), ceildiv(add(size, begin), stride))


def _misfit(size: DimLike, kernel: DimLike, stride: int, dilation: int, begin: int, end: int, ceil: bool) -> str | None:
    """Why nobody can say how many windows there are along one axis; None where that is clear, or not known yet.

    A window that is longer than the padded axis fits nowhere. The formula of ONNX rounds down and counts none, or a
    negative number; ONNX Runtime and ONNX's own shape inference cut the fraction off and count one where less than a
    stride is missing. They agree again where the shortage is a whole stride (a kernel of 2 over 1 element, stride 1).
    """
    room = sub(add(size, begin + end), add(mul(dilation, sub(kernel, 1)), 1))
    count = window_count(size, kernel, stride, dilation, begin, end, ceil)
    if not (isinstance(room, int) and isinstance(count, int)):
        return None
    if count >= 0 and (ceil or room >= 0 or size == 0 or room % stride == 0):
        return None
    return (f"a window of {sub(add(size, begin + end), room)} is longer than the padded input of "
            f"{add(size, begin + end)}, and runtimes differ in how many windows that makes")


def counts_along(sizes: Sequence[DimLike], kernel: Sequence[DimLike], strides: Sequence[int], dilations: Sequence[int],
                 begins: Sequence[int], ends: Sequence[int], ceil: bool,
                 fail: Callable[[str], Exception]) -> list[DimLike]:
    """Number of window positions along each axis; raises what `fail` makes of the reason where a window misfits."""
    counts = []
    for axis, (size, k, stride, dilation, begin, end) in enumerate(
            zip(sizes, kernel, strides, dilations, begins, ends)):
        found = _misfit(size, k, stride, dilation, begin, end, ceil)
        if found is not None:
            raise fail(f"spatial axis {axis}: {found}")
        counts.append(window_count(size, k, stride, dilation, begin, end, ceil))
    return counts


def check_axes(site: Site, rank: int) -> None:
    """Raise where an attribute does not have one entry per spatial axis."""
    for name, entries in (("kernel_shape", rank), ("strides", rank), ("dilations", rank), ("pads", 2 * rank),
                          ("output_padding", rank)):
        value = site.attrs.get(name)
        if value and len(value) != entries:  # type: ignore[arg-type]
            raise site.fail(f"{name} {list(value)} for {rank} spatial dimensions",  # type: ignore[call-overload]
                            f"give {entries} numbers")
    for name in ("strides", "dilations"):
        value = site.attrs.get(name)
        if value and min(value) < 1:  # type: ignore[call-overload]
            raise site.fail(f"{name} {list(value)}", "they are at least 1")  # type: ignore[call-overload]


def window_counts(site: Site, sizes: Sequence[DimLike], kernel: Sequence[DimLike],
                  ceil: bool = False) -> list[DimLike]:
    """Output sizes of all spatial axes, by explicit or automatic padding."""
    rank = len(sizes)
    check_axes(site, rank)
    strides, dilations = per_axis(site.attrs, "strides", rank), per_axis(site.attrs, "dilations", rank)
    if site.attrs.get("auto_pad", "NOTSET") in SAME:
        return [ceildiv(size, stride) for size, stride in zip(sizes, strides)]
    begins, ends = explicit_pads(site.attrs, rank)
    return counts_along(sizes, kernel, strides, dilations, begins, ends, ceil,
                        lambda found: site.fail(found, "give the model larger sizes, or correct it"))


def transposed_sizes(site: Site, sizes: Sequence[DimLike], kernel: Sequence[DimLike]) -> list[DimLike]:
    """Output sizes of ConvTranspose's spatial axes."""
    rank = len(sizes)
    check_axes(site, rank)
    wanted = site.attrs.get("output_shape")
    if wanted:
        return list(wanted)[-rank:]  # type: ignore[call-overload]
    strides, dilations = per_axis(site.attrs, "strides", rank), per_axis(site.attrs, "dilations", rank)
    extra = per_axis(site.attrs, "output_padding", rank, 0)
    full = [
        add(mul(stride, sub(size, 1)), add(mul(dilation, sub(k, 1)), 1 + more))
        for size, k, stride, dilation, more in zip(sizes, kernel, strides, dilations, extra)
    ]
    if site.attrs.get("auto_pad", "NOTSET") in SAME:
        # A kernel shorter than the stride leaves nothing to cut off: runtimes do not lengthen the output then.
        return [smallest(mul(size, stride), whole) for size, stride, whole in zip(sizes, strides, full)]
    begins, ends = explicit_pads(site.attrs, rank)
    return [sub(whole, begin + end) for whole, begin, end in zip(full, begins, ends)]
