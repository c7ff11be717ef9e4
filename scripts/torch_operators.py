"""ONNX operators by those of PyTorch, as the zoos use them; what they do not use raises KeyError."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.nn import functional as F

Values = list[Any]
Call = Callable[[Mapping[str, Any], Values], Any]
TORCH_DTYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64,
                16: torch.bfloat16}  # fmt: skip


def _split(attrs: Mapping[str, Any], v: Values) -> Any:
    size = v[0].shape[attrs["axis"]]
    parts = attrs["split"] or -(-size // attrs["num_outputs"])
    return torch.split(v[0], parts if isinstance(parts, int) else list(parts), attrs["axis"])


def _slice(attrs: Mapping[str, Any], v: Values) -> Any:
    axes = attrs["axes"] or range(len(attrs["starts"]))
    steps = attrs["steps"] or (1,) * len(axes)
    if any(step < 0 for step in steps):  # torch takes none
        raise KeyError("a slice backwards")
    index = [slice(None)] * v[0].dim()
    for axis, start, end, step in zip(axes, attrs["starts"], attrs["ends"], steps):
        index[axis] = slice(start, min(end, 1 << 62), step)
    return v[0][tuple(index)]


def _reshape(attrs: Mapping[str, Any], v: Values) -> Any:
    shape = [v[0].shape[axis] if size == 0 and not attrs["allowzero"] else int(size)
             for axis, size in enumerate(attrs["shape"])]
    return v[0].reshape(shape)


def _padded(attrs: Mapping[str, Any], x: Any, value: float = 0.0) -> tuple[Any, tuple[int, ...]]:
    """The image and what its operator still has to pad: nothing where the two sides differ."""
    rank = x.dim() - 2
    pads = tuple(attrs.get("pads") or (0,) * 2 * rank)
    if attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        pads = _same(attrs, x)
    if pads[:rank] == pads[rank:]:
        return x, pads[:rank]
    return _pad_last(x, pads, "constant", value), (0,) * rank


def _same(attrs: Mapping[str, Any], x: Any) -> tuple[int, ...]:
    """Pads such that there are as many places as strides fit into the image."""
    strides, gaps = (attrs[name] or (1,) * (x.dim() - 2) for name in ("strides", "dilations"))
    total = [max(0, (-(-size // stride) - 1) * stride + (window - 1) * gap + 1 - size)
             for size, stride, gap, window in zip(x.shape[2:], strides, gaps, attrs["kernel_shape"])]
    small, large = [each // 2 for each in total], [-(-each // 2) for each in total]
    return (*small, *large) if attrs["auto_pad"] == "SAME_UPPER" else (*large, *small)


def _pad_last(x: Any, pads: Sequence[int], mode: str, value: float) -> Any:
    """Pads of the last axes, all first ends before all last ones, as ONNX has them."""
    half = len(pads) // 2
    turned = [pads[axis + side * half] for axis in reversed(range(half)) for side in (0, 1)]
    while len(turned) > 2 and turned[-2:] == [0, 0]:  # torch reflects the last axes alone
        turned = turned[:-2]
    return F.pad(x, turned, mode, value) if mode == "constant" else F.pad(x, turned, mode)


def _conv(attrs: Mapping[str, Any], v: Values) -> Any:
    rank = v[0].dim() - 2
    bias = v[2] if len(v) > 2 else None
    x, pads = _padded(attrs, v[0])
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](x, v[1], bias, attrs["strides"] or 1, pads,
                                                    attrs["dilations"] or 1, attrs["group"])


def _conv_transpose(attrs: Mapping[str, Any], v: Values) -> Any:
    if attrs["output_shape"] is not None or attrs["auto_pad"] != "NOTSET":
        raise KeyError("a transposed convolution that is given its size")
    rank = v[0].dim() - 2
    pads = tuple(attrs["pads"] or (0,) * 2 * rank)
    if pads[:rank] != pads[rank:]:
        raise KeyError("a transposed convolution whose sides differ")
    return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1](
        v[0], v[1], v[2] if len(v) > 2 else None, attrs["strides"] or 1, pads[:rank], attrs["output_padding"] or 0,
        attrs["group"], attrs["dilations"] or 1)


def _max_pool(attrs: Mapping[str, Any], v: Values) -> Any:
    x, pads = _padded(attrs, v[0], -torch.inf)
    return F.max_pool2d(x, attrs["kernel_shape"], attrs["strides"] or 1, pads, attrs["dilations"] or 1,
                        bool(attrs["ceil_mode"]))


def _average_pool(attrs: Mapping[str, Any], v: Values) -> Any:
    """Places that were padded do not count, unless they are to."""
    if attrs["dilations"] not in (None, (1, 1)) or attrs["ceil_mode"]:
        raise KeyError("an average with gaps, or over places beyond the image")
    pads = attrs["pads"] or (0, 0, 0, 0)
    window = attrs["kernel_shape"], attrs["strides"] or 1
    total = F.avg_pool2d(_pad_last(v[0], pads, "constant", 0.0), *window)
    if attrs["count_include_pad"]:
        return total
    return total / F.avg_pool2d(_pad_last(torch.ones_like(v[0]), pads, "constant", 0.0), *window)


def _resize(attrs: Mapping[str, Any], v: Values) -> Any:
    mode, place = attrs["mode"], attrs["coordinate_transformation_mode"]
    kinds = {("nearest", "asymmetric"): "nearest", ("linear", "half_pixel"): "bilinear",
             ("linear", "pytorch_half_pixel"): "bilinear"}
    if attrs["axes"] is not None or attrs["antialias"] or (mode == "nearest" and attrs["nearest_mode"] != "floor"):
        raise KeyError("a resize that the zoos do not have")
    sizes = attrs["sizes"] or [int(size * scale) for size, scale in zip(v[0].shape, attrs["scales"])]
    if kinds[mode, place] == "nearest":
        return F.interpolate(v[0], tuple(sizes[2:]), mode="nearest")
    return F.interpolate(v[0], tuple(sizes[2:]), mode="bilinear", align_corners=False)


def _pad(attrs: Mapping[str, Any], v: Values) -> Any:
    mode = {"edge": "replicate"}.get(attrs["mode"], attrs["mode"])
    if attrs["axes"] is not None:
        raise KeyError("pads of some axes")
    return _pad_last(v[0], attrs["pads"], mode, attrs["constant_value"] or 0.0)


def _lrn(attrs: Mapping[str, Any], v: Values) -> Any:
    return F.local_response_norm(v[0], attrs["size"], attrs["alpha"], attrs["beta"], attrs["bias"])


def _layer_norm(attrs: Mapping[str, Any], v: Values) -> Any:
    axis = attrs["axis"] % v[0].dim()
    return F.layer_norm(v[0], v[0].shape[axis:], v[1], v[2] if len(v) > 2 else None, attrs["epsilon"])


def _squeeze(attrs: Mapping[str, Any], v: Values) -> Any:
    return v[0].squeeze() if attrs["axes"] is None else v[0].squeeze(tuple(attrs["axes"]))


def _gather_nd(attrs: Mapping[str, Any], v: Values) -> Any:
    if attrs["batch_dims"]:
        raise KeyError("rows of each batch")
    return v[0][tuple(v[1].movedim(-1, 0))]


def _scatter_elements(attrs: Mapping[str, Any], v: Values) -> Any:
    if attrs["reduction"] != "none":
        raise KeyError("a scatter that adds up")
    return v[0].scatter(attrs["axis"], v[1], v[2].to(v[0].dtype))


def _top_k(attrs: Mapping[str, Any], v: Values) -> Any:
    return tuple(torch.topk(v[0], attrs["k"], attrs["axis"], bool(attrs["largest"]), bool(attrs["sorted"])))


def _dropout(attrs: Mapping[str, Any], v: Values) -> Any:
    if attrs["training_mode"]:
        raise KeyError("a dropout that drops")
    return v[0], torch.ones_like(v[0], dtype=torch.bool)


def _dft(attrs: Mapping[str, Any], v: Values) -> Any:
    if attrs["onesided"]:
        raise KeyError("half of a spectrum")
    x = torch.view_as_complex(v[0].contiguous()) if v[0].shape[-1] == 2 else v[0][..., 0]
    transform = torch.fft.ifft if attrs["inverse"] else torch.fft.fft
    return torch.view_as_real(transform(x, dim=int(v[2]) % v[0].dim()))


def _one_hot(attrs: Mapping[str, Any], v: Values) -> Any:
    depth = int(v[1])
    places = F.one_hot(v[0] % depth, depth).movedim(-1, attrs["axis"])
    return torch.where(places > 0, v[2][1], v[2][0])


def _split_to_sequence(attrs: Mapping[str, Any], v: Values) -> Any:
    if not attrs["keepdims"] and len(v) == 1:
        raise KeyError("a sequence of slices")
    sizes = v[1].tolist() if len(v) > 1 else 1
    return list(torch.split(v[0], sizes, attrs["axis"]))


def _reduced(reduce: Callable[..., Any]) -> Call:
    def call(attrs: Mapping[str, Any], v: Values) -> Any:
        axes = attrs["axes"] or tuple(range(v[0].dim()))
        return reduce(v[0], dim=tuple(axes), keepdim=bool(attrs["keepdims"]))

    return call


def _folded(join: Callable[[Any, Any], Any]) -> Call:
    def call(attrs: Mapping[str, Any], v: Values) -> Any:
        found = v[0]
        for each in v[1:]:
            found = join(found, each)
        return found

    return call


def _clip(attrs: Mapping[str, Any], v: Values) -> Any:
    return torch.clamp(v[0], attrs["min"], attrs["max"])


def _slope(attrs: Mapping[str, Any], v: Values) -> Any:
    return torch.where(v[0] < 0, v[0] * v[1], v[0])


def _gather(attrs: Mapping[str, Any], v: Values) -> Any:
    axis = attrs["axis"] % v[0].dim()
    shape = (*v[0].shape[:axis], *v[1].shape, *v[0].shape[axis + 1 :])
    places = v[1].reshape(-1)
    return torch.index_select(v[0], axis, torch.where(places < 0, places + v[0].shape[axis], places)).reshape(shape)


def _gemm(attrs: Mapping[str, Any], v: Values) -> Any:
    a, b = v[0].T if attrs["transA"] else v[0], v[1].T if attrs["transB"] else v[1]
    return torch.addmm(v[2], a, b, beta=attrs["beta"], alpha=attrs["alpha"]) if len(v) > 2 else attrs["alpha"] * (a @ b)


def _unsqueeze(attrs: Mapping[str, Any], v: Values) -> Any:
    found, rank = v[0], v[0].dim() + len(attrs["axes"])
    for axis in sorted(axis % rank for axis in attrs["axes"]):
        found = found.unsqueeze(axis)
    return found


def _expand(attrs: Mapping[str, Any], v: Values) -> Any:
    return v[0].expand(torch.broadcast_shapes(v[0].shape, tuple(attrs["shape"])))


def _lstm(attrs: Mapping[str, Any], v: Values) -> Any:
    """ONNX orders the gates i, o, f, c and torch i, f, c, o."""
    v = [*v, *[None] * (8 - len(v))]
    if v[4] is not None or v[7] is not None:
        raise KeyError("LSTM with lengths or peepholes")
    directions, hidden = v[1].shape[0], attrs["hidden_size"]
    flat = []
    for direction in range(directions):
        biases = v[3][direction].chunk(2)
        for part in (v[1][direction], v[2][direction], *biases):
            i, o, f, c = part.chunk(4)
            flat.append(torch.cat([i, f, c, o]))
    states = tuple(v[0].new_zeros(directions, v[0].shape[1], hidden) if each is None else each for each in v[5:7])
    found, h, c = torch.lstm(v[0], states, flat, True, 1, 0.0, False, directions == 2, False)
    steps, batch = v[0].shape[:2]
    return found.reshape(steps, batch, directions, hidden).permute(0, 2, 1, 3), h, c


def _batch_norm(attrs: Mapping[str, Any], v: Values) -> Any:
    if not attrs["training_mode"]:
        if v[3].requires_grad or v[4].requires_grad:  # torch has no gradients by the statistics
            scale, bias, mean, variance = (each.reshape(-1, *[1] * (v[0].dim() - 2)) for each in v[1:])
            return (v[0] - mean) / torch.sqrt(variance + attrs["epsilon"]) * scale + bias
        return F.batch_norm(v[0], v[3], v[4], v[1], v[2], eps=attrs["epsilon"])
    mean, variance = v[3].clone(), v[4].clone()  # torch writes into them
    found = F.batch_norm(v[0], mean, variance, v[1], v[2], True, 1 - attrs["momentum"], attrs["epsilon"])
    return found, mean, variance


CALLS: dict[str, Call] = {
    "Add": lambda a, v: v[0] + v[1], "Sub": lambda a, v: v[0] - v[1], "Mul": lambda a, v: v[0] * v[1],
    "Div": lambda a, v: v[0] / v[1], "Pow": lambda a, v: torch.pow(v[0], v[1]), "Sqrt": lambda a, v: torch.sqrt(v[0]),
    "Neg": lambda a, v: -v[0], "Relu": lambda a, v: F.relu(v[0]), "Sigmoid": lambda a, v: torch.sigmoid(v[0]),
    "Tanh": lambda a, v: torch.tanh(v[0]), "Erf": lambda a, v: torch.erf(v[0]), "Cos": lambda a, v: torch.cos(v[0]),
    "Sin": lambda a, v: torch.sin(v[0]), "MatMul": lambda a, v: v[0] @ v[1], "Gemm": _gemm, "Conv": _conv,
    "Cast": lambda a, v: v[0].to(TORCH_DTYPES[a["to"]]), "Concat": lambda a, v: torch.cat(v, a["axis"]),
    "Transpose": lambda a, v: v[0].permute(a["perm"]), "Reshape": _reshape,
    "Split": _split, "Slice": _slice, "Gather": _gather,
    "Unsqueeze": _unsqueeze, "Expand": _expand, "Where": lambda a, v: torch.where(v[0], v[1], v[2]),
    "Softmax": lambda a, v: torch.softmax(v[0], a["axis"]), "BatchNormalization": _batch_norm, "LSTM": _lstm,
    "ReduceMean": lambda a, v: v[0].mean(tuple(a["axes"]), bool(a["keepdims"])), "MaxPool": _max_pool,
    "GlobalAveragePool": lambda a, v: v[0].mean(tuple(range(2, v[0].dim())), True),
    "Flatten": lambda a, v: v[0].reshape(prod(v[0].shape[: a["axis"]]), -1),
    "Identity": lambda a, v: v[0], "Exp": lambda a, v: torch.exp(v[0]), "Log": lambda a, v: torch.log(v[0]),
    "Abs": lambda a, v: torch.abs(v[0]), "Reciprocal": lambda a, v: torch.reciprocal(v[0]),
    "Floor": lambda a, v: torch.floor(v[0]), "Softplus": lambda a, v: torch.nn.functional.softplus(v[0], threshold=1e9),
    "Gelu": lambda a, v: F.gelu(v[0], approximate=a["approximate"]), "PRelu": _slope, "Clip": _clip,
    "HardSigmoid": lambda a, v: torch.clamp(a["alpha"] * v[0] + a["beta"], 0, 1),
    "LeakyRelu": lambda a, v: F.leaky_relu(v[0], a["alpha"]), "LayerNormalization": _layer_norm, "LRN": _lrn,
    "Sum": _folded(torch.add), "Max": _folded(torch.maximum), "Min": _folded(torch.minimum),
    "ReduceSum": _reduced(torch.sum), "ReduceMax": _reduced(torch.amax), "ReduceMin": _reduced(torch.amin),
    "And": lambda a, v: v[0] & v[1], "Or": lambda a, v: v[0] | v[1], "Not": lambda a, v: ~v[0],
    "Equal": lambda a, v: v[0] == v[1], "Greater": lambda a, v: v[0] > v[1], "Less": lambda a, v: v[0] < v[1],
    "GreaterOrEqual": lambda a, v: v[0] >= v[1], "LessOrEqual": lambda a, v: v[0] <= v[1],
    "IsNaN": lambda a, v: torch.isnan(v[0]), "Squeeze": _squeeze, "Pad": _pad, "Resize": _resize, "TopK": _top_k,
    "GatherND": _gather_nd, "GatherElements": lambda a, v: torch.gather(v[0], a["axis"], v[1]),
    "ScatterElements": _scatter_elements, "Einsum": lambda a, v: torch.einsum(a["equation"], *v), "Dropout": _dropout,
    "Tile": lambda a, v: v[0].repeat([int(each) for each in a["repeats"]]), "DFT": _dft, "OneHot": _one_hot,
    "CastLike": lambda a, v: v[0].to(v[1].dtype), "NonZero": lambda a, v: torch.nonzero(v[0]).T,
    "SplitToSequence": _split_to_sequence, "SequenceAt": lambda a, v: v[0][int(v[1])],
    "ConvTranspose": _conv_transpose, "AveragePool": _average_pool,
    "GlobalMaxPool": lambda a, v: torch.amax(v[0], tuple(range(2, v[0].dim())), True),
}  # fmt: skip
