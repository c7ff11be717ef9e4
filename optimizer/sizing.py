"""Sizes to measure at: the defaults, unless the model does not run at them (64 positions, a height of 48). Sizes that
were asked for are refused where the model cannot have them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product

import numpy as np

from cost_model.fingerprint import Fingerprint
from cost_model.signature import graph_digest
from cost_model.sizes import default_measure_sizes, sizes_of_feeds
from cost_model.targets import Target, Unsupported
from cost_model.targets.base import Feeds
from cost_model.timings import Timings
from graphs.errors import EgraftError, InvalidOption
from graphs.ir import Graph
from runtime.feeds import draw, input_symbols, size_candidates

from .fixing import fixed_as_asked
from .report import constant_bytes, sizes_text

CHECKED_BYTES = 64 << 20  # constants of a model that is tried out beforehand; larger ones only when measuring failed
TRIES = 60
LEAST_SECONDS = 1e-6  # a processor clock may not have moved
LONGER = (256, 576, 1024)  # windows of audio, most of all


def check_asked(graph: Graph, dims: Mapping[str, Sequence[int]]) -> None:
    """Raise InvalidOption for a combination of sizes at which an operator of the model does not accept its inputs."""
    for sizes in product(*dims.values()) if dims else ():
        fixed_as_asked(graph, dict(zip(dims, sizes)), "--dim")


def first_sizes(graph: Graph, dims: dict[str, list[int]], feeds: dict[str, np.ndarray] | None, target: Target,
                threads: int, seed: int, timings: Timings | None = None) -> dict[str, int]:
    """The sizes that a run starts with: those of the user's data, else the defaults; small models are tried out, once
    where `timings` remembers what came of it. Raises InvalidOption for sizes in `dims` at which a model that is tried
    out does not run, though it does at others."""
    sizes = default_measure_sizes(graph, dims)  # refuses names that no input has
    if feeds is not None:
        return sizes_of_feeds(graph, feeds)
    key = f"sizes {graph_digest(graph)} wanted={json.dumps([sizes, dims, seed], sort_keys=True)}"
    if target.database is not None and target.place is not None:  # those of the run whose records these are
        return _recalled(target.database, key, *target.place, sizes) or sizes
    if not target.measures or constant_bytes(graph) > CHECKED_BYTES:
        return sizes
    known = None if timings is None else _recalled(timings, key, target.name, target.fingerprint, sizes)
    if known is not None:
        return known
    start = time.process_time()
    attempt = target.trial(graph, threads)
    found = sizes_that_run(graph, sizes, dims, seed, attempt)
    if found is None and dims:
        _refuse(graph, sizes, dims, seed, attempt)
    if found is not None and timings is not None:
        seconds = max(time.process_time() - start, LEAST_SECONDS)
        timings.add(key, target.name, target.fingerprint, "sizes", [seconds], seconds, {"sizes": found})
    return found or sizes


def _refuse(graph: Graph, sizes: dict[str, int], dims: dict[str, list[int]], seed: int,
            attempt: Callable[[Feeds], None]) -> None:
    """Raise InvalidOption if the sizes that were asked for are to blame: without them the model runs."""
    reason = _trouble(graph, sizes, seed, attempt)
    if reason is not None and sizes_that_run(graph, default_measure_sizes(graph), {}, seed, attempt) is not None:
        raise InvalidOption(f"--dim {sizes_text({name: sizes[name] for name in dims})}",
                            f"the model does not run at this size: {reason}", "give a size that it runs at")


def _recalled(timings: Timings, key: str, name: str, device: Fingerprint | str,
              wanted: dict[str, int]) -> dict[str, int] | None:
    """The sizes that an earlier run found; also in a frozen database it is no fault not to know them."""
    if timings.peek(key, name, device) is None:
        return None
    found = timings.get(key, name, device)
    sizes = found.note.get("sizes") if found is not None else None
    fits = isinstance(sizes, dict) and sizes.keys() == wanted.keys() and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes.values())
    return {name: sizes[name] for name in wanted} if fits and isinstance(sizes, dict) else None


def sizes_that_run(graph: Graph, wanted: dict[str, int], dims: dict[str, list[int]], seed: int,
                   attempt: Callable[[Feeds], None]) -> dict[str, int] | None:
    """`wanted` if the target runs the graph at these sizes, else the first others that do, None if there are none.

    Sizes that the user asked for stay. `attempt` runs the graph, or raises Unsupported (`Target.trial`).
    """
    asked = {name: sizes[0] for name, sizes in dims.items()}
    free = [name for name in input_symbols(graph) if name not in asked]
    candidates = _candidates(graph, wanted, asked, free) if free else iter([wanted])
    return next((sizes for sizes in islice(candidates, TRIES) if _runs(graph, sizes, seed, attempt)), None)


def _candidates(graph: Graph, wanted: dict[str, int], asked: dict[str, int],
                free: list[str]) -> Iterator[dict[str, int]]:
    """The wanted sizes; the same with the larger ones smaller, or larger; one long dimension and all others 1, which is
    how most models are used; what validation would try."""
    yield wanted
    largest = max(wanted[name] for name in free)
    for size in (64, 32, 48, 16, 8):
        if size < largest:
            yield {**wanted, **{name: min(size, wanted[name]) for name in free}}
    long = [name for name in free if wanted[name] > 1]
    for size in LONGER:
        yield {**wanted, **{name: max(size, wanted[name]) for name in long}}
    if len(free) > 1:
        for size in LONGER:
            yield from ({**wanted, **dict.fromkeys(free, 1), name: size} for name in long)
    for name in free:  # one size that is fixed in truth: the height of a line of text
        if wanted[name] > 16:
            yield from ({**wanted, name: size} for size in (48, 32, 64))
    found = ({**wanted, **sizes} for sizes in size_candidates(graph, asked))
    yield from (sizes for sizes in found if min(sizes.values()) > 0)  # nothing is measured on empty arrays


def _runs(graph: Graph, sizes: dict[str, int], seed: int, attempt: Callable[[Feeds], None]) -> bool:
    """Does the target run the graph at these sizes?"""
    return _trouble(graph, sizes, seed, attempt) is None


def _trouble(graph: Graph, sizes: dict[str, int], seed: int, attempt: Callable[[Feeds], None]) -> str | None:
    """Why the target does not run the graph at these sizes, None where it does."""
    try:
        attempt(draw(graph, seed, sizes))
    except Unsupported as error:
        return str(error)
    except EgraftError as error:
        return f"{error.where}: {error.found}"
    return None
