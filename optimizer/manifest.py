"""Buckets as several files with a manifest, in place of one file that holds them all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphs import save
from graphs.dims import evaluate
from graphs.ir import Graph
from runtime.buckets import VERSION

from .piecewise import Variant, places

NAME = "manifest.json"


def is_manifest(path: str | Path) -> bool:
    """Is this output a manifest? `manifest.json`, or `NAME.manifest.json`."""
    return Path(path).name == NAME or Path(path).name.endswith(f".{NAME}")


def save_manifest(general: Graph, variants: Sequence[Variant], path: str | Path) -> None:
    """Write the general graph and the variants beside the manifest, and the manifest last."""
    from runtime.fusion import as_functions

    from .result import write_text

    place = Path(path)
    prefix = place.name.removesuffix(NAME)
    rows = [{"file": f"{prefix}{file_name(sizes)}.onnx", "sizes": dict(sizes), "guard": guard(general, sizes)}
            for sizes, _ in variants]
    for row, (_, graph) in zip(rows, variants, strict=True):
        save(as_functions(graph), place.parent / str(row["file"]))
    save(as_functions(general), place.parent / f"{prefix}general.onnx")
    document = {"egraft_buckets": VERSION, "general": f"{prefix}general.onnx", "buckets": rows}
    write_text(place, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def file_name(sizes: Mapping[str, int]) -> str:
    """`batch-1-seq-32`, with what is no letter or digit in a dimension's name as `_`."""
    return "-".join(f"{re.sub('[^A-Za-z0-9]', '_', name)}-{size}" for name, size in sizes.items())


def guard(general: Graph, sizes: Mapping[str, int]) -> list[dict[str, object]]:
    """Every dimension of the inputs that these sizes decide: as in one file."""
    return [{"input": name, "axis": axis, "size": evaluate(dim, sizes)}
            for name, axis, dim in places(general, set(sizes))]
