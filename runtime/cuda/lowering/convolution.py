"""Lowerings of the convolution operators: matrix products over windows laid out as columns, and direct kernels where
a channel has windows of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from graphs.operators._windows import per_axis
from runtime.codegen import address, elementwise
from runtime.codegen.convolution import Slide, columns_kernel, depthwise_kernel, gather_kernel
from runtime.codegen.elementwise import Operand
from runtime.codegen.scalar import Scalar
from runtime.kernels._windows import Windows
from runtime.kernels.convolution import transposed_layout

from ..emitter import Emitter, NoKernel
from ..tensor import Tensor, item_size
from . import rows
from ._product import LIBRARY, emit_product

LOWERINGS, lowering = rows()

# Columns take this much memory at a time: the batch is walked through in pieces (of one image at least).
MOST_COLUMN_BYTES = 1 << 28


@lowering("Conv")
def _conv(emitter: Emitter) -> None:
    emit_conv(emitter)


def emit_conv(emitter: Emitter) -> Tensor:
    """The convolution of inputs 0 and 1 plus a bias, input 2, as output 0."""
    x, w, bias = _operands(emitter)
    windows = Windows.of(emitter.attrs, x.shape[2:], w.shape[2:])
    slide = Slide(x.shape[2:], windows.kernel, windows.counts, windows.strides, windows.dilations, windows.begins)
    out = emitter.output(0, (x.shape[0], w.shape[0], *windows.counts), x.dtype)
    if not out.size:
        return out
    group = int(emitter.attrs.get("group", 1))
    if w.shape[1] == 1:
        kernel = depthwise_kernel(x.dtype, x.shape[:2], w.shape[0], x.strides, slide, bias is not None)
        emitter.launch(kernel, x, w, *([bias] if bias is not None else []), out)
        return out
    if bias is not None:
        _spread(emitter, bias, out)
    weights = w.viewed((group, w.shape[0] // group, prod(w.shape[1:])),
                       address.contiguous((group, w.shape[0] // group, prod(w.shape[1:]))))
    positions = prod(windows.counts)
    target = _viewed(out, (x.shape[0], group, w.shape[0] // group, positions))
    beta = 0.0 if bias is None else 1.0
    if windows.trivial and all(stride == 1 for stride in windows.strides):
        columns = _reshaped(emitter, x, (x.shape[0], group, w.shape[1], positions))
        emit_product(emitter, weights, columns, target, beta=beta)
        return out
    images = (x.shape[1], *windows.kernel, *windows.counts)
    for start, count, columns in _pieces(emitter, x.shape[0], images, x.dtype):
        kernel = columns_kernel(x.dtype, (count, x.shape[1]), x.strides, slide)
        emitter.launch(kernel, _images(x, start, count), columns)
        factor = _viewed(columns, (count, group, weights.shape[2], positions))
        emit_product(emitter, weights, factor, _images(target, start, count), beta=beta)
    return out


def _operands(emitter: Emitter) -> tuple[Tensor, Tensor, Tensor | None]:
    x = emitter.tensor(0)
    if x.dtype not in LIBRARY:
        raise NoKernel(f"convolution of {x.dtype}")
    return x, emitter.dense(1), emitter.dense(2) if emitter.has(2) else None


def _spread(emitter: Emitter, bias: Tensor, out: Tensor) -> None:
    """Lay the bias of each channel over the output, for products that add to it."""
    channels = bias.viewed((bias.shape[0], *(1 for _ in out.shape[2:])), (bias.strides[0], *(0 for _ in out.shape[2:])))
    emitter.copy(channels.broadcast(out.shape), out)


def _pieces(emitter: Emitter, batch: int, image: tuple[int, ...], dtype: str) -> Iterator[tuple[int, int, Tensor]]:
    """First image, number of images and a buffer for their columns, which all pieces use in turn."""
    most = max(1, MOST_COLUMN_BYTES // max(prod(image) * item_size(dtype), 1))
    even = -(-batch // -(-batch // most))
    buffer = emitter.temporary((even, *image), dtype)
    for start in range(0, batch, even):
        count = min(even, batch - start)
        yield start, count, _images(buffer, 0, count)


def _images(tensor: Tensor, start: int, count: int) -> Tensor:
    return tensor.viewed((count, *tensor.shape[1:]), tensor.strides, start * tensor.strides[0])


def _viewed(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A row-major tensor in another shape."""
    return tensor.viewed(shape, address.contiguous(shape))


def _reshaped(emitter: Emitter, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    strides = address.reshaped(tensor.shape, tensor.strides, shape)
    return _viewed(emitter.as_dense(tensor), shape) if strides is None else tensor.viewed(shape, strides)


@lowering("ConvTranspose")
def _conv_transpose(emitter: Emitter) -> None:
    x, w, bias = _operands(emitter)
    attrs, rank, group = emitter.attrs, x.rank - 2, int(emitter.attrs["group"])
    sizes, begins = transposed_layout(attrs, x.shape[2:], w.shape[2:])
    (batch, channels), maps = x.shape[:2], w.shape[1] * group
    out = emitter.output(0, (batch, maps, *sizes))
    slide = Slide(tuple(sizes), w.shape[2:], x.shape[2:], per_axis(attrs, "strides", rank),
                  per_axis(attrs, "dilations", rank), tuple(begins))
    added = [bias] if bias is not None else []
    if not out.size:
        return
    if channels == group:
        kernel = gather_kernel(x.dtype, (batch, maps), slide, bool(added), channels)
        emitter.launch(kernel, emitter.as_dense(x), w, *added, out)
        return
    inner, positions = channels // group, prod(x.shape[2:])
    weights = _viewed(w, (group, inner, prod(w.shape[1:])))
    weights = weights.viewed((group, weights.shape[2], inner), (weights.strides[0], 1, weights.strides[1]))
    factor = _reshaped(emitter, x, (batch, group, inner, positions))
    for start, count, columns in _pieces(emitter, batch, (maps, *w.shape[2:], *x.shape[2:]), x.dtype):
        product = _viewed(columns, (count, group, weights.shape[1], positions))
        emit_product(emitter, weights, _images(factor, start, count), product)
        emitter.launch(gather_kernel(x.dtype, (count, maps), slide, bool(added)), columns, *added,
                       _images(out, start, count))


@lowering("com.microsoft.FusedConv")
def _fused_conv(emitter: Emitter) -> None:
    """ONNX Runtime's: activation(convolution + bias + input 3)."""
    x = emitter.tensor(0)
    if x.dtype not in LIBRARY:
        raise NoKernel(f"convolution of {x.dtype}")
    added = emitter.dense(3) if emitter.has(3) else None
    text = _activation(emitter.attrs, Scalar.of(x.dtype), "a0 + a1" if added else "a0")
    out = emit_conv(emitter)
    operands = [out, *([added] if added else [])]
    read = [Operand(each.dtype, each.strides) for each in operands]
    emitter.launch(elementwise.pointwise("activation", out.shape, read, out.dtype, text), *operands, out)


def _activation(attrs: Mapping[str, Any], scalar: Scalar, value: str) -> str:
    name, parameters = attrs.get("activation", ""), list(attrs.get("activation_params", ()))
    f, zero, one = "f" if scalar.compute == "float" else "", scalar.literal(0), scalar.literal(1)
    a, b = (scalar.literal(each) for each in (*parameters, 0, 0)[:2])
    table = {
        "": value,
        "Relu": f"eg_max({zero}, {value})",
        "Tanh": f"tanh{f}({value})",
        "Sigmoid": f"{one} / ({one} + exp{f}(-({value})))",
        "LeakyRelu": f"({value}) >= {zero} ? ({value}) : {a} * ({value})",
        "Clip": f"eg_min({b}, eg_max({a}, {value}))",
        "HardSigmoid": f"eg_min(eg_max({a} * ({value}) + {b}, {zero}), {one})",
    }
    if name not in table:
        raise NoKernel(f"FusedConv with {name}")
    return table[name]
