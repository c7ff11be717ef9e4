"""Where onnx.reference departs from the specification of `ai.onnx.ml`, or from what ONNX Runtime gives.

What it leaves out or rounds to the wrong type is put right; variants whose scores the two compute differently are not
executed at all, so that nobody takes the one for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphs.ir import Node
from graphs.ml_types import DOMAIN
from graphs.types import TensorType, Type

_FLOAT_RESULT = frozenset({"Scaler", "Normalizer", "FeatureVectorizer", "TreeEnsembleRegressor", "LinearRegressor"})


def problem_with(node: Node) -> str:
    """Why a variant is not executed, '' where it is."""
    attrs = node.attrs
    transform = attrs.get("post_transform") or "NONE"
    if transform == "PROBIT":
        return "PROBIT, which onnx.reference and ONNX Runtime compute differently"
    if node.op in ("TreeEnsembleRegressor", "LinearRegressor", "SVMRegressor") and transform != "NONE":
        return f"onnx.reference has no post_transform {transform} of a regressor"
    if node.op == "TreeEnsembleClassifier" and transform != "NONE" and len(set(_items(attrs, "class_ids"))) == 1:
        return f"two classes by one score and {transform}, which onnx.reference and ONNX Runtime compute differently"
    if node.op == "LinearClassifier" and len(_items(attrs, "intercepts")) <= 1:
        return "two classes by one row of coefficients, which onnx.reference and ONNX Runtime compute differently"
    if node.op == "SVMClassifier" and len(_items(attrs, "prob_a")) > 1:
        return "probabilities of more than two classes, which onnx.reference and ONNX Runtime compute differently"
    return ""


def _items(attrs: Mapping[str, object], name: str) -> tuple[Any, ...]:
    value = attrs.get(name)
    return value if isinstance(value, tuple) else ()


def amended(node: Node) -> Node:
    """The node as onnx.reference understands it: absent intercepts are zeros (it makes them NaN)."""
    if node.op != "LinearRegressor" or node.attrs.get("intercepts"):
        return node
    targets = node.attrs.get("targets")
    changed = node.copy()
    changed.attrs = {**node.attrs, "intercepts": (0.0,) * (targets if isinstance(targets, int) else 1)}
    return changed


def given(node: Node, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, cast where the specification casts: integers are scaled as floats, floats are encoded as integers."""
    values = list(inputs)
    if values and isinstance(values[0], np.ndarray):
        if node.op in _FLOAT_RESULT:
            values = [value.astype(np.float32) if value.dtype.kind in "iu" else value for value in values]
        elif node.op == "OneHotEncoder" and values[0].dtype.kind == "f":
            values[0] = values[0].astype(np.int64)
    return values


def computed(node: Node, inputs: Sequence[Any]) -> list[Any] | None:
    """What onnx.reference computes otherwise than the specification: MAX divides by the largest, not by the largest
    magnitude. None for everything else."""
    if node.op != "Normalizer" or (node.attrs.get("norm") or "MAX") != "MAX":
        return None
    x = inputs[0]
    largest = x.max(axis=-1, keepdims=True) if x.size else x
    return [np.divide(x, np.where(largest == 0, 1, largest).astype(x.dtype))]


def taken(node: Node, results: Sequence[Any], types: Mapping[str, Type]) -> list[Any]:
    """The results as float32, which the specification names, where the model's input is of another type. (Where it
    says float32, a run of the model in float64 keeps float64.)"""
    declared = types.get(node.inputs[0]) if node.inputs else None
    if node.op not in _FLOAT_RESULT or not isinstance(declared, TensorType) or declared.dtype == "float32":
        return list(results)
    return [np.asarray(each).astype(np.float32) for each in results]


__all__ = ["DOMAIN", "amended", "computed", "given", "problem_with", "taken"]
