"""The search of one graph: saturate, price e-nodes, extract, build, and say what was found but does not pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cost_model.costs import ABSENT, Cost, NodeInput, NodeSpec
from cost_model.signature import small_array
from cost_model.sizes import static_type
from graphs.constants import Constant
from graphs.ir import Graph
from graphs.wording import counted
from search import ENode, Saturated, build, extract, saturate
from search import budget as budgets
from search import trace as search_trace
from search.partition import DOMAIN as REGION
from search.saturation import Firing
from search.saying import Speaker
from search.steps import INLINE_ELEMENTS, Step
from search.tiles import Tile, saved

from . import meanwhile
from .candidates import Candidate, Improved
from .context import Context
from .progress import Clock
from .stepcosts import Total
from .together import learn

# Ties between forms of equal time go to the one with fewer nodes.
TIE_SECONDS = 1e-9
# How far the time of a small node measured alone is uncertain, and up to which predicted time of a whole model
# one more finalist is measured because of that.
NOISE_SHARE, NOISE_SECONDS = 0.15, 3e-7
SMALL_SECONDS = 2e-3
# A model of a few tiny nodes: their times are mostly noise on a busy machine (seen: 6 us instead of 1 us).
TINY_SECONDS, TINY_NOISE_SECONDS = 5e-5, 6e-6
# A rule that makes nodes never chosen is "found, does not pay"; shown are this many.
SHOWN_UNUSED = 30
NOT_CHOSEN = "matched, not chosen"  # beside the reasons of guards
EXACT_ROUNDS = 4
SHOWN_CHARACTERS = 100  # of a constant in a step


class Prices:
    """Seconds of e-nodes on the target, at the sizes of the run."""

    def __init__(self, saturated: Saturated, context: Context) -> None:
        self.saturated = saturated
        self.costs = context.costs
        self.tiles: list[Tile] = []  # what the target runs as one kernel, or a Fused node would
        self._values = _small_constants(saturated)
        self._specs: dict[int, NodeSpec] = {}
        self._signatures: dict[int, str] = {}
        self._known: dict[int, float] = {}
        self._opaque: dict[int, float] = {}

    def forget(self) -> None:
        """More was measured: ask for all prices again."""
        self._known.clear()
        self._opaque.clear()

    def __call__(self, enode: ENode) -> float:
        """Seconds, infinite for what cannot be written or has no kernel (original nodes always can stay)."""
        known = self._known.get(enode.index)
        if known is None:
            known = self._known[enode.index] = self._price(enode)
        return known

    def _price(self, enode: ENode) -> float:
        if enode.kind != "op" or enode.cls in self.saturated.constant:
            return 0.0
        if isinstance(enode.spelling, str):
            return math.inf if enode.origin is None else self._original(enode)
        cost = self.cost(enode)
        if math.isinf(cost.seconds):
            return math.inf if enode.origin is None else TIE_SECONDS
        return cost.seconds + TIE_SECONDS

    def _original(self, enode: ENode) -> float:
        """An original node whose form has no spelling is kept as it was written."""
        assert enode.origin is not None
        cost = self.costs.node_in(self.saturated.graph, self.saturated.graph.nodes[enode.origin])
        return TIE_SECONDS if math.isinf(cost.seconds) else cost.seconds + TIE_SECONDS

    def opaque(self, enode: ENode) -> float:
        """Seconds of a node that the search leaves as it is: control flow, random numbers, unknown operators. None of
        them is a choice, so that extraction takes them for nothing."""
        if enode.kind != "opaque" or enode.domain == REGION or enode.origin is None:
            return 0.0
        known = self._opaque.get(enode.index)
        if known is None:
            graph = self.saturated.graph
            seconds = self.costs.node_in(graph, graph.nodes[enode.origin]).seconds
            known = self._opaque[enode.index] = 0.0 if math.isinf(seconds) else seconds
        return known

    def cost(self, enode: ENode) -> Cost:
        """The node's cost with its source."""
        spec = self.spec(enode)
        return self.costs.cost_of(spec)

    def signature(self, enode: ENode) -> str:
        """The key that the cost is filed under."""
        known = self._signatures.get(enode.index)
        if known is None:
            known = self._signatures[enode.index] = self.costs.signature(self.spec(enode))
        return known

    def spec(self, enode: ENode) -> NodeSpec:
        """What is to be measured for an e-node."""
        known = self._specs.get(enode.index)
        if known is not None:
            return known
        assert enode.spelling is not None and not isinstance(enode.spelling, str)
        inputs = tuple(self._input(enode, position) for position in range(len(enode.args)))
        graph = self.saturated.graph
        spec = NodeSpec(enode.spelling.op, enode.domain, enode.spelling.attrs, inputs, len(enode.outputs),
                        graph.opset, opsets=dict(graph.opsets))
        self._specs[enode.index] = spec
        return spec

    def _input(self, enode: ENode, position: int) -> NodeInput:
        arg = enode.args[position]
        if arg < 0:
            return ABSENT
        value = self._values.get(arg)
        array = None if value is None else small_array(value)
        return NodeInput(enode.inputs[position], enode.constants[position], array)


def _small_constants(saturated: Saturated) -> dict[int, Constant]:
    found: dict[int, Constant] = {}
    for enode in saturated.enodes:
        if enode.leaf is not None and enode.leaf.kind == "constant" and enode.leaf.value is not None:
            found.setdefault(enode.cls, enode.leaf.value)
    return found


class Rewritten:
    """Prices that discourage the input's own nodes by as much as node times are uncertain: where a rewrite may be
    faster, a finalist has it, and measuring the whole graph decides."""

    def __init__(self, prices: Prices, predicted: float) -> None:
        self.prices = prices
        self.margin = TINY_NOISE_SECONDS if predicted < TINY_SECONDS else NOISE_SECONDS

    def __call__(self, enode: ENode) -> float:
        """Seconds, with a margin on original nodes."""
        seconds = self.prices(enode)
        if enode.origin is None or enode.kind != "op":
            return seconds
        return seconds + max(NOISE_SHARE * seconds, self.margin)


def count_nodes(saturated: Saturated) -> Callable[[ENode], float]:
    """The objective `nodes`: one for each node, a little less for cheap ones so that ties are decided."""

    def cost(enode: ENode) -> float:
        if enode.kind not in ("op", "opaque") or enode.cls in saturated.constant:
            return 0.0
        if isinstance(enode.spelling, str) and enode.origin is None:
            return math.inf
        return 1.0

    return cost


def count_bytes(saturated: Saturated, sizes: Mapping[str, int]) -> Callable[[ENode], float]:
    """The objective `memory`: bytes that each node writes, and a little for each node."""

    def cost(enode: ENode) -> float:
        if enode.kind not in ("op", "opaque") or enode.cls in saturated.constant:
            return 0.0
        if isinstance(enode.spelling, str) and enode.origin is None:
            return math.inf
        types = [static_type(type_, sizes) for type_ in enode.outputs]
        return 1e-3 + sum(type_.static_bytes or 0.0 for type_ in types if type_ is not None)

    return cost


def search(graph: Graph, context: Context, clock: Clock, improved: Improved) -> None:
    """Fill `improved` with candidates. Raises SearchFailed where the child process gave nothing."""
    clock.enter("saturate", counted(len(graph.nodes), "node"))
    meanwhile.begin(graph)
    saturated = saturate(graph, context.rules, context.effort.budget, keep=context.options.keep)
    clock.note(stop=saturated.stop, **_plain(saturated.statistics))
    prices = Prices(saturated, context)
    selections = select(saturated, prices, context, clock.enter)
    clock.enter("build")
    for name, selection in selections.items():
        built = build.build_graph(graph, saturated, selection)
        improved.candidates.append(Candidate(name, built, _tracer(graph, saturated, selection, built),
                                             total(selection, prices)))
    tell(improved, saturated, selections, prices, context)


def tell(improved: Improved, saturated: Saturated, selections: Mapping[str, extract.Selection], prices: Prices,
         context: Context) -> None:
    """What a search says besides its candidates."""
    _report_conflicts(saturated, context)
    improved.statistics = {"stop": saturated.stop, **_plain(saturated.statistics)}
    improved.refusals = _refusals(saturated, selections)
    improved.predicted_input = total(extract.incumbent(saturated, prices), prices)
    improved.input_sources = Total(saturated.graph, context.costs).counts
    improved.not_used = _not_used(saturated, selections, prices)


def total(selection: extract.Selection, prices: Prices) -> float:
    """Predicted seconds of a selection: each chosen node once, also those that were no choice, less what the target
    saves by joining nodes. Fused nodes are not there yet."""
    alone = sum(prices.opaque(enode) if enode.kind == "opaque" else prices(enode)
                for enode in selection.choice.values())
    joined = [tile for tile in prices.tiles if not tile.fused]
    return max(0.0, alone - saved(selection.choice, prices.saturated.outputs, joined))


def select(saturated: Saturated, prices: Prices, context: Context, enter: Callable[[str], None],
           alone: bool = True, only: str = "", quick: bool = False) -> dict[str, extract.Selection]:
    """Extract, measure what was chosen but only estimated, extract again; then the diverse finalists. Not `alone`: it
    is a part of a large graph. `only`: the one kind that is wanted, all if empty. `quick`: what is but an alternative
    need not be the very best of its kind."""
    enter("measure")
    best: extract.Selection | None = None
    if context.options.objective == "time":
        for _ in range(context.effort.rounds):  # greedy is enough to find what is worth measuring
            best = extract.greedy(saturated, prices)
            if not _measure_chosen(saturated, best, prices, context):
                break
        # Until all that is chosen was measured: a later run with the same database then chooses the same.
        if not (quick and context.options.stages != "nodes"):
            best = _settled(saturated, prices, context)
        if best is not None and context.options.stages != "nodes":
            given = best
            best = learn(saturated, given, prices.tiles, context,
                         lambda: _settled(saturated, prices, context) or _fastest(saturated, prices, context))
            if quick and best is given:  # nothing is joined, so that greedy's choice is still the only one
                best = _settled(saturated, prices, context)
    enter("extract")
    selections: dict[str, extract.Selection] = {}
    if context.options.objective == "time":
        selections["fastest predicted"] = best or _fastest(saturated, prices, context)
        if context.options.stages != "all" or only == "fastest predicted":
            return selections
        predicted = total(selections["fastest predicted"], prices)
        if alone and predicted < SMALL_SECONDS:  # larger models: too dear to measure
            selections["rewritten"] = extract.exact(saturated, Rewritten(prices, predicted),
                                                    context.effort.extract_seconds, tiles=prices.tiles)
    if context.options.objective == "memory":
        selections["fewest bytes"] = extract.exact(saturated, count_bytes(saturated, context.sizes),
                                                   context.effort.extract_seconds)
        if only == "fewest bytes":
            return selections
    nodes = count_nodes(saturated)
    selections["fewest nodes"] = extract.greedy(saturated, nodes) if quick and selections else \
        extract.exact(saturated, nodes, context.effort.extract_seconds)
    return selections


def _fastest(saturated: Saturated, prices: Prices, context: Context) -> extract.Selection:
    return extract.exact(saturated, prices, context.effort.extract_seconds, tiles=prices.tiles)


def _settled(saturated: Saturated, prices: Prices, context: Context) -> extract.Selection | None:
    """The fastest choice all of whose nodes were measured; None where the rounds for that are used up."""
    for _ in range(EXACT_ROUNDS):
        best = _fastest(saturated, prices, context)
        if not _measure_chosen(saturated, best, prices, context):
            return best
    return None


def _measure_chosen(saturated: Saturated, selection: extract.Selection, prices: Prices, context: Context) -> bool:
    """Measure what a selection and the input hold and what is only estimated; False where there is nothing to do."""
    missing = set(context.costs.missing())
    wanted = {prices.signature(enode) for enode in [*selection.choice.values(), *saturated.incumbent.values()]
              if missing and enode.kind == "op" and enode.cls not in saturated.constant
              and not isinstance(enode.spelling, str)} & missing
    if not wanted or context.costs.measure(wanted).count == 0:
        return False
    prices.forget()
    return True


def _tracer(graph: Graph, saturated: Saturated, selection: extract.Selection, built: Graph) -> Callable[[], list[Step]]:
    return lambda: search_trace.rebuild(graph, saturated, selection, built)


def rows(graph: Graph, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Steps as JSON values, without the weights of the graph that they start from."""
    stored = {constant.digest for constant in graph.constants.values() if constant.size > INLINE_ELEMENTS}
    return [with_constants(step.to_dict(stored)) for step in steps]


def with_constants(row: dict[str, Any]) -> dict[str, Any]:
    """A step with its new constants among the lines that come after."""
    texts = row["patch"]["constants"].items()
    lines = [f"{name} = constant {text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + ' ...'}"
             for name, text in texts]
    return {**row, "after": [*lines, *row["after"]]}


def _refusals(saturated: Saturated, selections: Mapping[str, extract.Selection]) -> dict[str, Any]:
    """Rule -> reason -> how often, and a place by the names of the graph where there is one. That a rule fired and what
    it made was not chosen is a reason, too."""
    names: dict[int, str] = {}
    for value, label in saturated.encoded.labels.items():
        names.setdefault(label, value)
    speaker = Speaker(saturated)

    def place(labels: tuple[int, ...]) -> str:
        return ", ".join(names.get(label) or speaker.place(label) for label in labels)

    found = {rule: {reason: {"count": count, "where": place(each.samples.get(reason, ()))}
                    for reason, count in each.counts.items()}
             for rule, each in saturated.refusals.items() if each.counts}
    for rule, firings in _not_chosen(saturated, selections).items():
        found.setdefault(rule, {})[NOT_CHOSEN] = {"count": len(firings), "where": place(firings[0].matched)}
    return found


def _not_chosen(saturated: Saturated, selections: Mapping[str, extract.Selection]) -> dict[str, list[Firing]]:
    """Firings of which the fastest predicted graph has nothing: none of the nodes made, or still the matched one."""
    best = selections.get("fastest predicted")
    chosen = set() if best is None else {enode.index for enode in best.choice.values()}
    found: dict[str, list[Firing]] = {}
    for firing in saturated.firings if best is not None else ():
        made = firing.built or tuple(root for root, _ in firing.roots)
        there = any(saturated.of_label[label].index in chosen for label in made if label in saturated.of_label)
        if there != bool(firing.built):
            found.setdefault(saturated.rule_of(firing).name, []).append(firing)
    return found


def _plain(statistics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in statistics.items() if name != "matches"}


def _report_conflicts(saturated: Saturated, context: Context) -> None:
    for conflict in saturated.conflicts:
        context.warn(f"rules {', '.join(conflict.rules) or 'unknown'} made values of different type equal and were not "
                     "used: a defect of egraft, please report it")
    for error in saturated.errors:
        context.warn(f"a rule failed and was skipped: {error}")


def _not_used(saturated: Saturated, selections: Mapping[str, extract.Selection],
              prices: Prices) -> list[dict[str, Any]]:
    """Rules that fired without any of their new nodes being chosen for speed: found, does not pay here."""
    best = selections.get("fastest predicted")
    if best is None:
        return []
    chosen = {enode.index for enode in best.choice.values()}
    used = {name for enode in best.choice.values() for name in enode.rules}
    rows: dict[str, dict[str, Any]] = {}
    places: dict[str, list[set[int]]] = {}
    speaker, plain = Speaker(saturated), set[str]()
    for firing in saturated.firings:
        rule = saturated.rule_of(firing)
        made = [saturated.of_label[label] for label in firing.built if label in saturated.of_label]
        new = [enode for enode in made if enode.origin is None and enode.kind == "op"
               and enode.cls not in saturated.constant]
        if not new or rule.name in used or any(enode.index in chosen for enode in new):
            continue
        row = rows.setdefault(rule.name, {"rule": rule.name, "exactness": rule.exactness, "meaning": rule.meaning,
                                          "places": 0, "example": None})
        classes = {saturated.classes[old] for old, _ in firing.roots}
        places[rule.name] = _with_place(places.get(rule.name, []), classes)
        row["places"] = len(places[rule.name])
        given = all(saturated.of_label[label].origin is not None for label in firing.matched)
        if row["example"] is None or (given and rule.name not in plain):  # one that is in the input, if any is
            row["example"] = _example(saturated, speaker, firing, new, prices)
            plain.update({rule.name} if given else ())
    return sorted(rows.values(), key=lambda row: (-row["places"], row["rule"]))[:SHOWN_UNUSED]


def _with_place(places: list[set[int]], classes: set[int]) -> list[set[int]]:
    """Places of a rule with one more firing: firings that share a value are one place (Q, K and V of a layer)."""
    apart = [place for place in places if not place & classes]
    joined = classes.union(*(place for place in places if place & classes))
    return [*apart, joined]


def _example(saturated: Saturated, speaker: Speaker, firing: Any, new: list[ENode],
             prices: Prices) -> dict[str, Any]:
    """Predicted seconds of the nodes that one firing matched and of those that it made."""
    old = list(dict.fromkeys(saturated.of_label[label] for label in firing.matched if label in saturated.of_label))
    return {"old": speaker.lines(old), "new": speaker.lines(new),
            "old_seconds": sum(prices(enode) for enode in old), "new_seconds": sum(prices(enode) for enode in new)}


def improved_body(graph: Graph, context: Context) -> tuple[Graph, bool, Callable[[], list[Step]]]:
    """(a nested graph as it is predicted to be fastest, or of as few nodes as possible for other objectives than time;
    whether that is predicted to be better, beyond what dropping nodes shows by itself; what makes the steps to it)."""
    if not graph.nodes:
        return graph, False, list
    rules = [rule for rule in context.rules if rule.exactness == "exact" or not context.exact_bodies]
    saturated = saturate(graph, rules, budgets.LOW, keep=context.options.keep)
    _report_conflicts(saturated, context)
    if context.options.objective == "time":
        prices = Prices(saturated, context)
        best = select(saturated, prices, context, lambda stage: None, alone=False,
                      only="fastest predicted")["fastest predicted"]
        before, after = (total(each, prices) for each in (extract.incumbent(saturated, prices), best))
    else:
        cost = count_nodes(saturated)
        best = extract.exact(saturated, cost, context.effort.extract_seconds)
        before, after = extract.incumbent(saturated, cost).cost, best.cost
    built = build.build_graph(graph, saturated, best)
    return built, after < before - TIE_SECONDS / 2, _tracer(graph, saturated, best, built)
