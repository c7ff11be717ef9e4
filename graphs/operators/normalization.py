"""Normalization family: batch, layer, instance, group and RMS normalization, softmax and its kin."""

from __future__ import annotations

from collections.abc import Mapping

from ..dims import DimLike
from ..types import Shape, TensorType, Type
from .record import REQUIRED, Operator, Site

_EPSILON = 9.999999747378752e-06
# ONNX TensorProto.DataType of `stash_type`
STASH_DTYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


def normalize_axis(site: Site, axis: int, rank: int, upper: int = 0) -> int:
    """A non-negative axis below `rank + upper`; raises where it is out of range."""
    if not -rank <= axis < max(rank, 1) + upper and not (rank == 0 and axis == -1):
        raise site.fail(f"axis {axis} for an input of rank {rank}", f"use {-rank} to {rank - 1 + upper}")
    return axis % rank if rank and axis < rank else max(axis, 0)


def _check_channels(site: Site, x: Shape | None, *inputs: int) -> None:
    if x is None or len(x) < 2:
        return
    for index in inputs:
        type_ = site.type(index)
        if type_ is None or type_.shape is None:
            continue
        channels, given = x[1], type_.shape
        wrong = len(given) == 1 and isinstance(given[0], int) and isinstance(channels, int) and given[0] != channels
        if len(given) != 1 or wrong:
            raise site.fail(f"input {index} is {type_}", f"give a vector of {channels} elements, one per channel")


def _shape(site: Site, index: int = 0) -> Shape | None:
    type_ = site.type(index)
    return None if type_ is None else type_.shape


def _batch_normalization(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    x = _shape(site)
    _check_channels(site, x, 1, 2, 3, 4)
    statistics = [site.type(3), site.type(4)]
    channels: tuple[DimLike, ...] | None = None if x is None else (x[1] if len(x) > 1 else 1,)
    found: list[Type | None] = [type_]
    found += [None if stat is None else TensorType(stat.dtype, channels) for stat in statistics]
    return found[: site.outputs]


def _read_batch_normalization(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = {name: value for name, value in attrs.items() if name != "consumed_inputs"}
    if out.pop("spatial", 1) != 1:
        return None  # statistics per position instead of per channel
    if version < 7 and not out.pop("is_test", 0):
        return None  # training: its other outputs mean other things than those of version 14
    out["training_mode"] = out.get("training_mode", 0)
    return out


def _write_batch_normalization(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    if version < 14 and out.pop("training_mode", 0):
        return None
    if version < 7:
        out["is_test"] = 1
    return out


def _inference_mode(attrs: Mapping[str, object]) -> bool:
    return not attrs.get("training_mode")


def _layer_normalization(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    if type_ is None:
        return [None] * site.outputs
    stash = STASH_DTYPES.get(int(site.attrs.get("stash_type", 1)), "float32")  # type: ignore[call-overload]
    reduced: Shape | None = None
    if type_.shape is not None:
        axis = normalize_axis(site, int(site.attrs["axis"]), len(type_.shape))  # type: ignore[call-overload]
        reduced = (*type_.shape[:axis], *(1 for _ in type_.shape[axis:]))
    found: list[Type | None] = [type_, TensorType(stash, reduced), TensorType(stash, reduced)]
    return found[: site.outputs]


def _rms_normalization(site: Site) -> list[Type | None]:
    x = _shape(site)
    if x is not None:
        normalize_axis(site, int(site.attrs["axis"]), len(x))  # type: ignore[call-overload]
    type_, scale = site.type(0), site.type(1)  # the output has the type of the scale, the shape of X
    return [type_ if type_ is None or scale is None else TensorType(scale.dtype, type_.shape)]


def _per_channel(site: Site) -> list[Type | None]:
    _check_channels(site, _shape(site), 1, 2)
    groups, x = site.attrs.get("num_groups"), _shape(site)
    if groups is not None and x is not None and len(x) > 1 and isinstance(x[1], int):
        if int(groups) < 1 or x[1] % int(groups):  # type: ignore[call-overload]
            raise site.fail(f"{x[1]} channels in {groups} groups", "num_groups must divide the number of channels")
    return [site.type(0)]


def _along_axis(site: Site) -> list[Type | None]:
    x = _shape(site)
    if x is not None:
        upper = 1 if site.attrs.get("flatten") else 0
        normalize_axis(site, int(site.attrs["axis"]), len(x), upper)  # type: ignore[call-overload]
    return [site.type(0)]


def _over_axes(site: Site) -> list[Type | None]:
    x = _shape(site)
    if x is not None:
        for axis in site.attrs["axes"]:  # type: ignore[attr-defined]
            normalize_axis(site, axis, len(x))
    return [site.type(0)]


def _drop_consumed(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    return {name: value for name, value in attrs.items() if name != "consumed_inputs"}


def _read_softmax(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    """Before 13 the input is seen as a matrix, split before the axis: that is `flatten=1`."""
    out = dict(attrs)
    if version < 13:
        out["axis"] = attrs.get("axis", 1)
        # Splitting before the last axis is the same as working along it.
        out["flatten"] = 0 if out["axis"] == -1 else 1
    else:
        out["axis"] = attrs.get("axis", -1)
        out["flatten"] = 0
    return out


def _write_softmax(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    flatten = out.pop("flatten", 0)
    axis = out.get("axis", -1)
    if version >= 13:
        return None if flatten else out
    return out if flatten or axis == -1 else None


_SOFTMAX = {"axis": -1, "flatten": 0}
_EPS = {"epsilon": _EPSILON}

OPERATORS: list[Operator] = [
    Operator("BatchNormalization", _batch_normalization, (1, 6, 7, 9, 14, 15),
             {**_EPS, "momentum": 0.8999999761581421, "training_mode": 0},
             read=_read_batch_normalization, write=_write_batch_normalization, pure_if=_inference_mode),
    Operator("LayerNormalization", _layer_normalization, (17,), {**_EPS, "axis": -1, "stash_type": 1}),
    Operator("InstanceNormalization", _per_channel, (1, 6, 22), dict(_EPS), read=_drop_consumed),
    # Version 18 has a scale and a bias per group instead of per channel (and is deprecated).
    Operator("GroupNormalization", _per_channel, (21,), {**_EPS, "num_groups": REQUIRED, "stash_type": 1}),
    Operator("RMSNormalization", _rms_normalization, (23,), {**_EPS, "axis": -1, "stash_type": 1}),
    Operator("LpNormalization", _along_axis, (1, 22), {"axis": -1, "p": 2}),
    Operator("MeanVarianceNormalization", _over_axes, (9, 13), {"axes": (0, 2, 3)}),
    Operator("Softmax", _along_axis, (1, 11, 13), dict(_SOFTMAX), read=_read_softmax, write=_write_softmax),
    Operator("LogSoftmax", _along_axis, (1, 11, 13), dict(_SOFTMAX), read=_read_softmax, write=_write_softmax),
    Operator("Hardmax", _along_axis, (1, 11, 13), dict(_SOFTMAX), read=_read_softmax, write=_write_softmax),
]
