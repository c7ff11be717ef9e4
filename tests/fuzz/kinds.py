"""Kinds of graphs beside the plain one. Each lends recipes that a graph of its kind uses often, beside all others.

`make fuzz` makes a plain graph and one of these kinds for every seed; `--kind` chooses one, at every seed.
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
