"""A bidirectional LSTM tagger over token ids, as PyTorch exports it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir import Graph
from .exporter import Exporter


@dataclass(frozen=True)
class Sizes:
    """Sizes of the tagger; `hidden` is per direction."""

    vocabulary: int = 20000
    embedding: int = 128
    hidden: int = 256
    tags: int = 17
    opset: int = 17
    seed: int = 0


def tagger(name: str, sizes: Sizes) -> Graph:
    """The tagger: token ids in, tag scores out."""
    net = Exporter(name, sizes.opset, sizes.seed)
    ids = net.builder.input("input_ids", "int64", ["batch", "sequence"])
    hidden = sizes.hidden
    with net.module("embedding"):
        table = net.normal("weight", (sizes.vocabulary, sizes.embedding), 1.0)
        embedded = net("Gather", table, ids, axis=0)
    with net.module("lstm"):
        by_time = net("Transpose", embedded, perm=[1, 0, 2])
        scale = hidden**-0.5
        weights = [net.uniform(key, (2, *shape), -scale, scale) for key, shape in (
            ("weight_ih", (4 * hidden, sizes.embedding)), ("weight_hh", (4 * hidden, hidden)), ("bias", (8 * hidden,)))]
        shape = net("Concat", np.array([2], np.int64), net.size(ids, 0), np.array([hidden], np.int64), axis=0)
        start = net("Expand", np.zeros((2, 1, hidden), np.float32), shape)
        states, _, _ = net.several("LSTM", 3, by_time, *weights, None, start, start,
                                   direction="bidirectional", hidden_size=hidden)
        joined = net("Reshape", net("Transpose", states, perm=[0, 2, 1, 3]), shape=[0, 0, -1])
        features = net("Transpose", joined, perm=[1, 0, 2])
    with net.module("classifier"):
        scores = net.linear(features, 2 * hidden, sizes.tags)
    return net.finish(logits=scores)
