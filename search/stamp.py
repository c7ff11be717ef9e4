"""Steps that were found in one region, done again in an equal one, where each rule is asked anew.

The copy has the same nodes over other weights. Its facts may differ from those that the rules saw, and some rules
put numbers that they computed from weights into the graph. So the rule of each step is fired on the copy, and its
answer is compared with what the step would put there, node by node; numbers are taken from the answer. A step that
cannot be shown to be right like this is not done, and the copy is searched by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from graphs.canonical import complete
from graphs.constants import Constant
from graphs.ir import Graph, Node
from graphs.operators import find, is_pure
from graphs.text import print_node
from graphs.types import TensorType
from rules.declare import Match, Operand, Refusal, Rule
from rules.engine import Replacement, fire
from rules.form import from_form
from rules.matching import Site, match_value, matches
from rules.pattern import Pattern, Variable
from runtime.execute import evaluate
from runtime.reproducible import gives_same_bits

from .encode import facts_of
from .known import Known
from .partition import Region
from .steps import Patch, Rewriter, Step
from .terms import SMALL, attribute_key

STRUCTURAL = frozenset({"equal-nodes", "known-shape", "other-spelling"})  # steps that hold whatever the weights are
ABOVE = 12  # nodes on a path from a root that a step shows, or that are compared
MOST_MEMBERS = 4  # of a group, of which all selections are tried: 60
FORMS = 2  # nodes above those of its pattern that nearly every rule is content with
Resolve = Callable[[str], str]


class Script:
    """The steps of one region, with the values whose nodes each shows as it found them. `source`: the script that this
    one repeats, itself if none; `result`: the region's graph after all steps, of a script that repeats none."""

    def __init__(self, region: Region, steps: list[Step]) -> None:
        self.region, self.steps, self.source = region, steps, self
        self.shown: list[list[str | None]] = []
        rewriter = Rewriter(region.graph)
        for step in steps:
            lines = {print_node(node): node.outputs for node in above(rewriter, step.patch.replace, ABOVE)}
            self.shown.append([next(filter(None, lines.get(line, ())), None) for line in step.before])
            rewriter.apply(step.patch)
        self.result = rewriter.finish()

    def on(self, copy: Region, rules: Mapping[str, Rule]) -> Script | None:
        """The same steps on an equal region; None where one of them is not shown to hold there."""
        names = dict(zip(self.region.values, copy.values, strict=True))
        nodes = dict(zip(self.region.nodes, copy.nodes, strict=True))
        sure = self.region.same_constants(copy)
        rewriter, known = Rewriter(copy.graph), Known(copy.graph)
        done: list[Step] = []
        for step in self.steps:
            for name in made_by(step.patch):
                if name not in names:
                    names[name] = rewriter.names.fresh(name)
            new = renamed(step, lambda name: names.get(name, name), lambda name: nodes.get(name, names.get(name, name)))
            present = rewriter.graph.constants  # the copy's, and those that the rules gave for it in earlier steps
            new.patch.constants = {name: present.get(name, value) for name, value in new.patch.constants.items()}
            there = new.patch.constants.keys() <= present.keys()
            if not sure and not (there and known.shows(new.patch)) and not Proof(new, rewriter).holds(rules):
                return None
            rewriter.apply(new.patch)
            known.take(new.patch)
            done.append(new)
        script = Script.__new__(Script)
        script.region, script.steps, script.source = copy, done, self
        script.shown = [[name and names.get(name, name) for name in each] for each in self.shown]
        return script


def made_by(patch: Patch) -> list[str]:
    """Values that a patch brings."""
    return [*patch.constants, *(name for node in patch.add for name in node.outputs if name)]


def renamed(step: Step, resolve: Resolve, called: Resolve) -> Step:
    """A step over other names of values, where original nodes are `called` otherwise. Its lines `before` are left as
    they are."""
    old = step.patch
    patch = Patch([_renamed_node(node, resolve, called) for node in old.add],
                  {resolve(name): value for name, value in old.constants.items()},
                  {resolve(one): resolve(other) for one, other in old.replace.items()},
                  {resolve(name): type_ for name, type_ in old.types.items()})
    lines = [print_node(node) for node in patch.add] or [f"{one} -> {other}" for one, other in patch.replace.items()]
    return replace(step, patch=patch, after=lines, where=[called(name) for name in step.where])


def _renamed_node(node: Node, resolve: Resolve, called: Resolve) -> Node:
    copy = node.copy()
    copy.rename_uses({name: resolve(name) for name in node.uses})
    copy.outputs = tuple(resolve(name) if name else "" for name in node.outputs)
    copy.name = called(node.name)
    copy.origins = tuple(called(name) for name in node.origins)
    return copy


def above(rewriter: Rewriter, roots: Iterable[str], depth: int) -> list[Node]:
    """Nodes that some values depend on, at most so many on a path."""
    found: dict[int, Node] = {}
    level = [rewriter.uses.makers[name] for name in roots if name in rewriter.uses.makers]
    for _ in range(depth):
        level = [node for node in level if id(node) not in found]
        found.update((id(node), node) for node in level)
        level = [rewriter.uses.makers[name] for node in level for name in node.uses if name in rewriter.uses.makers]
    return list(found.values())


class _Seen(Site):
    """A graph as rules see it in a search: of large constants they know facts, but not the elements."""

    def _operand(self, name: str) -> Operand | None:
        constant = self.graph.constants.get(name)
        if constant is None:
            return super()._operand(name)
        return Operand(self._names[constant], constant.type, True, facts_of(constant),
                       lambda: constant if constant.size <= SMALL else None)


class Proof:
    """Whether one step holds on a graph as it stands. New constants of the patch get the content that the rule gives.
    """

    def __init__(self, step: Step, rewriter: Rewriter) -> None:
        self.step, self.patch, self.rewriter = step, step.patch, rewriter
        graph = rewriter.graph
        self.makers = dict(rewriter.uses.makers) | {name: node for node in step.patch.add for name in node.outputs}
        self.constants = graph.constants | step.patch.constants
        self.types = graph.types | step.patch.types
        self.unknown = {name for name in step.patch.constants if name not in graph.constants}
        self.found: dict[str, Constant] = {}
        self.exact = False  # only constants that every runtime computes to the same bits are worked out

    def holds(self, rules: Mapping[str, Rule]) -> bool:
        """True where the rule, asked here, gives what the step puts there."""
        step, rule = self.step, rules.get(self.step.rule)
        if step.region or (step.rule in STRUCTURAL and self.unknown):
            return False
        if step.rule in STRUCTURAL:
            return all(self._alike(old, new) for old, new in self.patch.replace.items())
        if rule is None:
            return False
        self.exact = all(each.exactness == "exact" for each in rules.values())
        near = max(map(_height, rule.before)) + FORMS
        if self._fires(rule, near):
            return True
        if rule.group:  # the step may replace one member alone, of several that the rule joins
            op, domain = rule.before[0].op, rule.before[0].domain
            return self._fires(rule, near, [name for node in self.rewriter.nodes.values()
                                            if (node.op, node.domain) == (op, domain) for name in node.outputs if name])
        return self._fires(rule, ABOVE)

    def _fires(self, rule: Rule, reach: int, beside: Sequence[str] = ()) -> bool:
        """The rule gives what the step puts there, where it sees so many nodes on a path from its roots, and from
        values `beside` them."""
        step = self.step
        pairs = [(new, old) if step.reverse else (old, new) for old, new in self.patch.replace.items()]
        site = _Seen(self._neighbourhood([*(root for root, _ in pairs), *beside], reach))
        for match in _matches(site, rule, pairs[0][0], {root for root, _ in pairs}):
            members = match.members if rule.group else (match,)
            roots = [str(root.key) for member in members for root in member.roots]
            if not {root for root, _ in pairs} <= set(roots):
                continue
            try:
                answer = fire(rule, match)
            except Exception:  # a defect of the rule, which the search of the copy will name
                return False
            if isinstance(answer, Refusal):
                continue
            given = dict(zip(roots, answer, strict=True))
            self.found = {}
            if all(self._is(given[root], wanted) for root, wanted in pairs) and (
                    step.reverse or self.unknown <= self.found.keys()):
                self.patch.constants.update(self.found)
                return True
        return False

    def _neighbourhood(self, roots: list[str], reach: int) -> Graph:
        """What the rule may look at, as a graph; small constants that are still computed are worked out."""
        nodes: dict[int, Node] = {}
        level = [self.makers[root] for root in roots if root in self.makers]
        for _ in range(reach):
            level = [node for node in level if id(node) not in nodes]
            nodes.update((id(node), node) for node in level)
            level = [self.makers[name] for node in level for name in node.uses if name in self.makers]
        graph = Graph("neighbourhood", opsets=dict(self.rewriter.graph.opsets))
        place = {key: position for position, key in enumerate(self.rewriter.nodes)}  # as the search numbered them
        graph.nodes = sorted(nodes.values(), key=lambda node: place.get(id(node), len(place)))
        graph.sort()
        names = dict.fromkeys(name for node in graph.nodes for name in (*node.uses, *node.outputs) if name)
        graph.constants = {name: self.constants[name] for name in names if name in self.constants}
        graph.types = {name: self.types[name] for name in names if name in self.types}
        kept: list[Node] = []
        for node in graph.nodes:
            value = _computed(graph, node, self.exact)
            if value is None:
                kept.append(node)
            else:
                graph.constants[node.outputs[0]] = value
        graph.nodes = [node for node in kept if node.outputs]
        return graph

    def _is(self, given: Replacement | None, name: str) -> bool:
        """A value is what the rule gave."""
        if isinstance(given, Operand):
            return self._alike(str(given.key), name)
        if isinstance(given, Constant):
            if name in self.unknown and self.found.get(name, given) == given:
                self.found[name] = given
                return given.type == self.constants[name].type
            return name not in self.unknown and self.constants.get(name) == given
        node = self.makers.get(name)
        if given is None or node is None:
            return False
        spelled = from_form(given.op, given.domain, given.attrs,
                            [None if arg is None else arg.type for arg in given.args], given.types[0])
        record = find(node.op, node.domain)
        if isinstance(spelled, str) or record is None or (node.op, node.domain) != (spelled.op, given.domain):
            return False
        if _attributes(node.attrs) != _attributes(complete(record, spelled.attrs)):
            return False
        if node.outputs.index(name) != given.output:
            return False
        args = list(given.args)
        while args and args[-1] is None:
            args.pop()
        if len(args) != len(node.inputs):
            return False
        orders = [args, args[::-1]] if record.commutative and len(args) == 2 else [args]
        return any(all((arg is None) == (not read) and (arg is None or self._is(arg, read))
                       for arg, read in zip(order, node.inputs, strict=True)) for order in orders)

    def _alike(self, one: str, other: str, depth: int = ABOVE) -> bool:
        """Two values are computed alike."""
        if one == other:
            return True
        if one in self.constants or other in self.constants:
            return one in self.constants and self.constants[one] == self.constants.get(other)
        node, twin = self.makers.get(one), self.makers.get(other)
        if node is None or twin is None or not depth or node.holds_graphs or node.is_opaque or not is_pure(node):
            return False
        if (node.op, node.domain, node.version, _attributes(node.attrs), len(node.inputs)) != (
                twin.op, twin.domain, twin.version, _attributes(twin.attrs), len(twin.inputs)):
            return False
        if node.outputs.index(one) != twin.outputs.index(other):
            return False
        record, twins = find(node.op, node.domain), [twin.inputs]
        if record is not None and record.commutative and len(twin.inputs) == 2:
            twins.append(twin.inputs[::-1])
        return any(all(self._alike(mine, its, depth - 1) for mine, its in zip(node.inputs, inputs, strict=True))
                   for inputs in twins)


def _height(pattern: Pattern | Variable) -> int:
    """Nodes on the longest path of a pattern."""
    return 0 if isinstance(pattern, Variable) else 1 + max(map(_height, pattern.args), default=0)


def _matches(site: Site, rule: Rule, root: str, wanted: set[str]) -> Iterator[Match]:
    """Matches of a rule that may have a root at this value, and all `wanted` ones. Which members a group has, and in
    which order, follows from how the search had numbered its nodes, and what it knew by then: all are tried."""
    view = site.view(root)
    if rule.group:
        whole = list(matches(site, rule))
        yield from whole
        for match in whole:
            for members in _selections(match.members):
                if wanted <= {str(each.key) for member in members for each in member.roots}:
                    yield Match(members[0].bindings, members[0].roots, match.opset, members)
    elif len(rule.before) > 1:
        yield from matches(site, rule)
    elif view is not None:
        for bindings in match_value(site, rule.before[0], root, {}):
            yield Match(bindings, (view,), site.graph.opset)


def _selections(members: Sequence[Match]) -> Iterator[tuple[Match, ...]]:
    """Two or more of the members of a group in any order; of large groups only the orders of all in turn."""
    if len(members) > MOST_MEMBERS:
        yield from ((*members[first:], *members[:first]) for first in range(1, len(members)))
        return
    for count in range(len(members), 1, -1):
        yield from permutations(members, count)


def _attributes(attrs: Mapping[str, object]) -> dict[str, object]:
    return {name: attribute_key(value) for name, value in attrs.items()}


def _computed(graph: Graph, node: Node, exact: bool) -> Constant | None:
    """The value of a node over small constants, as the search knows it; None for any other node."""
    if len(node.outputs) != 1 or not node.inputs or node.is_opaque or node.holds_graphs or not is_pure(node):
        return None
    type_ = graph.types.get(node.outputs[0])
    values = [graph.constants.get(name) if name else None for name in node.inputs]
    if any(value is None or value.size > SMALL for value, name in zip(values, node.inputs, strict=True) if name):
        return None
    if not isinstance(type_, TensorType) or not type_.is_static or not isinstance(type_.elements, int) \
            or type_.elements > SMALL:
        return None
    if exact and not gives_same_bits(node.op, node.domain, node.attrs, [None if value is None else value.type
                                                                        for value in values], [type_]):
        return None
    try:
        with np.errstate(all="ignore"):
            results = evaluate(node, [None if value is None else value.array for value in values])
    except Exception:  # whatever a kernel raises that gets what it does not accept: then the node stays
        return None
    found = Constant.of(np.asarray(results[0]))
    return found if found.type == type_ else None
