"""Types of what the classical models of `ai.onnx.ml` give.

They are opaque nodes (evaluated by onnx.reference, never rewritten); with their types known, what stands around them is
optimized. Only shapes that the operator's specification fixes are stated: of the scores of an SVM without
probabilities, say, only the element type is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import dims
from .constants import Constant
from .dims import DimLike
from .types import TensorType, Type

DOMAIN = "ai.onnx.ml"
# A small change of the input makes the output jump.
DISCRETE = frozenset({"Binarizer", "LabelEncoder", "OneHotEncoder", "LinearClassifier", "SVMClassifier",
                      "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})  # fmt: skip
Attrs = Mapping[str, object]
Shape = tuple[DimLike, ...] | None
_Result = list[Type | None]


def ml_types(op: str, attrs: Attrs, inputs: Sequence[Type | None]) -> list[Type | None]:
    """The types of an operator's outputs as far as they are known, [] for an operator that is not in the table."""
    made, x = _TABLE.get(op), inputs[0] if inputs else None
    return made(attrs, x, inputs) if made is not None and isinstance(x, TensorType) else []


def _typed(dtype: str | None, shape: Shape) -> Type | None:
    return None if dtype is None else TensorType(dtype, shape)


def _rows(x: TensorType, *more: DimLike | None) -> Shape:
    """One row of results for each row of a matrix."""
    if x.shape is None or len(x.shape) != 2 or None in more:
        return None
    return (x.shape[0], *(size for size in more if size is not None))


def _items(attrs: Attrs, *names: str) -> int | None:
    """How many entries the one of some attributes has that is given."""
    counts = [value.size if isinstance(value, Constant) else len(value) for value in map(attrs.get, names)
              if isinstance(value, Constant | tuple) and (isinstance(value, Constant) or value)]
    return counts[0] if len(counts) == 1 else None


def _count(attrs: Attrs, name: str, default: int | None = None) -> int | None:
    value = attrs.get(name, default)
    return value if isinstance(value, int) and value > 0 else None


def _alike(dtype: str | None) -> Callable[[Attrs, TensorType, Sequence[Type | None]], _Result]:
    return lambda attrs, x, inputs: [TensorType(dtype or x.dtype, x.shape)]


def _classifier(scores: bool) -> Callable[[Attrs, TensorType, Sequence[Type | None]], _Result]:
    """Labels and scores. One label alone has two scores, or one: runtimes differ."""
    def types(attrs: Attrs, x: TensorType, inputs: Sequence[Type | None]) -> _Result:
        text = next((name for name in ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
                     if attrs.get(name)), "")
        count = _items(attrs, text) if text else None
        dtype = {"": None, "classlabels_strings": "string"}.get(text, "int64")
        known = scores and count is not None and count >= 2
        return [_typed(dtype, _rows(x)), TensorType("float32", _rows(x, count) if known else None)]

    return types


def _regressor(name: str, default: int | None = None,
               own_dtype: bool = False) -> Callable[[Attrs, TensorType, Sequence[Type | None]], _Result]:
    return lambda attrs, x, inputs: [TensorType(x.dtype if own_dtype else "float32",
                                                _rows(x, _count(attrs, name, default)))]


def _label_encoder(attrs: Attrs, x: TensorType, inputs: Sequence[Type | None]) -> _Result:
    values = attrs.get("values_tensor")
    if isinstance(values, Constant):
        return [TensorType(values.dtype, x.shape)]
    if attrs.get("classes_strings"):  # version 1
        return [TensorType("int64" if x.dtype == "string" else "string", x.shape)]
    dtype = next((dtype for name, dtype in (("values_strings", "string"), ("values_int64s", "int64"),
                                            ("values_floats", "float32")) if attrs.get(name)), None)
    return [_typed(dtype, x.shape)]


def _one_hot(attrs: Attrs, x: TensorType, inputs: Sequence[Type | None]) -> _Result:
    count = _items(attrs, "cats_int64s", "cats_strings")
    return [TensorType("float32", None if x.shape is None or count is None else (*x.shape, count))]


def _extractor(attrs: Attrs, x: TensorType, inputs: Sequence[Type | None]) -> _Result:
    places = inputs[1] if len(inputs) > 1 else None
    known = isinstance(places, TensorType) and places.shape is not None and x.shape is not None and len(x.shape) > 1
    count = dims.product(places.shape) if known else None  # type: ignore[union-attr, arg-type]
    return [TensorType(x.dtype, None if count is None else (*x.shape[:-1], count))]  # type: ignore[index]


def _features(attrs: Attrs, x: TensorType, inputs: Sequence[Type | None]) -> _Result:
    sizes = attrs.get("inputdimensions")
    total = sum(sizes) if isinstance(sizes, tuple) and len(sizes) == len(inputs) else None
    return [TensorType("float32", _rows(x, total))]


_TABLE: Mapping[str, Callable[[Attrs, TensorType, Sequence[Type | None]], _Result]] = {
    "Scaler": _alike("float32"), "Normalizer": _alike("float32"), "Imputer": _alike(None), "Binarizer": _alike(None),
    "LabelEncoder": _label_encoder, "OneHotEncoder": _one_hot, "ArrayFeatureExtractor": _extractor,
    "FeatureVectorizer": _features, "LinearClassifier": _classifier(True), "TreeEnsembleClassifier": _classifier(True),
    "SVMClassifier": _classifier(False), "LinearRegressor": _regressor("targets", 1), "SVMRegressor": _regressor("", 1),
    "TreeEnsembleRegressor": _regressor("n_targets"), "TreeEnsemble": _regressor("n_targets", own_dtype=True),
}  # fmt: skip
