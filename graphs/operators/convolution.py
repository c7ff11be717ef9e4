"""Convolution family: Conv, ConvTranspose, pools, LRN, and resampling (see `_resampling`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..dims import DimLike, mul
from ..types import Shape, TensorType, Type
from . import _resampling
from ._windows import SAME, explicit_pads, per_axis, transposed_sizes, window_counts
from .record import REQUIRED, Operator, Site

_WINDOW = {"auto_pad": "NOTSET", "dilations": None, "pads": None, "strides": None}
_SPATIAL_MINIMUM = 3


def spatial_input(site: Site, index: int = 0) -> Shape | None:
    """Shape (N, C, spatial...) of an input, None where unknown."""
    type_ = site.type(index)
    if type_ is None or type_.shape is None:
        return None
    if len(type_.shape) < _SPATIAL_MINIMUM:
        raise site.fail(f"input {type_} has no spatial dimensions", "give (batch, channels, size...)")
    return type_.shape


def _kernel(site: Site, weight: Shape) -> Sequence[DimLike]:
    given = site.attrs.get("kernel_shape")
    if not given:
        return weight[2:]
    static = [dim for dim in weight[2:] if isinstance(dim, int)]
    if len(static) == len(weight) - 2 and tuple(static) != tuple(given):  # type: ignore[arg-type]
        raise site.fail(f"kernel_shape {list(given)} but weights {static}")  # type: ignore[call-overload]
    return given  # type: ignore[return-value]


def conv_shape(site: Site, data: int = 0, weights: int = 1) -> Shape | None:
    """Output shape of Conv, ConvInteger and QLinearConv."""
    x, weight = spatial_input(site, data), spatial_input(site, weights)
    if x is None or weight is None:
        return None
    if len(x) != len(weight):
        raise site.fail(f"input of rank {len(x)} and weights of rank {len(weight)}")
    group = int(site.attrs["group"])  # type: ignore[call-overload]
    channels, needed = x[1], mul(weight[1], group)
    if isinstance(channels, int) and isinstance(needed, int) and channels != needed:
        raise site.fail(f"input has {channels} channels, weights of {group} groups need {needed}")
    return (x[0], weight[0], *window_counts(site, x[2:], _kernel(site, weight)))


def _conv(site: Site) -> list[Type | None]:
    type_ = site.type(0) or site.type(1)
    return [None if type_ is None else TensorType(type_.dtype, conv_shape(site))]


def _conv_transpose(site: Site) -> list[Type | None]:
    type_ = site.type(0) or site.type(1)
    if type_ is None:
        return [None]
    x, weight = spatial_input(site), spatial_input(site, 1)
    if x is None or weight is None:
        return [TensorType(type_.dtype)]
    if len(x) != len(weight):
        raise site.fail(f"input of rank {len(x)} and weights of rank {len(weight)}")
    if isinstance(x[1], int) and isinstance(weight[0], int) and x[1] != weight[0]:
        raise site.fail(f"input has {x[1]} channels, weights {weight[0]}")
    sizes = transposed_sizes(site, x[2:], _kernel(site, weight))
    channels = mul(weight[1], int(site.attrs["group"]))  # type: ignore[call-overload]
    return [TensorType(type_.dtype, (x[0], channels, *sizes))]


def _pool(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    if type_ is None:
        unknown: list[Type | None] = [None, TensorType("int64")]
        return unknown[: site.outputs]
    x = spatial_input(site)
    shape: Shape | None = None
    if x is not None:
        kernel: tuple[int, ...] = tuple(site.attrs["kernel_shape"])  # type: ignore[arg-type]
        if len(kernel) != len(x) - 2:
            raise site.fail(f"kernel_shape {list(kernel)} for input {type_}")
        shape = (*x[:2], *window_counts(site, x[2:], kernel, bool(site.attrs.get("ceil_mode"))))
    found: list[Type | None] = [TensorType(type_.dtype, shape), TensorType("int64", shape)]
    return found[: site.outputs]


def _global_pool(site: Site) -> list[Type | None]:
    type_, x = site.type(0), spatial_input(site)
    if type_ is None or x is None:
        return [type_]
    return [TensorType(type_.dtype, (*x[:2], *(1 for _ in x[2:])))]


def same_type(site: Site) -> list[Type | None]:
    """One output of the type of the first input."""
    return [site.type(0)]


def _max_unpool(site: Site) -> list[Type | None]:
    type_, x = site.type(0), spatial_input(site)
    if type_ is None:
        return [None]
    wanted = site.content(2)
    if wanted is not None:
        return [TensorType(type_.dtype, wanted)]
    if x is None or site.type(2) is not None:
        return [TensorType(type_.dtype)]
    kernel: tuple[int, ...] = tuple(site.attrs["kernel_shape"])  # type: ignore[arg-type]
    return [TensorType(type_.dtype, (*x[:2], *transposed_sizes(site, x[2:], kernel)))]


def _lower(attrs: dict[str, object], **missing: object) -> dict[str, object] | None:
    """Drop attributes that an old version lacks; None where they have another value than it implies."""
    out = dict(attrs)
    for name, implied in missing.items():
        value = out.pop(name, implied)
        if isinstance(value, tuple) and value and all(item == 1 for item in value):
            value = None
        if value != implied and not (implied is None and value == ()):
            return None
    return out


def _disputed(attrs: dict[str, object], version: int) -> bool:
    """Whether runtimes and versions of ONNX differ in what these pool attributes mean.

    Automatic padding of a kernel shorter than its stride may be negative: runtimes refuse or go wrong. Before
    version 22, ONNX counts a last partial window (ceil_mode) even where it starts in the padding, and runtimes do not.
    """
    kernel: Sequence[int] = attrs["kernel_shape"]  # type: ignore[assignment]
    rank = len(kernel)
    strides, dilations = per_axis(attrs, "strides", rank), per_axis(attrs, "dilations", rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if attrs.get("auto_pad", "NOTSET") in SAME:
        return any(length < stride for length, stride in zip(reach, strides))
    if version >= 22 or not attrs.get("ceil_mode"):
        return False
    _, ends = explicit_pads(attrs, rank)
    return any(length < stride + end for length, stride, end in zip(reach, strides, ends))


def _read_pool(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    return None if _disputed(attrs, version) else attrs


def _write_max_pool(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if _disputed(attrs, version):
        return None
    if version < 8:
        return _lower(attrs, ceil_mode=0, dilations=None, storage_order=0)
    return _lower(attrs, ceil_mode=0, dilations=None) if version < 10 else attrs


def _write_average_pool(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if _disputed(attrs, version):
        return None
    if version < 7:
        return _lower(attrs, count_include_pad=0, ceil_mode=0, dilations=None)
    if version < 10:
        return _lower(attrs, ceil_mode=0, dilations=None)
    return _lower(attrs, dilations=None) if version < 19 else attrs


def _write_lp_pool(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    if _disputed(attrs, version):
        return None
    return _lower(attrs, ceil_mode=0, dilations=None) if version < 18 else attrs


def _explicit_only(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    # Version 1 of ConvTranspose splits odd automatic padding the other way round than 11, and runtimes disagree.
    automatic = attrs.get("output_shape") or attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return None if version < 11 and automatic else attrs


OPERATORS: list[Operator] = [
    Operator("Conv", _conv, (1, 11, 22), {**_WINDOW, "group": 1, "kernel_shape": None}),
    Operator("ConvTranspose", _conv_transpose, (1, 11, 22),
             {**_WINDOW, "group": 1, "kernel_shape": None, "output_padding": None, "output_shape": None},
             read=_explicit_only, write=_explicit_only),
    Operator("MaxPool", _pool, (1, 8, 10, 11, 12, 22),
             {**_WINDOW, "kernel_shape": REQUIRED, "ceil_mode": 0, "storage_order": 0}, read=_read_pool,
             write=_write_max_pool),
    Operator("AveragePool", _pool, (1, 7, 10, 11, 19, 22),
             {**_WINDOW, "kernel_shape": REQUIRED, "ceil_mode": 0, "count_include_pad": 0},
             read=_read_pool, write=_write_average_pool),
    # Version 1 has a fractional p.
    Operator("LpPool", _pool, (2, 11, 18, 22), {**_WINDOW, "kernel_shape": REQUIRED, "ceil_mode": 0, "p": 2},
             read=_read_pool, write=_write_lp_pool),
    Operator("GlobalAveragePool", _global_pool, (1, 22)),
    Operator("GlobalMaxPool", _global_pool, (1, 22)),
    Operator("GlobalLpPool", _global_pool, (2, 22), {"p": 2}),
    Operator("LRN", same_type, (1, 13),
             {"alpha": 9.999999747378752e-05, "beta": 0.75, "bias": 1.0, "size": REQUIRED}),
    Operator("MaxUnpool", _max_unpool, (9, 11, 22), {"kernel_shape": REQUIRED, "pads": None, "strides": None}),
    *_resampling.OPERATORS,
]
