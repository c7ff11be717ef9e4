"""What the key of a timing record names, in words: for messages."""

from __future__ import annotations

_KINDS = {
    "overhead": "what a call and a launch cost",
    "reference": "the reference work beside which nodes are measured",
    "peak": "what the device reaches at best",
    "sizes": "the sizes at which the target runs the model",
    "kernels": "which nodes of the graph the target joins",
    "neighbourhood": "nodes that the target joins",
    "fusion": "a generated kernel",
    "verdict": "the whole graphs against each other",
}
_SHOWN = 60  # characters of a key: one of whole graphs is mostly a hash


def in_words(key: str) -> str:
    """`what a call and a launch cost (overhead threads=1)`; the key of a node says it by itself."""
    first, _, rest = key.partition(" ")
    kind = _KINDS.get(first) if rest else None
    if kind is None:
        return key
    return f"{kind} ({key if len(key) <= _SHOWN else key[:_SHOWN - 4] + ' ...'})"
