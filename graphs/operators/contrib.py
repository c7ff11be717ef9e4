"""Contrib operators of ONNX Runtime (domain `com.microsoft`): fused arithmetic, normalization, embedding, small ones.

What its exporters and optimizers write. Attributes and defaults are those of ONNX Runtime's own schemas, which exist
in one version; the rest of the family is in `contrib_attention` and `contrib_quantization`. All of these are pure:
a function of their inputs. No rule makes them, and what ONNX Runtime does with an attribute that a kernel of ours
refuses (NotImplementedError) is left to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import dims
from ..dims import DimLike
from ..types import Shape, TensorType, Type
from ._common import broadcast_infer, common_dtype, integer, same, shape_of, unify, unify_checked
from ._resampling import _grid_sample
from ._windows import transposed_sizes
from .convolution import conv_shape, spatial_input
from .linear import _gemm, _product_shape
from .movement import _range, _range_contents
from .normalization import _layer_normalization, normalize_axis
from .record import REQUIRED, Contents, Infer, Operator, Site

DOMAIN = "com.microsoft"
SKIP_EPSILON = 9.999999960041972e-13
WINDOW = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}
_PAD_INPUT = 2  # of ConvTransposeWithDynamicPads


def contrib(name: str, infer: Infer, attrs: dict[str, object] | None = None, **flags: object) -> Operator:
    """The record of a contrib operator, all of which have one version."""
    return Operator(name, infer, (1,), attrs or {}, domain=DOMAIN, **flags)  # type: ignore[arg-type]


def like(site: Site, shape: Shape | None, position: int = 0) -> Type | None:
    """The element type of an input with another shape."""
    type_ = site.type(position)
    return None if type_ is None else TensorType(type_.dtype, shape)


# Linear ----------------------------------------------------------------------------------------------------


def turned(axes: Sequence[int], transposed: object, batch: object) -> list[int]:
    """The order of a factor's axes as FusedMatMul reads it."""
    order = list(axes)
    if batch and len(order) > 1:  # the first axis is the matrix's, before the batch
        order = [*order[1:-1], order[0], order[-1]]
    return [*order[:-2], order[-1], order[-2]] if transposed and len(order) > 1 else order


def _fused_matmul(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, (0, 1))
    factors: list[TensorType | None] = []
    for position, side in enumerate("AB"):
        shape = shape_of(site, position)
        if shape is not None:
            order = turned(range(len(shape)), site.attrs[f"trans{side}"], site.attrs.get(f"transBatch{side}"))
            shape = tuple(shape[axis] for axis in order)
        factors.append(TensorType(dtype or "float32", shape))
    product = Site(site.op, site.attrs, factors, [], [], 1, site.label)
    return [None if dtype is None else TensorType(dtype, _product_shape(product))]


def _fused_conv(site: Site) -> list[Type | None]:
    return [like(site, conv_shape(site))]


def _dynamic_pads(site: Site) -> list[Type | None]:
    """ConvTranspose whose pads are an input."""
    x, weight, pads = spatial_input(site), spatial_input(site, 1), site.content(_PAD_INPUT)
    if x is None or weight is None:
        return [like(site, None)]
    channels = dims.mul(weight[1], integer(site, "group"))
    rank = len(x) - 2
    if site.type(_PAD_INPUT) is not None and (pads is None or not all(isinstance(pad, int) for pad in pads)):
        return [like(site, (x[0], channels, *(site.unknown_dim(axis) for axis in range(rank))))]
    attrs = {**site.attrs, "pads": pads or None}
    given = Site(site.op, attrs, site.types, site.contents, site.constants, 1, site.label)
    kernel: Sequence[DimLike] = site.attrs["kernel_shape"] or weight[2:]  # type: ignore[assignment]
    return [like(site, (x[0], channels, *transposed_sizes(given, x[2:], kernel)))]


def _square(site: Site) -> list[Type | None]:
    shape = shape_of(site, 0)
    if shape is None:
        return [like(site, None)]
    if len(shape) < 2:
        raise site.fail(f"a tensor of rank {len(shape)}", "give square matrices")
    unify_checked(site, shape[-1], shape[-2])
    return [site.type(0)]


def _cdist(site: Site) -> list[Type | None]:
    a, b = shape_of(site, 0), shape_of(site, 1)
    return [like(site, None if a is None or b is None else (a[0], b[0]))]


# Normalization and embedding -------------------------------------------------------------------------------


def _simplified(site: Site) -> list[Type | None]:
    """SimplifiedLayerNormalization: no mean; the result has the type of the scale."""
    found = _layer_normalization(Site(site.op, site.attrs, site.types, [], [], 3, site.label))
    types: list[Type | None] = [like(site, shape_of(site, 0), 1), found[2]]
    return types[: site.outputs]


def _skip(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    row = TensorType("float32", None if x is None else (*x[:-1], 1))
    found: list[Type | None] = [site.type(0), row, row, site.type(0)]
    return found[: site.outputs]


def _embedding(site: Site) -> list[Type | None]:
    ids, words = shape_of(site, 0), shape_of(site, 2)
    known = ids is not None and words is not None and len(ids) == 2
    made = like(site, (*ids, words[-1]) if known else None, 2)  # type: ignore[misc, index]
    counts = TensorType("int32", ids[:1] if ids is not None else None)
    return [made, counts, made][: site.outputs]


def _along_axis(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    if x is not None:
        normalize_axis(site, integer(site, "axis"), len(x))
    return [site.type(0)]


def _split_gelu(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    return [like(site, None if x is None else (*x[:-1], dims.floordiv(x[-1], 2)))]


# Movement --------------------------------------------------------------------------------------------------


def _pad(site: Site) -> list[Type | None]:
    x, pads = shape_of(site, 0), site.content(1)
    if x is None:
        return [like(site, None)]
    if pads is None:
        return [like(site, tuple(site.unknown_dim(axis) for axis in range(len(x))))]
    if len(pads) != 2 * len(x):
        raise site.fail(f"{len(pads)} pads for {len(x)} axes", f"give {2 * len(x)}")
    return [like(site, tuple(dims.add(size, dims.add(pads[axis], pads[axis + len(x)])) for axis, size in enumerate(x)))]


def _with_step(site: Site) -> Site:
    """A Range without its third input counts by ones."""
    if len(site.types) > 2 and site.type(2) is not None:
        return site
    first = site.type(0)
    step = TensorType(first.dtype if first else "int64", ())
    integral = first is not None and "int" in first.dtype
    contents: list[Contents | None] = [site.content(0), site.content(1), (1,) if integral else None]
    return Site(site.op, site.attrs, [*site.types[:2], step], contents, [None] * 3, site.outputs, site.label)


def _expand_dims(site: Site) -> list[Type | None]:
    x, axis = shape_of(site, 0), site.content(1)
    if x is None or axis is None or not isinstance(axis[0], int):
        return [like(site, None)]
    if not -len(x) - 1 <= axis[0] <= len(x):
        raise site.fail(f"axis {axis[0]} for a tensor of rank {len(x)}")
    place = axis[0] % (len(x) + 1)
    return [like(site, (*x[:place], 1, *x[place:]))]


def _rfft(site: Site) -> list[Type | None]:
    x = shape_of(site, 0)
    return [like(site, None if x is None else (*x[:-1], dims.add(dims.floordiv(x[-1], 2), 1), 2))]


def _bias_add(site: Site) -> list[Type | None]:
    x, skip = shape_of(site, 0), shape_of(site, 2)
    if x is None or skip is None or len(x) != len(skip):
        return [site.type(0)]
    return [like(site, tuple(unify(a, b) for a, b in zip(x, skip)))]


_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_TURNS = {"transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}

OPERATORS: list[Operator] = [
    contrib("FusedMatMul", _fused_matmul, {"alpha": 1.0, **_TURNS}),
    contrib("TransposeMatMul", _fused_matmul, {"alpha": 1.0, "transA": 0, "transB": 0}),  # its older name
    contrib("FusedGemm", _gemm, {**_GEMM, "activation": "", "activation_alpha": None, "activation_beta": None,
                                 "activation_gamma": None}),
    contrib("FusedConv", _fused_conv, {**WINDOW, "activation": "", "activation_params": ()}),
    contrib("ConvTransposeWithDynamicPads", _dynamic_pads,
            {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "output_padding": None,
             "strides": None}),
    contrib("Inverse", _square),
    contrib("CDist", _cdist, {"metric": "sqeuclidean"}),
    contrib("Gelu", same, pointwise=True),
    contrib("BiasGelu", broadcast_infer(), pointwise=True),
    contrib("FastGelu", broadcast_infer(), pointwise=True),
    contrib("QuickGelu", same, {"alpha": 1.7020000219345093}, pointwise=True),
    contrib("BiasAdd", _bias_add),
    contrib("BiasSplitGelu", _split_gelu),
    contrib("BiasSoftmax", _along_axis, {"axis": 1, "is_inner_broadcast": REQUIRED}),
    # ONNX Runtime registers this one in ONNX's own domain.
    Operator("SimplifiedLayerNormalization", _simplified, (1,),
             {"axis": -1, "epsilon": 9.999999747378752e-06, "stash_type": 1}, standard=False),
    contrib("SkipLayerNormalization", _skip, {"epsilon": SKIP_EPSILON}),
    contrib("SkipSimplifiedLayerNormalization", _skip, {"epsilon": SKIP_EPSILON}),
    contrib("EmbedLayerNormalization", _embedding, {"epsilon": SKIP_EPSILON, "mask_index_type": None}),
    contrib("Trilu", same, {"upper": 1}),
    contrib("Pad", _pad, {"mode": "constant"}),
    contrib("Range", lambda site: _range(_with_step(site)),
            contents=lambda site: _range_contents(_with_step(site))),
    contrib("ExpandDims", _expand_dims),
    contrib("GridSample", _grid_sample, {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"}),
    contrib("Rfft", _rfft, {"normalized": 0, "onesided": 1, "signal_ndim": 1}),
]
