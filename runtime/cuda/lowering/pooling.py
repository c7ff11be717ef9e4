"""Lowerings of pools, which belong to the convolution family."""

from __future__ import annotations

from runtime.codegen import pooling, reduction
from runtime.codegen.pooling import Axis, Pool
from runtime.kernels._windows import Windows

from ..emitter import Emitter, NoKernel
from . import rows
from .reduction import emit_fold, reduced, scalar_of

LOWERINGS, lowering = rows()


@lowering("MaxPool", "AveragePool", "LpPool")
def _pool(emitter: Emitter) -> None:
    x, attrs, op = emitter.tensor(0), emitter.attrs, emitter.node.op
    if scalar_of(x, floats=op != "MaxPool").dtype == "bool":
        raise NoKernel("MaxPool of bool")
    windows = Windows.of(attrs, x.shape[2:], attrs["kernel_shape"], bool(attrs.get("ceil_mode")))
    axes = tuple(map(Axis, x.shape[2:], windows.counts, windows.kernel, windows.strides, windows.dilations,
                     windows.begins, windows.ends))
    pool = {"MaxPool": Pool("max", places=emitter.wants(1), transposed=bool(attrs.get("storage_order"))),
            "AveragePool": Pool("average", bool(attrs.get("count_include_pad"))),
            "LpPool": Pool("norm", p=int(attrs.get("p", 2)))}[op]
    shape = (*x.shape[:2], *windows.counts)
    made = [emitter.output(0, shape)]
    if pool.places:
        made.append(emitter.output(1, shape, "int64"))
    if 0 not in shape:
        emitter.launch(pooling.pool_kernel(x.dtype, (x.shape[0], x.shape[1]), x.strides, axes, pool), x, *made)


@lowering("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(emitter: Emitter) -> None:
    x, op = emitter.tensor(0), emitter.node.op
    scalar_of(x, floats=True)
    axes = tuple(range(2, x.rank))
    make = (reduction.FOLDS["ReduceMean"] if op == "GlobalAveragePool" else reduction.FOLDS["ReduceMax"]
            if op == "GlobalMaxPool" else reduction.power_sum(int(emitter.attrs["p"])))
    emit_fold(emitter, op.lower(), make, x, axes, emitter.output(0, reduced(x.shape, axes, True)))
