"""Gradient rows of the control flow family.

If: each branch computes the cotangents of what it captures. Loop and Scan: the states before each round are kept as
one more output of the node; a Scan that runs backwards over them carries the cotangents of the states and adds up
those of captured values. Forward mode carries tangents beside the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphs.builder import Builder, Value
from graphs.canonical import version_at
from graphs.inference import infer_node
from graphs.ir import Graph, Node

from ._bodies import check_repeatable, finished, inline, input_like
from .forward import forward
from .reverse import accumulate, dependents, reverse
from .rows import Grads, Row
from .shapes import zeros_like
from .site import Site, float_dtype

_BRANCHES = ("then_branch", "else_branch")


def _captured(s: Site) -> list[int]:
    """Positions of captured values among the operands; one may be an input too."""
    names = dict.fromkeys(name for graph in s.node.graphs for name in graph.captured())
    return [s.names.index(name) for name in names]


def _if(s: Site, grads: Grads) -> Grads:
    check_repeatable(s)
    wanted = [index for index in _captured(s) if s.wants(index)]
    branches = {}
    for attribute in _BRANCHES:
        b = s.b.nested(attribute, lenient=True)
        outputs = inline(b, s.attrs[attribute], [])  # type: ignore[arg-type]
        adjoints: dict[str, Value] = {}
        for value, g in zip(outputs, grads):
            if g is not None:
                accumulate(adjoints, value.name, Value(b, g.name))
        reverse(b, list(b.unfinished.nodes), adjoints, [s.names[index] for index in wanted])
        branches[attribute] = finished(b, [adjoints.get(s.names[index]) or zeros_like(b, Value(b, s.names[index]))
                                           for index in wanted])
    found = _values(s.b.op("If", s[0], outputs=len(wanted), **branches))  # type: ignore[arg-type]
    placed = dict(zip(wanted, found))
    return [placed.get(index) for index in range(len(s.names))]


def _if_forward(s: Site, tangents: Grads) -> Grads:
    check_repeatable(s)
    floats = [index for index, name in enumerate(s.node.outputs) if name and float_dtype(s.b, name) is not None]
    branches = {}
    for attribute in _BRANCHES:
        b = s.b.nested(attribute, lenient=True)
        outputs = inline(b, s.attrs[attribute], [])  # type: ignore[arg-type]
        moving = {s.names[index]: Value(b, t.name) for index, t in enumerate(tangents) if t is not None}
        forward(b, list(b.unfinished.nodes), moving)
        branches[attribute] = finished(b, [moving.get(outputs[index].name) or zeros_like(b, outputs[index])
                                           for index in floats])
    placed = dict(zip(floats, _values(s.b.op("If", s[0], outputs=len(floats), **branches))))  # type: ignore[arg-type]
    return [placed.get(index) for index in range(len(s.node.outputs))]


def _values(made: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return (made,) if isinstance(made, Value) else made


@dataclass
class _Rounds:
    """Loop and Scan seen as one: states, scanned inputs and scan outputs, with where they stand.

    `lead` inputs of a Loop's node and body come before the states (how often, whether), and one output of its body.
    """

    s: Site

    def __post_init__(self) -> None:
        s, node = self.s, self.s.node
        self.body: Graph = s.attrs["body"]  # type: ignore[assignment]
        loop = node.op == "Loop"
        self.lead, self.lead_out = (2, 1) if loop else (0, 0)
        self.scanned = 0 if loop else int(s.attrs["num_scan_inputs"])  # type: ignore[call-overload]
        self.states = len(self.body.inputs) - self.lead - self.scanned
        self.scans = len(self.body.outputs) - self.lead_out - self.states
        self.in_axes = self._each("scan_input_axes", self.scanned)
        self.in_backward = self._each("scan_input_directions", self.scanned)
        self.out_axes = self._each("scan_output_axes", self.scans)
        self.out_backward = self._each("scan_output_directions", self.scans)

    def _each(self, name: str, count: int) -> list[int]:
        given = self.s.attrs.get(name)
        return [int(each) for each in given] if given else [0] * count  # type: ignore[attr-defined]

    def begin(self, name: str) -> tuple[Builder, list[Value], list[Value]]:
        """A builder that holds the nodes of the body once more, the values of the body's inputs, and of its outputs."""
        b, body = self.s.b.nested(name, lenient=True), self.body
        given = [input_like(b, self.s, body.type_of(each), each) for each in body.inputs]
        if self.lead:
            for value in given[:2]:
                b.unfinished.declared[value.name] = b.unfinished.types[value.name]  # a scalar, or a vector of one
            going = body.type_of(body.inputs[1])  # it is true whenever a round begins
            given[1] = b.constant(np.ones((1,) if going is not None and going.rank else (), np.bool_))
        return b, given, inline(b, body, given)

    def moving(self, b: Builder, nodes: Sequence[Node], given: Sequence[Value], outputs: Sequence[Value],
               moved: Sequence[bool]) -> tuple[list[int], set[str]]:
        """The states that depend on operands that move (`moved`), in some round, and all values that do."""
        names = self.s.names
        free = {names[index] for index in _captured(self.s) if moved[index]}
        free |= {given[index].name for index in range(self.lead + self.states, len(given)) if moved[index]}
        states = {index for index in range(self.states) if moved[self.lead + index]}
        while True:
            found = dependents(b, nodes, [*free, *(given[self.lead + index].name for index in states)])
            more = {index for index in range(self.states) if outputs[self.lead_out + index].name in found} | states
            if more == states:
                return sorted(states), found
            states = more

    def keep(self, positions: Sequence[int]) -> list[Value]:
        """Inputs of the body, of all rounds: further scan outputs of the node, which it gets now if it lacks them."""
        node, body, b = self.s.node, self.body, self.s.b
        first = self.lead_out + self.states
        found: list[int] = []
        for position in positions:
            name = body.inputs[position]
            copies = {each.outputs[0] for each in body.nodes if each.op == "Identity" and each.inputs == (name,)}
            at = next((index for index in range(first, len(body.outputs)) if body.outputs[index] in copies
                       and not self._turned(index - first)), None)
            if at is None:
                at = len(body.outputs)
                copied = b.fresh(f"{name}_before")
                version = version_at("Identity", "", b.scope.opsets[""])
                body.nodes.append(Node("Identity", (name,), (copied,), version=version))
                body.outputs.append(copied)
                if name in body.types:
                    body.types[copied] = body.types[name]
                node.outputs = (*node.outputs, *[""] * (at - self.lead_out - len(node.outputs)), b.fresh(copied))
                for attribute in ("scan_output_axes", "scan_output_directions"):
                    if node.attrs.get(attribute):
                        node.attrs[attribute] = (*node.attrs[attribute], 0)  # type: ignore[misc]
            found.append(at - self.lead_out)
        looked_up = [b.scope.lookup(name) if name else (None, None, None) for name in node.inputs]
        types = infer_node(node, [each[0] for each in looked_up], [each[1] for each in looked_up],
                           [each[2] for each in looked_up], b.scope.path + next(filter(None, node.outputs))).types
        for name, type_ in zip(node.outputs, types):
            if name and type_ is not None:
                b.scope.types.setdefault(name, type_)
        return [self.s.output(index) for index in found]

    def _turned(self, scan: int) -> bool:
        return scan < self.scans and bool(self.out_axes[scan] or self.out_backward[scan])


def _backward(s: Site, grads: Grads) -> Grads:
    """One Scan, backwards: carries cotangents of states, adds up those of captured values, emits those of scanned."""
    check_repeatable(s)
    r, outer = _Rounds(s), s.b
    b, given, outputs = r.begin("backward")
    nodes = list(b.unfinished.nodes)
    moved = [s.wants(index) for index in range(len(s.names))]
    active, depending = r.moving(b, nodes, given, outputs, moved)
    emitted = [index for index in range(r.lead + r.states, len(given)) if moved[index]]
    added = [index for index in _captured(s) if moved[index]]
    adjoints: dict[str, Value] = {}
    carried = {}
    for index in active:
        carried[index] = input_like(b, s, r.body.type_of(r.body.inputs[r.lead + index]), "cotangent")
        accumulate(adjoints, outputs[r.lead_out + index].name, carried[index])
    sums = [input_like(b, s, outer.scope.lookup(s.names[index])[0], "sum") for index in added]
    arriving = [index for index in range(r.scans) if index + r.states < len(grads)
                and grads[index + r.states] is not None
                and outputs[r.lead_out + r.states + index].name in depending]
    pieces = {}
    for index in arriving:
        value = outputs[r.lead_out + r.states + index]
        pieces[index] = input_like(b, s, value.type, "cotangent")
        accumulate(adjoints, value.name, pieces[index])
    sources = [given[r.lead + index] for index in active] + [Value(b, s.names[index]) for index in added]
    sources += [given[index] for index in emitted]
    if not sources:
        return []
    reverse(b, nodes, adjoints, [value.name for value in sources])
    parts = [_of(b, adjoints, value) for value in sources]
    count = len(active) + len(added)
    for position, total in enumerate(sums, len(active)):
        parts[position] = total + parts[position]
    body = finished(b, parts)
    # The inputs, in order: what is carried, then what is scanned.
    used = {name for node in body.nodes for name in node.uses}
    kept = [index for index in range(len(given)) if index < r.lead + r.states and given[index].name in used]
    if not kept and not arriving and not r.scanned:
        kept = [0]  # something must say how many rounds there were
    scanned = list(range(r.lead + r.states, len(given)))
    body.inputs = [*(carried[index].name for index in active), *(value.name for value in sums),
                   *(given[index].name for index in kept), *(given[index].name for index in scanned),
                   *(pieces[index].name for index in arriving)]
    starts = [_or_zeros(outer, grads[index] if index < len(grads) else None, s.output(index)) for index in active]
    starts += [zeros_like(outer, s[index]) for index in added]
    seen = [*r.keep(kept), *(s[index] for index in scanned), *(grads[r.states + index] for index in arriving)]
    places = [index - r.lead - r.states for index in emitted]
    made = outer.op(
        "Scan", *starts, *seen, outputs=count + len(emitted), body=body, num_scan_inputs=len(seen),
        scan_input_axes=[*[0] * len(kept), *r.in_axes, *(r.out_axes[index] for index in arriving)],
        scan_input_directions=[*[1] * len(kept), *(1 - each for each in r.in_backward),
                               *(1 - r.out_backward[index] for index in arriving)],
        scan_output_axes=[r.in_axes[place] for place in places],
        scan_output_directions=[1 - r.in_backward[place] for place in places])
    placed: dict[int, Value] = {}
    for index, value in zip([*(r.lead + index for index in active), *added, *emitted], _values(made)):
        placed[index] = placed[index] + value if index in placed else value
    return [placed.get(index) for index in range(len(s.names))]


def _of(b: Builder, adjoints: dict[str, Value], value: Value) -> Value:
    return adjoints.get(value.name) or zeros_like(b, value)


def _or_zeros(b: Builder, g: Value | None, like: Value) -> Value:
    return zeros_like(b, like) if g is None else g


def _forward(s: Site, tangents: Grads) -> Grads:
    """The same loop with tangents beside the states and the scanned inputs."""
    check_repeatable(s)
    r, outer = _Rounds(s), s.b
    b, given, outputs = r.begin("forward")
    nodes = list(b.unfinished.nodes)
    active, _ = r.moving(b, nodes, given, outputs, [t is not None for t in tangents])
    moving = {s.names[index]: Value(b, t.name) for index in _captured(s) if (t := tangents[index]) is not None}
    scanned = range(r.lead + r.states, len(given))
    sliding = [index for index in scanned if tangents[index] is not None]
    beside = {index: input_like(b, s, given[index].type, "tangent")
              for index in [*(r.lead + each for each in active), *sliding]}
    moving.update({given[index].name: value for index, value in beside.items()})
    forward(b, nodes, moving)
    moved = [_of(b, moving, outputs[r.lead_out + index]) for index in active]
    floats = [index for index in range(r.scans) if outputs[r.lead_out + r.states + index].name in moving]
    if not active and not floats:
        return []  # what moves reaches no output
    stacked = [moving[outputs[r.lead_out + r.states + index].name] for index in floats]
    body = finished(b, [*outputs[: r.lead_out + r.states], *moved, *stacked])
    body.inputs = [*body.inputs[: r.lead], *(given[r.lead + index].name for index in range(r.states)),
                   *(beside[r.lead + index].name for index in active),
                   *(given[index].name for index in scanned), *(beside[index].name for index in sliding)]
    starts = [s.get(index) if index < len(s.node.inputs) else None for index in range(r.lead + r.states)]
    starts += [_or_zeros(outer, tangents[r.lead + index], s[r.lead + index]) for index in active]
    attrs: dict[str, object] = {"body": body}
    places = [index - r.lead - r.states for index in sliding]
    if not r.lead:
        attrs |= {"num_scan_inputs": len(scanned) + len(sliding),
                  "scan_input_axes": [*r.in_axes, *(r.in_axes[place] for place in places)],
                  "scan_input_directions": [*r.in_backward, *(r.in_backward[place] for place in places)],
                  "scan_output_axes": [r.out_axes[index] for index in floats],
                  "scan_output_directions": [r.out_backward[index] for index in floats]}
    seen = [*(s[index] for index in scanned), *(tangents[index] for index in sliding)]
    made = _values(outer.op(s.node.op, *starts, *seen, outputs=r.states + len(active) + len(floats), **attrs))  # type: ignore[arg-type]
    placed = dict(zip([*active, *(r.states + index for index in floats)], made[r.states:]))
    return [placed.get(index) for index in range(len(s.node.outputs))]


ROWS: dict[str, Row] = {
    "If": Row(_if, _if_forward),
    "Loop": Row(_backward, _forward),
    "Scan": Row(_backward, _forward),
}

ABSENT: dict[str, str] = {}
