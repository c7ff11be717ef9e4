"""Tensors between the host and a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs import dtypes
from graphs.errors import ExecutionFailed
from runtime.codegen import address
from runtime.execute import as_value

from .device import Device, Place
from .lower import called
from .plan import OnHost
from .tensor import Tensor, item_size


def place(tensor: Tensor) -> Place:
    """Where a tensor lies."""
    storage = tensor.storage
    assert storage is not None and storage.memory is not None
    return Place(storage.memory, storage.start + tensor.offset * item_size(tensor.dtype), tensor.dtype, tensor.shape,
                 tensor.strides)


def download(device: Device, value: Any) -> Any:
    """A value as an array of its own (or whatever else NumPy made it)."""
    if not isinstance(value, Tensor):
        return value
    if value.host is not None:
        return value.host.copy()
    dtype = dtypes.numpy_dtype(value.dtype)
    if not value.size:
        return np.empty(value.shape, dtype)
    there = place(value)
    if value.is_dense:
        return device.read(there.memory, there.start, dtype, value.shape)
    low, high = address.extent(value.shape, value.strides)
    flat = device.read(there.memory, there.start + low * dtype.itemsize, dtype, (high - low,))
    strides = [stride * dtype.itemsize for stride in value.strides]
    return np.array(np.lib.stride_tricks.as_strided(flat[-low:], value.shape, strides), copy=True, order="C")


def run_on_host(device: Device, step: OnHost) -> None:
    """Run a node on NumPy: its inputs come down, its outputs go up."""
    found = called(step.node, step.call, [download(device, each) for each in step.inputs])
    for name, made, value in zip(step.node.outputs, step.outputs, found):
        if made is None:
            continue
        array = np.asarray(as_value(value))
        if array.shape != made.shape or array.dtype != dtypes.numpy_dtype(made.dtype):
            raise ExecutionFailed(step.node.label, f"its output {name!r} is {array.dtype}{list(array.shape)}, but "
                                  f"{made.dtype}{list(made.shape)} was inferred", "report it: inference is wrong")
        assert made.storage is not None
        if array.size:
            device.write(made.storage.memory, made.storage.start, np.ascontiguousarray(array))
