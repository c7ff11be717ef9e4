"""Seeded weights, made when first read: building a graph is fast, and the same name gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from ..constants import Constant
from ..types import TensorType

Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Weights:
    """Makes constants whose values depend on `seed` and their name alone."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fill(self, name: str, shape: tuple[int, ...], how: Fill) -> Constant:
        """A float32 constant that `how(rng, shape)` fills when it is first read."""
        def load() -> np.ndarray:
            return how(np.random.default_rng([self.seed, crc32(name.encode())]), shape).astype(np.float32, copy=False)

        return Constant(TensorType("float32", shape), load)

    def normal(self, name: str, shape: tuple[int, ...], scale: float, mean: float = 0.0) -> Constant:
        """Normally distributed values."""
        def how(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            array = rng.standard_normal(shape, dtype=np.float32)
            array *= np.float32(scale)
            if mean:
                array += np.float32(mean)
            return array

        return self.fill(name, shape, how)

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Constant:
        """Uniformly distributed values."""
        def how(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return np.float32(low) + np.float32(high - low) * rng.random(shape, dtype=np.float32)

        return self.fill(name, shape, how)
