"""Random operators. None is pure, except Dropout outside of training."""

from __future__ import annotations

from collections.abc import Mapping

from .. import dtypes
from ..types import TensorType, Type
from .record import REQUIRED, Operator, Site


def _dtype(site: Site, otherwise: str | None) -> str | None:
    number = site.attrs.get("dtype")
    return otherwise if number is None else dtypes.FROM_ONNX.get(int(number))  # type: ignore[call-overload]


def _generate(site: Site) -> list[Type | None]:
    dtype = _dtype(site, "float32")
    shape = tuple(int(dim) for dim in site.attrs["shape"])  # type: ignore[attr-defined]
    return [None if dtype is None else TensorType(dtype, shape)]


def _like(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    dtype = _dtype(site, None if type_ is None else type_.dtype)
    return [None if dtype is None else TensorType(dtype, None if type_ is None else type_.shape)]


def _multinomial(site: Site) -> list[Type | None]:
    type_, dtype = site.type(0), _dtype(site, "int32")
    if dtype is None or type_ is None or type_.shape is None:
        return [None if dtype is None else TensorType(dtype)]
    if len(type_.shape) != 2:
        raise site.fail(f"input {type_} of rank {len(type_.shape)}", "give (batch, classes)")
    return [TensorType(dtype, (type_.shape[0], int(site.attrs["sample_size"])))]  # type: ignore[call-overload]


def _dropout(site: Site) -> list[Type | None]:
    type_ = site.type(0)
    shape = None if type_ is None else type_.shape
    mask: str | None = "bool" if not site.attrs["legacy_mask"] else None if type_ is None else type_.dtype
    found: list[Type | None] = [type_, None if mask is None else TensorType(mask, shape)]
    return found[: site.outputs]


def _read_dropout(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    """Versions 7 and 10 are inference only, 1 and 6 say so by `is_test`; before 10 the mask has the data's type."""
    out = {name: value for name, value in attrs.items() if name != "consumed_inputs"}
    if version < 7 and not out.pop("is_test", 0):
        return None
    out["legacy_mask"] = 1 if version < 10 else 0
    return out


def _write_dropout(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    if out.pop("legacy_mask", 0) != (1 if version < 10 else 0):
        return None
    if version < 12:
        training, seed = out.pop("training_mode", False), out.pop("seed", None)
        if (training is not False and training != 0) or seed is not None:
            return None
    if version < 7:
        out["is_test"] = 1
    return out


def _inference_mode(attrs: Mapping[str, object]) -> bool:
    mode = attrs.get("training_mode", False)
    return isinstance(mode, bool | int) and not mode  # RUNTIME may turn out true


_NORMAL = {"mean": 0.0, "scale": 1.0, "seed": None}
_UNIFORM = {"high": 1.0, "low": 0.0, "seed": None}

OPERATORS: list[Operator] = [
    Operator("RandomNormal", _generate, (1, 22), {**_NORMAL, "dtype": 1, "shape": REQUIRED}, pure=False),
    Operator("RandomUniform", _generate, (1, 22), {**_UNIFORM, "dtype": 1, "shape": REQUIRED}, pure=False),
    Operator("RandomNormalLike", _like, (1, 22), {**_NORMAL, "dtype": None}, pure=False),
    Operator("RandomUniformLike", _like, (1, 22), {**_UNIFORM, "dtype": None}, pure=False),
    Operator("Bernoulli", _like, (15, 22), {"dtype": None, "seed": None}, pure=False),
    Operator("Multinomial", _multinomial, (7, 22), {"dtype": 6, "sample_size": 1, "seed": None}, pure=False),
    Operator("Dropout", _dropout, (1, 6, 7, 10, 12, 13, 22),
             {"ratio": 0.5, "training_mode": False, "seed": None, "legacy_mask": 0},
             static={"ratio": 1, "training_mode": 2}, read=_read_dropout, write=_write_dropout,
             pure_if=_inference_mode),
]
