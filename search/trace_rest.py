"""Steps of a trace that no single rule stands for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from graphs.ir import Graph

from .saturated import ENode
from .steps import Patch, same_graph, texts, value_keys

if TYPE_CHECKING:
    from .trace import Tracer


def constant_form(tracer: Tracer, value: str, target: ENode) -> bool:
    """Lead a value that depends on constants alone to another form of it at once; True if that is done.

    Rules that hand a variable through (x * 1 is x) lead nowhere backwards, and so not to every form.
    """
    state = tracer.state
    if target.cls not in tracer.saturated.constant or value not in state.producer:
        return False
    before, where = texts([state.producer[value]]), tracer.where([value])
    rules = {name for enode in (state.enode[value], target) for name in enode.rules}
    state.begin()
    new = tracer.make(target, {}, {}, state.upstream(value), 0)
    if not new or new == value:
        state.close()
        return False
    state.redirect(value, new)
    patch = state.close()
    tracer.emit("constant-form", _weakest(tracer, rules), "What depends on constants alone is computed in another way.",
                where, before, texts(patch.add) or [f"{value} -> {new}"], patch, involved=sorted(rules))
    return True


def _weakest(tracer: Tracer, rules: Collection[str]) -> str:
    """The weakest class among some rules."""
    return max((rule.exactness for rule in tracer.saturated.rules if rule.name in rules),
               key=["exact", "rounding", "finite", "approximate"].index, default="exact")


def known_shapes(tracer: Tracer) -> None:
    """Reshapes whose computed target is known become Reshapes with a constant target."""
    state, encoded = tracer.state, tracer.saturated.encoded
    for index in sorted(encoded.spelled_anew):
        name = tracer.graph.nodes[index].outputs[0]
        node = state.producer.get(name)
        if node is None or node.attrs != tracer.graph.nodes[index].attrs or node.inputs[1:] == ():
            continue
        enode = state.enode[name]
        arguments = state.arguments(name)
        where, before = tracer.where([name]), texts([node])
        state.begin()
        fresh = state.names.fresh(name)
        made = state.maker.original(enode, dict(zip(enode.args, arguments)), (fresh,))
        state.add(made, enode)
        state.redirect(name, fresh)
        patch = state.close()
        tracer.emit("known-shape", "exact", "A target shape that follows from the inputs' sizes is a constant.",
                    where, before, texts(patch.add), patch)


def spelling(tracer: Tracer) -> None:
    """Nodes that are an original node written otherwise (axis -1 for the last one) are written as the result has them.

    Where equal nodes become one, that is the first original node; it may be gone from the graph on the way.
    """
    state = tracer.state
    for node in list(state.live_nodes()):
        enode = state.whole.get(id(node))  # copies for outputs have none
        name = next((out for out in node.outputs if out), "")
        if enode is None or enode.kind != "op" or any(True for _ in node.graphs) or not state.is_live(name) or \
                tracer.is_spelled_so(name, enode):
            continue
        arguments = state.arguments(name)
        if not all(arguments[at] or arg < 0 for at, arg in enumerate(enode.args)):
            continue
        where, before = tracer.where([name]), texts([node])
        state.begin()
        made = state.maker.original(enode, dict(zip(enode.args, arguments)),
                                    tuple(state.names.fresh(out) if out else "" for out in node.outputs))
        state.add(made, enode)
        for old, new in zip(node.outputs, made.outputs):
            if old:
                state.output_is(new, state.enode[old])
                state.redirect(old, new)
        patch = state.close()
        tracer.emit("other-spelling", "exact", "The same operation on the same values, written in another way.",
                    where, before, texts(patch.add), patch)


def output_names(tracer: Tracer, result: Graph) -> None:
    """Of equal outputs the one that is computed in the result is computed, the others are copies of it."""
    state = tracer.state
    for wanted in result.outputs:
        copy = state.producer.get(wanted)
        source = copy.inputs[0] if copy is not None and copy.op == "Identity" and copy.domain == "" else ""
        node = state.producer.get(source)
        if node is None or source not in state.outputs or not _copies(result, source, wanted):
            continue
        where, before = tracer.where([source, wanted]), texts([node, *filter(None, [copy])])
        state.begin()
        fresh = state.again(node)
        state.redirect(wanted, fresh.pop(source))
        state.redirect(source, wanted)
        for old, new in fresh.items():
            state.redirect(old, new)
        patch = state.close()
        tracer.emit("output-names", "exact", "Of equal outputs another one is computed, the others are copies.",
                    where, before, [*texts(patch.add), f"{source} -> {wanted}"], patch)


def region(tracer: Tracer, result: Graph) -> None:
    """One step for whatever still differs from the result."""
    state = tracer.state
    present = state.to_graph()
    if same_graph(present, result):
        return
    table: dict[object, int] = {}
    ordered = result.copy()
    ordered.sort()
    have, _ = value_keys(present, table)
    want, _ = value_keys(ordered, table)
    names = _present_values(have, want, set(result.outputs))
    patch, involved = Patch(), {}
    patch.constants = {names.setdefault(name, state.names.fresh(name)): value
                       for name, value in ordered.constants.items() if name not in names}
    for node in ordered.nodes:
        if all(name in names for name in node.outputs if name):
            continue
        copy = node.copy()
        for name in filter(None, node.outputs):
            names[name] = state.names.fresh(name)
            type_ = result.types.get(name)
            patch.types.update({} if type_ is None else {names[name]: type_})
        copy.outputs = tuple(names[name] if name else "" for name in node.outputs)
        copy.inputs = tuple(names[name] if name else "" for name in node.inputs)
        for nested in copy.graphs:
            nested.rename_uses({old: names[old] for old in nested.captured() if old in names}, outputs=True)
        patch.add.append(copy)
    for name in patch.reads():
        if name in present.constants and name not in tracer.graph.constants:
            patch.constants[name] = present.constants[name]
        known = result.type_of(next((old for old, new in names.items() if new == name), "")) or \
            tracer.graph.type_of(name)
        patch.types.update({} if known is None else {name: known})
    patch.constants.update({name: tracer.graph.constants[name] for name in patch.reads()
                            if name in tracer.graph.constants})
    patch.replace = {name: names[name] for name in result.outputs if names[name] != name}
    for enode in tracer.selection.choice.values():
        involved.update(dict.fromkeys(enode.rules))
    tracer.emit("region", _weakest(tracer, involved), "Several rewrites at once that the search knows to be equal.",
                list(patch.replace), [], texts(patch.add), patch, region=True, involved=list(involved))


def _copies(graph: Graph, name: str, source: str) -> bool:
    """The value is an Identity of the other one."""
    return any(node.op == "Identity" and node.inputs == (source,) for node in graph.nodes if name in node.outputs)


def _present_values(have: Mapping[str, int], want: Mapping[str, int], outputs: Collection[str]) -> dict[str, str]:
    """Wanted value -> the value of the same key that is there. An output stands only for itself: its name stays."""
    by_key: dict[int, list[str]] = {}
    for name, key in have.items():
        by_key.setdefault(key, []).append(name)
    found: dict[str, str] = {}
    for name, key in want.items():
        fit = [each for each in by_key.get(key, ()) if each not in outputs]
        if name in by_key.get(key, ()):
            found[name] = name
        elif fit:
            found[name] = fit[-1]
    return found
