"""Graphs with symbolic dimensions made constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphs.dims import DimLike, substitute
from graphs.errors import EgraftError, InvalidOption
from graphs.inference import infer
from graphs.ir import Graph
from graphs.onnx_io.stated import forget
from graphs.types import TensorType, Type
from runtime.feeds import input_symbols


def fixed(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """A copy whose symbols of these names are sizes, in the types of inputs and wherever types are stated.

    Nodes, names and their order stay. Declared dimensions of outputs that follow from the sizes become constants, too.
    Raises InferenceError where an operator does not accept the sizes.
    """
    result = graph.copy()
    forget(result)
    for each in result.walk():
        each.types = {name: _substituted(type_, sizes) for name, type_ in each.types.items()}
        each.declared = {name: _substituted(type_, sizes) for name, type_ in each.declared.items()}
    infer(result)
    for name in result.outputs:
        known, stated = result.type_of(name), result.declared.get(name)
        if known is not None and known.shape is not None and isinstance(stated, TensorType) and (
                stated.shape is not None and len(stated.shape) == len(known.shape)):
            result.declared[name] = stated.with_shape(tuple(
                proved if isinstance(proved, int) else said for proved, said in zip(known.shape, stated.shape)))
    return result


def _substituted(type_: Type, sizes: Mapping[str, int]) -> Type:
    if not isinstance(type_, TensorType) or type_.shape is None or type_.is_static:
        return type_
    dims: dict[str, DimLike] = dict(sizes)
    shape = [substitute(dim, dims) for dim in type_.shape]
    # Sizes that do not broadcast: inference finds the node, and says so.
    return type_.with_shape(None if None in shape else tuple(dim for dim in shape if dim is not None))


def fixed_as_asked(graph: Graph, sizes: Mapping[str, int], option: str) -> Graph:
    """`fixed` for what a user asked for with `option`. Raises InvalidOption for sizes that the model does not take."""
    try:
        return fixed(graph, sizes)
    except EgraftError as error:
        text = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise InvalidOption(f"{option} {text}", f"the model does not take this size: {error.where}: {error.found}",
                            "give a size that it runs at") from None


def check_names(graph: Graph, names: Sequence[str], option: str) -> None:
    """Raise InvalidOption for a name that no input has as a symbolic dimension."""
    known = input_symbols(graph)
    for name in names:
        if name not in known:
            raise InvalidOption(f"{option} {name}", f"the model's inputs have no dimension {name!r}",
                                f"known: {', '.join(known) or 'none: all sizes are fixed'}")
