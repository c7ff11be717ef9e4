"""Kinds of graphs beside the plain one. Each lends recipes that a graph of its kind uses often, beside all others.

`make fuzz` makes a plain graph and one of these kinds for every seed; `--kind` chooses one, at every seed.

Found and left (`--kind KIND --seed SEED --count 1`):
* quantized 5: two equal DynamicQuantizeLinear merge. The one that is gone has no partner to be pinned to, so validation
  runs it in float64 in one graph only, and drops a right rewrite.
* plain 102617, 103699: (x + 1 + 1) - 2 is x for an x near 0, where the original loses digits; validation wants the
  result near the original, and drops a right rewrite.
* nested 104229: a Loop that never runs; its empty output gets another rank when the result is optimized again, because
  its body was inferred anew with fewer types. Validation drops that.
Where the reference evaluator cannot run a graph, bits under `exact` that rounding explains are let pass. ONNX Runtime
gives garbage where a Scan's body hands an input through without a node, and ends the process where elements of a Scan
are empty: neither is made.
"""

from __future__ import annotations

import numpy as np

from . import quantized, rare, recurrent, shapes
from .nesting import branching, looping, scanning
from .operators import Recipe

NESTED: dict[str, Recipe] = {"If": branching, "Loop": looping, "Scan": scanning}

KINDS: dict[str, dict[str, Recipe]] = {
    "nested": NESTED,
    "recurrent": recurrent.RECIPES,
    "quantized": quantized.RECIPES,
    "random": rare.RANDOM,
    "sequences": rare.SEQUENCES,
    "functions": rare.FUNCTIONS,
    "shapes": shapes.RECIPES,
    "opsets": {},  # what the plain kind has
    "mixed": {**NESTED, **recurrent.RECIPES, **quantized.RECIPES, **rare.RANDOM, **rare.SEQUENCES, **rare.FUNCTIONS,
              **shapes.RECIPES},
}

OLD, USUAL, NEW = (9, 13), (13, 22), (22, 27)


def kind_of(seed: int) -> str:
    """The kind that a seed stands for where none is asked for."""
    return list(KINDS)[seed % len(KINDS)]


def opset_of(seed: int, kind: str) -> int:
    """Half of the graphs have the opsets of the plain kind, the others older and newer ones."""
    rng = np.random.default_rng((seed, 78))
    choices = (OLD, NEW) if kind == "opsets" else (OLD, USUAL, USUAL, NEW)
    return int(rng.integers(*choices[int(rng.integers(0, len(choices)))]))
