"""Kernels of ONNX Runtime's contrib operators: fused arithmetic, normalization, embedding and small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphs.operators.contrib import turned

from . import OUTPUTS, Arrays, rows
from ._activations import sigmoid
from ._numeric import erf, given, integer, narrow, number, optional, wide
from ._resampling import grid_sample
from ._windows import mean_over
from .convolution import add_bias, conv_transpose, convolve
from .linear import KERNELS as LINEAR
from .movement import KERNELS as MOVEMENT

KERNELS, kernel = rows()
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def contrib(name: str) -> str:
    """The name in the table."""
    return f"com.microsoft.{name}"


# Activations -----------------------------------------------------------------------------------------------


def activate(x: np.ndarray, name: str, parameters: Sequence[float]) -> np.ndarray:
    """The activation that a fused node ends with; `parameters` are those that it names, in ONNX's order."""
    a, b = (x.dtype.type(value) for value in (*parameters, 0.0, 0.0)[:2])
    if not name:
        return x
    if name == "Relu":
        return np.maximum(x, 0)
    if name == "Tanh":
        return np.tanh(x)
    if name == "Sigmoid":
        return sigmoid(x)
    if name == "LeakyRelu":
        return np.where(x >= 0, x, a * x)
    if name == "Clip":
        return np.minimum(np.maximum(x, a), b)
    if name == "HardSigmoid":
        return np.clip(a * x + b, 0, 1)
    raise NotImplementedError(f"an activation {name}")


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the share of a normal distribution below x."""
    half = x.dtype.type(0.5)
    return half * x * (1 + erf(x * x.dtype.type(np.sqrt(0.5))))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    kind = x.dtype.type
    return kind(0.5) * x * (1 + np.tanh(x * (kind(0.044715 * np.sqrt(2 / np.pi)) * x * x + kind(np.sqrt(2 / np.pi)))))


def _biased(inputs: Arrays) -> np.ndarray:
    x, bias = wide(given(inputs, 0)), optional(inputs, 1)
    return x if bias is None else x + wide(bias)


@kernel(contrib("Gelu"), contrib("BiasGelu"))
def _exact_gelu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [narrow(gelu(_biased(inputs)), given(inputs, 0).dtype)]


@kernel(contrib("FastGelu"))
def _fast_gelu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [narrow(_gelu_tanh(_biased(inputs)), given(inputs, 0).dtype)]


@kernel(contrib("QuickGelu"))
def _quick_gelu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = wide(given(inputs, 0))
    return [narrow(x * sigmoid(x.dtype.type(number(attrs, "alpha")) * x), given(inputs, 0).dtype)]


@kernel(contrib("BiasSplitGelu"))
def _bias_split_gelu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    left, right = np.split(_biased(inputs), 2, axis=-1)
    return [narrow(left * gelu(right), given(inputs, 0).dtype)]


@kernel(contrib("BiasAdd"))
def _bias_add(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [narrow(_biased(inputs) + wide(given(inputs, 2)), given(inputs, 0).dtype)]


@kernel(contrib("BiasSoftmax"))
def _bias_softmax(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Softmax of data + bias over all axes from `axis` on.

    The bias has fewer rows than the data: each one serves neighbours, or its rows are gone through again and again.
    """
    x, bias = given(inputs, 0), given(inputs, 1)
    axis = integer(attrs, "axis") % x.ndim
    count = int(np.prod(x.shape[axis:], dtype=np.int64))
    flat, added = wide(x).reshape(-1, count), wide(bias).reshape(-1, count)
    times = len(flat) // max(len(added), 1)
    scores = flat + (np.repeat(added, times, 0) if attrs["is_inner_broadcast"] else np.tile(added, (times, 1)))
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return [narrow((powers / powers.sum(axis=1, keepdims=True)).reshape(x.shape), x.dtype)]


# Linear ----------------------------------------------------------------------------------------------------


@kernel(contrib("FusedMatMul"), contrib("TransposeMatMul"))
def _fused_matmul(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    factors = []
    for position, side in enumerate("AB"):
        factor = wide(given(inputs, position))
        order = turned(range(factor.ndim), attrs[f"trans{side}"], attrs.get(f"transBatch{side}"))
        factors.append(factor.transpose(order))
    product = np.matmul(*factors)
    alpha = number(attrs, "alpha")
    return [narrow(product if alpha == 1.0 else product * product.dtype.type(alpha), given(inputs, 0).dtype)]


@kernel(contrib("FusedGemm"))
def _fused_gemm(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    arrays = [None if array is None else wide(array) for array in inputs]
    given_ = [attrs[f"activation_{name}"] for name in ("alpha", "beta", "gamma")]
    parameters = [float(value) for value in given_ if value is not None]  # type: ignore[arg-type]
    product = np.asarray(LINEAR["Gemm"](attrs, arrays)[0])
    return [narrow(activate(product, str(attrs["activation"]), parameters), given(inputs, 0).dtype)]


@kernel(contrib("FusedConv"))
def _fused_conv(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """activation(convolution + bias + Z)."""
    x, bias, more = given(inputs, 0), optional(inputs, 2), optional(inputs, 3)
    y = add_bias(convolve(wide(x), wide(given(inputs, 1)), attrs), bias)
    if more is not None:
        y = y + wide(more)
    parameters: Sequence[float] = attrs["activation_params"] or ()  # type: ignore[assignment]
    return [narrow(activate(y, str(attrs["activation"]), parameters), x.dtype)]


@kernel(contrib("ConvTransposeWithDynamicPads"))
def _dynamic_pads(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    pads = optional(inputs, 2)
    static = {**attrs, "output_shape": None, "pads": None if pads is None else tuple(pads.tolist())}
    return conv_transpose(static, [inputs[0], inputs[1], optional(inputs, 3)])


@kernel(contrib("Inverse"))
def _inverse(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    x = given(inputs, 0)
    return [narrow(np.linalg.inv(wide(x)), x.dtype)]


@kernel(contrib("CDist"))
def _cdist(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    a, b = given(inputs, 0), given(inputs, 1)
    if attrs["metric"] not in ("sqeuclidean", "euclidean"):
        raise NotImplementedError(f"CDist with the metric {attrs['metric']}")
    square = np.square(a[:, None, :] - b[None, :, :]).sum(axis=-1)
    return [np.asarray(square if attrs["metric"] == "sqeuclidean" else np.sqrt(square))]


# Normalization and embedding -------------------------------------------------------------------------------


def _normalized(x: np.ndarray, centred: bool, epsilon: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows along the last axis: (normalized, mean, inverse deviation)."""
    mean = mean_over(x, (x.ndim - 1,))
    rest = x - mean if centred else x
    inverse = 1 / np.sqrt(mean_over(np.square(rest), (x.ndim - 1,)) + x.dtype.type(epsilon))
    return rest * inverse, mean, inverse


@kernel("SimplifiedLayerNormalization")
def _simplified(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Division by the root mean square of the last axes, then scale."""
    x, scale = given(inputs, 0), given(inputs, 1)
    if attrs["stash_type"] != 1:
        raise NotImplementedError("SimplifiedLayerNormalization with another stash_type than float32")
    axis = integer(attrs, "axis") % x.ndim
    data = wide(x)
    square = mean_over(np.square(data), tuple(range(axis, x.ndim)))
    inverse = 1 / np.sqrt(square + data.dtype.type(number(attrs, "epsilon")))
    y = data * inverse * wide(scale)
    return [narrow(y, scale.dtype), narrow(inverse, np.dtype(np.float32))][: integer(attrs, OUTPUTS)]


@kernel(contrib("SkipLayerNormalization"))
def _skip(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _skipping(attrs, inputs, True, optional(inputs, 3), optional(inputs, 4))


@kernel(contrib("SkipSimplifiedLayerNormalization"))
def _skip_simplified(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return _skipping(attrs, inputs, False, None, optional(inputs, 3))


def _skipping(attrs: Mapping[str, object], inputs: Arrays, centred: bool, beta: np.ndarray | None,
              bias: np.ndarray | None) -> Sequence[np.ndarray]:
    """Normalization of x + skip + bias; the sum is an output too."""
    x, scale = given(inputs, 0), given(inputs, 2)
    total = wide(x) + wide(given(inputs, 1))
    if bias is not None:
        total = total + wide(bias)
    y, mean, inverse = _normalized(total, centred, number(attrs, "epsilon"))
    y = y * wide(scale)
    if beta is not None:
        y = y + wide(beta)
    single = np.dtype(np.float32)
    found = [narrow(y, x.dtype), narrow(mean, single), narrow(inverse, single), narrow(total, x.dtype)]
    return found[: integer(attrs, OUTPUTS)]


@kernel(contrib("EmbedLayerNormalization"))
def _embedding(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """Sum of the embeddings of words, positions and segments, normalized. The mask is counted."""
    ids, segments, words, positions, kinds, scale, beta, mask, places = (optional(inputs, index) for index in range(9))
    assert ids is not None and words is not None and positions is not None and scale is not None and beta is not None
    where = np.arange(ids.shape[1])[None, :] if places is None else places
    total = wide(words)[ids] + wide(positions)[where]
    if kinds is not None and segments is not None:
        total = total + wide(kinds)[segments]
    y = _normalized(total, True, number(attrs, "epsilon"))[0] * wide(scale) + wide(beta)
    counted = np.zeros(ids.shape[0], np.int32) if mask is None else (mask == 1).sum(axis=1).astype(np.int32)
    return [narrow(y, words.dtype), counted, narrow(total, words.dtype)][: integer(attrs, OUTPUTS)]


# Movement --------------------------------------------------------------------------------------------------


@kernel(contrib("Trilu"))
def _trilu(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    k = optional(inputs, 1)
    return MOVEMENT["Trilu"]({**attrs, "k": None if k is None else int(k.reshape(-1)[0])}, inputs[:1])


@kernel(contrib("Pad"))
def _pad(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    value = optional(inputs, 2)
    fill = None if value is None else value.reshape(-1)[0]
    pads = tuple(given(inputs, 1).reshape(-1).tolist())
    return MOVEMENT["Pad"]({**attrs, "pads": pads, "axes": None, "constant_value": fill}, inputs[:1])


@kernel(contrib("Range"))
def _range(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    start, step = given(inputs, 0), optional(inputs, 2)
    return MOVEMENT["Range"](attrs, [start, given(inputs, 1), np.ones((), start.dtype) if step is None else step])


@kernel(contrib("ExpandDims"))
def _expand_dims(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    return [np.expand_dims(given(inputs, 0), int(given(inputs, 1).reshape(-1)[0]))]


@kernel(contrib("GridSample"))
def _grid_sample(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    mode = str(attrs["mode"])
    return grid_sample({**attrs, "mode": _MODES.get(mode, mode)}, inputs)


@kernel(contrib("Rfft"))
def _rfft(attrs: Mapping[str, object], inputs: Arrays) -> Sequence[np.ndarray]:
    """The half of the transform of real signals that is not redundant, as pairs of real and imaginary part."""
    x, count = given(inputs, 0), integer(attrs, "signal_ndim")
    if attrs["normalized"] or not attrs["onesided"]:
        raise NotImplementedError("Rfft normalized or two-sided")
    found = np.fft.rfftn(wide(x), axes=tuple(range(x.ndim - count, x.ndim)))
    return [narrow(np.stack((found.real, found.imag), axis=-1), x.dtype)]
