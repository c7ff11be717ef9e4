"""The trace: an ordered list of single rewrites that leads from the input graph to the extracted one.

The log of firings is a graph over e-nodes: a rule that fired leads from the e-node it matched to the e-node it made.
Starting at the input graph, the outputs first, each value is led to its chosen e-node along a shortest path of
firings; each edge is one step, a patch on the graph as it stands. What no path explains is one region step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from graphs.ir import Graph, Node

from . import trace_rest as rest
from .saturated import ENode, Saturated
from .saturation import COMPUTED, Firing
from .selection import Selection, order_of
from .steps import Patch, Step, replay, same_graph, texts
from .trace_state import State
from .values import is_reproducible

__all__ = ["Step", "rebuild", "replay", "same_graph"]

PASSES = 4
DEPTH = 24


@dataclass(frozen=True, slots=True)
class Edge:
    """One root of a firing: from the matched e-node to the made one. `handed`: the right side is only a variable.
    `back`: the reverse of such an edge, where a value becomes what reads a copy of it (x becomes x * 1)."""

    firing: Firing
    source: ENode
    target: ENode
    reverse: bool
    handed: bool
    back: bool = False


def rebuild(graph: Graph, saturated: Saturated, selection: Selection, result_graph: Graph) -> list[Step]:
    """Steps whose replay on `graph` gives a graph equal to `result_graph` (up to names of inner values)."""
    return Tracer(graph, saturated, selection).run(result_graph)


class Tracer:
    """Builds one trace."""

    def __init__(self, graph: Graph, saturated: Saturated, selection: Selection) -> None:
        self.graph, self.saturated, self.selection = graph, saturated, selection
        self.state = State(graph, saturated)
        self.steps: list[Step] = []
        self.edges: dict[int, list[Edge]] = {}
        self.back: dict[int, list[Edge]] = {}  # by class
        self.turning = False  # values that no edge leads from may go back along one of those
        self.blocked: set[tuple[int, int]] = set()
        self.under_way: set[tuple[int, int]] = set()  # e-nodes of values that are being led, with their targets
        of_label = saturated.of_label
        for firing in (*saturated.firings, *saturated.computed):
            built = {of_label[label].index for label in firing.built}
            for root, made in firing.roots:
                source, target = of_label[root], of_label[made]
                handed = target.index not in built and target.kind != "leaf"
                if source is not target:
                    self.edges.setdefault(source.index, []).append(Edge(firing, source, target, False, handed))
                    if handed:
                        self.back.setdefault(target.cls, []).append(Edge(firing, target, source, True, False, True))
                    else:
                        self.edges.setdefault(target.index, []).append(Edge(firing, target, source, True, False))

    def run(self, result: Graph) -> list[Step]:
        """All steps."""
        order = order_of(self.selection.choice, self.saturated.outputs)
        self._merge(order, equal_only=True)  # the rest of what is equal may well be dead in the end
        self._passes(order)
        self.turning = True
        self._passes(order)
        rest.known_shapes(self)
        rest.spelling(self)
        rest.output_names(self, result)
        rest.region(self, result)
        for index, step in enumerate(self.steps):
            step.index = index
        return self.steps

    def _passes(self, order: list[int]) -> None:
        for _ in range(PASSES):
            before = len(self.steps)
            for cls in reversed(order):
                for value in self._values(cls):
                    if self.state.is_live(value) and self.state.enode.get(value) is not self.selection.choice[cls]:
                        self._lead(value, self.selection.choice[cls], 0)
            self._merge(order)
            if len(self.steps) == before:
                break

    def _values(self, cls: int) -> list[str]:
        """Live computed values of a class."""
        return [name for name in self.state.values.get(cls, {}) if name in self.state.producer]

    # Equal values

    def _merge(self, order: list[int], equal_only: bool = False) -> None:
        """One value for each class: equal nodes become one, the others are led to it along rules."""
        for cls in order:
            values = self._values(cls)
            fixed = [name for name in self.state.values.get(cls, {}) if name not in self.state.producer]
            wanted = self.selection.choice[cls]
            if len(values) + len(fixed) < 2 or not values:
                continue
            main = self._main(cls, values, fixed, wanted)
            for value in values:
                if value == main or not self.state.is_live(value) or not self.state.is_live(main):
                    continue
                if not equal_only or self.state.enode[value] is self.state.enode[main]:
                    self._join(value, main)

    def _main(self, cls: int, values: list[str], fixed: list[str], wanted: ENode) -> str:
        best = [name for name in [*fixed, *values] if self.state.enode[name] is wanted] or [*fixed, *values]
        best = [name for name in best if self.is_spelled_so(name, wanted)] or best
        first = [name for name in self.state.outputs if name in best]
        return first[0] if first else best[0]

    def is_spelled_so(self, value: str, wanted: ENode) -> bool:
        """The node is written as the result will have it: Squeeze and Reshape may be one e-node, a + b and b + a."""
        node = self.state.producer.get(value)
        if node is None or wanted.origin is None:
            return True
        origin, of_label = self.graph.nodes[wanted.origin], self.saturated.of_label
        labels = self.saturated.encoded.labels
        return (node.op, node.attrs, [self.state.enode[name].cls for name in node.inputs if name]) == (
            origin.op, origin.attrs, [of_label[labels[name]].cls for name in origin.inputs if name])

    def _join(self, value: str, main: str) -> None:
        """Lead a value to another one of its class."""
        state = self.state
        if state.enode[value] is not state.enode[main]:
            self._lead(value, state.enode[main], 0)
        if not state.is_live(value) or not state.is_live(main) or state.enode.get(value) is not state.enode[main]:
            return
        if main in state.upstream(value) or self._is_identity_output(value, main):
            return
        before = texts([state.producer[value]])
        where = self.where([value])
        state.begin()
        node, other = state.producer[value], state.producer.get(main)
        if other is not None and len(node.outputs) > 1 and state.whole[id(node)] is state.whole[id(other)]:
            for index in range(len(node.outputs)):  # all outputs at once: each side would win for some of them
                if node.outputs[index] and other.outputs[index]:
                    state.redirect(node.outputs[index], other.outputs[index])
        else:
            state.redirect(value, main)
        meaning = "Equal nodes on equal inputs are one node."
        self.emit("equal-nodes", "exact", meaning, where, before, [f"{value} -> {main}"], state.close())

    def _is_identity_output(self, value: str, main: str) -> bool:
        """An output that must stay an Identity of a value whose name must stay."""
        node = self.state.producer[value]
        held = main not in self.state.producer or main in self.state.outputs
        return value in self.state.outputs and held and node.op == "Identity" and node.inputs == (main,)

    # Paths

    def _lead(self, value: str, target: ENode, depth: int) -> bool:
        """Rewrite a value along firings until it is the target e-node; True if it is."""
        present = self.state.enode.get(value)
        task = -1 if present is None else present.index, target.index
        if task in self.under_way:  # to do this needs it to be done: every level would try all of its edges again
            return False
        self.under_way.add(task)
        try:
            return self._led(value, target, depth)
        finally:
            self.under_way.discard(task)

    def _led(self, value: str, target: ENode, depth: int) -> bool:
        state, around = self.state, self.turning and depth == 0
        plan: list[tuple[Edge, str]] = []  # of a way around the rest
        for _ in range(DEPTH):
            present = state.enode.get(value)
            if present is target:
                return True
            if present is None or depth > DEPTH or not state.is_live(value):
                return False
            path = plan if plan and plan[0][0].source is present else self._path(value, present, target)
            if not path and rest.constant_form(self, value, target):
                return True
            if not path and around:  # once, and not on the way of another value: the next step may lead back
                path, around = self._around(value, present, target), False
                plan = path
            if not path:
                return False
            edge, other = path[0]
            after = self._apply(value, edge, other, depth)
            plan = plan[1:] if after is not None else []
            if after is None:
                self.blocked.add((id(edge.firing), edge.target.index))
                continue
            value = after
        return False

    def _around(self, value: str, present: ENode, target: ENode) -> list[tuple[Edge, str]]:
        """Shortest path that begins with a rule read backwards whose right side is only a variable."""
        node, found = self.state.producer.get(value), list[tuple[Edge, str]]()
        if node is None or self.state.whole[id(node)].kind != "op" or any(True for _ in node.graphs):
            return []
        for edge in self.back.get(present.cls, ()):
            if (id(edge.firing), edge.target.index) in self.blocked:
                continue
            further = self._path(value, edge.target, target, present)
            if further and not 0 < len(found) <= len(further) + 1:
                found = [(replace(edge, source=present), ""), *further]
        return found

    def _path(self, value: str, start: ENode, target: ENode, copied: ENode | None = None) -> list[tuple[Edge, str]]:
        """Shortest list of edges, each with the value that a handed-through variable stands for ('' if none).
        `copied`: no rule hands another value through, or matched something below the value that is of its class, except
        for this e-node, which a copy of it is."""
        came: dict[int, tuple[int, Edge, str] | None] = {start.index: None}
        queue = deque([start.index])
        others: list[str] | None = None
        while queue and target.index not in came:
            at = queue.popleft()
            for edge in self.edges.get(at, ()):
                if (id(edge.firing), edge.target.index) in self.blocked or (
                        copied is not None and (edge.handed or self._is_looped(edge, copied))):
                    continue
                if not edge.handed:
                    if edge.target.index not in came:
                        came[edge.target.index] = (at, edge, "")
                        queue.append(edge.target.index)
                    continue
                others = self._others(value) if others is None else others
                ends = [(self.state.enode[other].index, other) for other in others]
                for reached, other in [*ends, (edge.target.index, "")]:
                    if reached not in came:
                        came[reached] = (at, edge, other)
                        queue.append(reached)
        if target.index not in came:
            return []
        path: list[tuple[Edge, str]] = []
        back = came[target.index]
        while back is not None:
            path.append((back[1], back[2]))
            back = came[back[0]]
        return path[::-1]

    def _is_looped(self, edge: Edge, copied: ENode) -> bool:
        """Below its root, the rule matched another e-node of the class of the root than the copied one."""
        matched = self._sides(edge)[0].get(edge.source.cls, ())
        return any(enode not in (edge.source, copied) and enode.kind != "leaf" for enode in matched)

    def _others(self, value: str) -> list[str]:
        """Other values of the same class that do not need this one."""
        state = self.state
        later = state.upstream(value)
        return [name for name in state.values[state.enode[value].cls] if name not in later]

    # One step

    def _apply(self, value: str, edge: Edge, other: str, depth: int) -> str | None:
        """Apply one edge at a value; the value that stands for it afterwards, None where that cannot be."""
        state, firing = self.state, edge.firing
        matched, built = self._sides(edge)
        pairs = [(value, edge, other)]
        bound: dict[int, str] = {}
        if not edge.reverse and len(firing.roots) > 1:
            self._ready(edge, depth)
        read = self._prepare(value, edge.source, matched, bound, depth)
        if read is None or state.enode.get(value) is not edge.source:
            return None
        if not edge.reverse and len(firing.roots) > 1:
            pairs += self._siblings(value, edge, bound, read)
        before = texts(self._nodes(read))
        where = self.where(read)
        state.begin()
        if edge.back:
            bound[edge.source.cls] = state.again(state.producer[value])[value]
        made: list[tuple[str, str]] = []
        for root, each, passed in pairs:
            new = self._handed(root, each, passed) if each.handed else ""
            new = new or self.make(each.target, built, bound, state.upstream(root), 0)
            if not new or new == root or new in state.upstream(root):
                if root == value:
                    state.close()
                    return None
                continue
            made.append((root, new))
        after = value
        for root, new in made:
            name = state.redirect(root, new)
            after = name if root == value else after
        patch = state.close()
        name, exactness, meaning = self._rule(firing)
        lines = texts(patch.add) or [f"{old} -> {new}" for old, new in patch.replace.items()]
        self.emit(name, exactness, meaning, where, before, lines, patch, reverse=edge.reverse)
        return after

    def _rule(self, firing: Firing) -> tuple[str, str, str]:
        """Name, exactness and meaning."""
        if firing.rule == COMPUTED:
            alike = all(is_reproducible(self.saturated.tables, label) for pair in firing.roots for label in pair)
            return ("computed-constant", "exact" if alike else "rounding",
                    "What depends on constants alone is this constant, to the bit"
                    + ("." if alike else " where egraft computes it."))
        rule = self.saturated.rule_of(firing)
        return rule.name, rule.exactness, rule.meaning

    def _handed(self, value: str, edge: Edge, other: str) -> str:
        """The value that a right side which is only a variable stands for, '' if none is there."""
        others = self._others(value)
        exact = [name for name in others if self.state.enode[name] is edge.target]
        return other if other in others else exact[0] if exact else others[0] if others else ""

    def _sides(self, edge: Edge) -> tuple[dict[int, list[ENode]], dict[int, ENode]]:
        """E-nodes of the side that is there and of the side that is made, by class."""
        of_label, firing = self.saturated.of_label, edge.firing
        there, made = (*firing.used, *firing.matched), firing.built
        if edge.reverse:
            there, made = made, there
        matched: dict[int, list[ENode]] = {}
        for label in there:
            matched.setdefault(of_label[label].cls, []).append(of_label[label])
        return matched, {of_label[label].cls: of_label[label] for label in made}

    def _prepare(self, value: str, wanted: ENode, matched: dict[int, list[ENode]], bound: dict[int, str], depth: int,
                 above: frozenset[int] = frozenset()) -> list[str] | None:
        """Bring what the rule matched below a value into its matched form; matched values, the root first."""
        state, read = self.state, [value]
        if state.enode.get(value) is not wanted and not self._lead(value, wanted, depth + 1):
            return None
        above |= {wanted.index}
        for position in range(len(state.arguments(value))):
            present = state.arguments(value)  # anew each time: leading one argument may replace another
            argument = present[position] if position < len(present) else ""
            if not argument:
                continue
            cls = state.enode[argument].cls
            inner = [enode for enode in matched.get(cls, ()) if enode.kind != "leaf" and enode.index not in above]
            if inner and cls not in bound and argument in state.producer:
                bound[cls] = argument
                chosen = next((enode for enode in inner if enode is state.enode[argument]), inner[0])
                # Where it cannot be led there, any value of the class will do: all are equal by earlier firings.
                read += self._prepare(argument, chosen, matched, bound, depth + 1, above) or []
            else:
                bound.setdefault(cls, argument)
        return read

    def _ready(self, edge: Edge, depth: int) -> None:
        """Bring other roots of a firing that are wanted as it makes them into the form that it matched: then all are
        replaced in one step, as the rule says, and not one now and another later."""
        for root, made in edge.firing.roots:
            source, target = self.saturated.of_label[root], self.saturated.of_label[made]
            values = self._values(source.cls)
            if source is not edge.source and self.selection.choice.get(source.cls) is target \
                    and not any(self.state.enode[name] in (source, target) for name in values):
                for name in values:
                    if self.state.is_live(name) and self._lead(name, source, depth + 1):
                        break

    def _siblings(self, value: str, edge: Edge, bound: dict[int, str], read: list[str]) -> list[tuple[str, Edge, str]]:
        """Other roots of the same firing that stand in the graph as they were matched."""
        found: list[tuple[str, Edge, str]] = []
        of_label = self.saturated.of_label
        for root, made in edge.firing.roots:
            source, target = of_label[root], of_label[made]
            if source is edge.source or self.selection.choice.get(source.cls) not in (target, None):
                continue
            for name in self._values(source.cls):
                if self.state.enode[name] is source and name != value:
                    found.append((name, Edge(edge.firing, source, target, False, False), ""))
                    for argument in filter(None, self.state.arguments(name)):
                        bound.setdefault(self.state.enode[argument].cls, argument)
                    read.append(name)
        return found

    def make(self, enode: ENode, built: dict[int, ENode], bound: dict[int, str], later: set[str],
              depth: int) -> str:
        """The value of an e-node of the made side, '' where it cannot be made without a cycle."""
        state = self.state
        if enode.kind == "leaf":
            return state.leaf(enode)
        if enode.kind == "opaque" or depth > 4 * DEPTH:
            return ""
        built = {cls: each for cls, each in built.items() if each is not enode}
        if enode.kind == "proj":
            whole = built.get(enode.args[0]) or self._any(enode.args[0])
            outputs = self._outputs(whole, built, bound, later, depth) if whole is not None else None
            return state.output_of(enode, outputs) if outputs else ""
        outputs = self._outputs(enode, built, bound, later, depth)
        return outputs[0] if outputs else ""

    def _outputs(self, enode: ENode, built: dict[int, ENode], bound: dict[int, str], later: set[str],
                 depth: int) -> tuple[str, ...] | None:
        arguments: list[str] = []
        for arg in enode.args:
            if arg < 0:
                arguments.append("")
                continue
            name = self._argument(arg, built, bound, later, depth)
            if not name:
                return None
            arguments.append(name)
        return self.state.node(enode, arguments)

    def _argument(self, cls: int, built: dict[int, ENode], bound: dict[int, str], later: set[str],
                  depth: int) -> str:
        """A value of a class: what the rule bound, what the rule makes, what is there, or made as selected."""
        state = self.state
        name = bound.get(cls, "")
        if name and state.is_live(name) and name not in later:
            return name
        inner = built.get(cls)
        if inner is not None:
            made = self.make(inner, built, bound, later, depth + 1)
            if made:
                return made
        for name in state.values.get(cls, {}):
            if state.is_live(name) and name not in later:
                return name
        chosen = self._any(cls)
        return self.make(chosen, {}, bound, later, depth + 1) if chosen is not None else ""

    def _any(self, cls: int) -> ENode | None:
        choice = self.selection.choice.get(cls) or self.saturated.incumbent.get(cls)
        if choice is None:
            choice = next((each for each in self.saturated.by_class.get(cls, ()) if cls not in each.args), None)
        return choice

    # Writing steps

    def _nodes(self, values: list[str]) -> list[Node]:
        nodes = {id(self.state.producer[value]): self.state.producer[value] for value in reversed(values)
                 if value in self.state.producer}
        return list(nodes.values())

    def where(self, values: list[str]) -> list[str]:
        """Names of the original nodes at a place, or of the values."""
        found: dict[str, None] = {}
        for value in values:
            node = self.state.producer.get(value)
            if node is not None:
                found.update(dict.fromkeys([node.name] if node.name else node.origins or [value]))
        return list(found)

    def emit(self, rule: str, exactness: str, meaning: str, where: list[str], before: list[str], after: list[str],
              patch: Patch, reverse: bool = False, region: bool = False, involved: list[str] | None = None) -> None:
        self.steps.append(Step(len(self.steps), rule, exactness, meaning, where, before, after, patch, region, reverse,
                               involved or [], self.graph.opset, dict(self.graph.opsets)))
