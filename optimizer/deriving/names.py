"""Which values of a model are meant: the loss, what to differentiate by, what the loss depends on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from graphs.builder import Builder
from graphs.dtypes import is_float
from graphs.errors import InvalidOption
from graphs.ir import Graph
from graphs.types import TensorType
from runtime.gradients.rows import STOPS, table
from runtime.gradients.site import float_dtype
from runtime.gradients.tape import values
from runtime.training import add_loss
from runtime.training.losses import LOSSES
from runtime.training.step import trainable

from .options import Deriving


def with_loss(graph: Graph, options: Deriving) -> tuple[Graph, str]:
    """The graph with the loss, and the loss's name. Raises InvalidOption."""
    known = values(Builder.continuing(graph.copy()))
    if options.loss in known:
        if options.output or options.labels:
            raise InvalidOption("--output" if options.output else "--labels", f"{options.loss!r} is a value of the "
                                "model", f"it belongs to --loss {' or '.join(LOSSES)}")
        _check_scalar(graph, options.loss)
        return graph, options.loss
    if options.loss not in LOSSES:
        found = "no loss is given" if not options.loss else "neither a loss nor a value of the model"
        close = difflib.get_close_matches(options.loss, [*LOSSES, *graph.outputs], 1)
        raise InvalidOption(f"--loss {options.loss}".strip(), found, f"did you mean {close[0]}?" if close else
                            f"give {', '.join(LOSSES)}, or a value of one element; outputs: "
                            f"{', '.join(graph.outputs)}")
    return _with_added_loss(graph, options, known)


def default_output(graph: Graph) -> str:
    """What a loss is of: the first output that holds floats, else the first."""
    return next((name for name in graph.outputs if _floats(graph, name)), graph.outputs[0])


def _with_added_loss(graph: Graph, options: Deriving, known: set[str]) -> tuple[Graph, str]:
    name = options.output or default_output(graph)
    if name not in known:
        raise InvalidOption(f"--output {name}", "the model has no value of this name",
                            f"its outputs are {', '.join(graph.outputs)}")
    type_ = graph.type_of(name)
    if type_ is None or not is_float(type_.dtype):
        raise InvalidOption(f"--output {name}", f"{name!r} is {type_ or 'no tensor'}: a loss is of floats",
                            f"name another value; outputs: {', '.join(graph.outputs)}")
    if options.labels and options.loss != "softmax-cross-entropy":
        raise InvalidOption("--labels", f"{options.loss} has no labels", "leave it out")
    if name in graph.outputs:
        whole = add_loss(graph, options.loss, name, options.labels)
    else:  # an inner value: an output for as long as the loss is put on it
        open_ = graph.copy()
        open_.outputs.append(name)
        whole = add_loss(open_, options.loss, name, options.labels)
        whole.outputs.remove(name)
    return whole, whole.outputs[-1]


def warn_of(graph: Graph, options: Deriving) -> list[str]:
    """A loss of probabilities that takes logits."""
    name = options.output or default_output(graph)
    made = graph.producers().get(name)
    if options.loss == "softmax-cross-entropy" and made is not None and made.op == "Softmax":
        return [f"{name!r} comes from a Softmax, and softmax-cross-entropy takes what goes into one: "
                f"--output {made.inputs[0]}"]
    return []


def _check_scalar(graph: Graph, name: str) -> None:
    type_ = graph.type_of(name)
    if type_ is None or type_.elements != 1 or not is_float(type_.dtype):
        raise InvalidOption(f"--loss {name}", f"it is {type_ or 'of no known type'}, and a loss is one float",
                            f"name a value of one element, or put a loss on it: --loss mse --output {name}")


def chosen(graph: Graph, wanted: Sequence[str], option: str) -> list[str]:
    """The values that names and patterns mean, each once; a text may hold several, with commas between.

    Patterns mean inputs and initializers only. Raises InvalidOption for what matches nothing or holds no floats.
    """
    b = Builder.continuing(graph.copy())
    known, outer = values(b), [*graph.inputs, *graph.constants]
    found: dict[str, None] = {}
    for item in _split(wanted, known):
        if item in known:
            if float_dtype(b, item) is None:
                raise InvalidOption(f"--{option} {item}", f"it is {graph.type_of(item) or 'no tensor'}",
                                    "only floats have derivatives")
            found[item] = None
            continue
        matches = [name for name in outer if fnmatchcase(name, item) and float_dtype(b, name) is not None]
        if not matches:
            raise _unknown(graph, item, option, known)
        found.update(dict.fromkeys(matches))
    return list(found)


def _split(wanted: Iterable[str], known: set[str]) -> list[str]:
    return [item for text in wanted for item in ([text] if text in known else map(str.strip, text.split(",")))
            if item]


def _unknown(graph: Graph, item: str, option: str, known: set[str]) -> InvalidOption:
    close = difflib.get_close_matches(item, sorted(known), 3)
    floats = [name for name in (*graph.inputs, *graph.constants) if _floats(graph, name)]
    more = f" and {len(floats) - 8} more" if len(floats) > 8 else ""
    fix = f"did you mean {' or '.join(close)}?" if close else (
        f"inputs and initializers that hold floats: {', '.join(floats[:8]) or 'none'}{more}")
    return InvalidOption(f"--{option} {item}", "the model has no value of this name", fix)


def _floats(graph: Graph, name: str) -> bool:
    type_ = graph.type_of(name)
    return isinstance(type_, TensorType) and is_float(type_.dtype)


def parameters(graph: Graph, loss: str, options: Deriving) -> list[str]:
    """What to differentiate by: what `wrt` says, by default the initializers that training moves."""
    if options.wrt:
        return chosen(graph, options.wrt, "wrt")
    found = trainable(graph, loss)
    if not found:
        raise InvalidOption("--wrt", "the loss depends on no initializer of floats", "name inputs or inner values")
    return found


def reached(graph: Graph, tops: Iterable[str]) -> set[str]:
    """The values that a gradient of `tops` flows to: floats, and not through what is piecewise constant."""
    b, found, copy = Builder.continuing(graph.copy()), set(tops), graph.copy()
    copy.sort()
    for node in reversed(copy.nodes):
        if found.isdisjoint(node.outputs) or table().get((node.domain, node.op)) is STOPS:
            continue
        found.update(name for name in node.uses if float_dtype(b, name) is not None)
    return found
