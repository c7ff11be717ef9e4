"""How often Python looks for garbage in cycles while a large graph is in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS_A_NODE = 64


@contextmanager
def rare_collections(nodes: int) -> Iterator[None]:
    """Inside, Python looks for garbage only after so many new objects as suit a graph of that many nodes.

    Each look goes over many of the objects that are alive. By default there is one after 700 new objects, which a pass
    over 200 nodes makes: a fifth of the time of a run over 7,500 nodes was that. Graphs of few nodes, whose weights
    may be large, keep the default, so that no garbage with arrays in it waits long.
    """
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], OBJECTS_A_NODE * nodes) if usual[0] else 0, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
