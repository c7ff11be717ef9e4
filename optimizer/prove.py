"""`egraft check --prove`: both graphs in one e-graph, and the steps from the one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphs.inference import infer
from graphs.ir import Graph
from graphs.wording import counted
from rules.catalogue import all_rules
from rules.declare import Rule, allowed
from rules.zero_signs import showing_places
from search import budget, build, extract, prove, saturate

from .bodies import improve_bodies, make_names_unique
from .normalize import normalize
from .result import step_text
from .searching import count_nodes, with_constants


def print_proof(left: Graph, right: Graph, precision: str) -> bool:
    """Print the steps if the rules of the class join all outputs; else say which outputs stay apart."""
    found = find_proof(left, right, precision)
    print("\n".join([found["text"], *(step_text(step) for step in found["steps"])]))
    return bool(found["joined"])


def find_proof(left: Graph, right: Graph, precision: str) -> dict[str, Any]:
    """Whether the rules of a class join all outputs of two graphs, as a JSON document.

    `joined`, `outputs` (name -> joined), `steps` from the first to the second as in a trace, `exactness` (the weakest
    class used), `stop` (why the search ended) and `text`, all of it but the steps in words.
    """
    a, b = left.copy(), right.copy()
    shows = precision == "rounding" and any(showing_places(graph) for graph in (a, b))
    rules = [rule for rule in all_rules() if allowed(rule.exactness, precision) and not (shows and rule.zero_sign)]
    changed = [_normal(graph, rules, precision == "exact") for graph in (a, b)]  # both, whatever the first says
    nested = any(changed)
    proof = prove.prove(a, b, rules, budget.NORMAL)
    weakest = (precision if nested else proof.exactness) if proof.joined else None
    steps = [{**with_constants(step.to_dict()), "index": index} for index, step in enumerate(proof.steps)]
    before = "normalization of both" + (" and of their nested graphs by the rules" if nested else "")
    text = (f"proved equal ({weakest}) in {counted(len(steps), 'step')}, after {before}" if proof.joined else
            _not_proved(proof, len(rules)))
    return {"joined": proof.joined, "outputs": proof.outputs, "exactness": weakest, "stop": proof.stop, "text": text,
            "steps": steps}


def _not_proved(proof: prove.Proof, rules: int) -> str:
    apart = [name for name, joined in proof.outputs.items() if not joined]
    text = f"not proved: {', '.join(apart)} not joined by {counted(rules, 'rule')} ({proof.stop})"
    if proof.left_out:
        limits = budget.FOLDING
        text += (f"\n{counted(proof.left_out, 'constant')} not computed: more than {limits.elements} elements, or more "
                 f"than {limits.bytes >> 20} MiB in all")
    return text


def _normal(graph: Graph, rules: Sequence[Rule], exact: bool) -> bool:
    """Normalize in place. Nested graphs are no terms of the search: the rules bring each to as few nodes as they can
    beforehand, as `optimize` does. True if that changed one."""
    normalize(graph, exact=exact)
    if not improve_bodies(graph, lambda body, _: _fewest_nodes(body, rules, exact)):
        return False
    make_names_unique(graph)
    normalize(graph, exact=exact)
    return True


def _fewest_nodes(body: Graph, rules: Sequence[Rule], exact: bool) -> Graph:
    infer(body)
    normalize(body, exact=exact)
    if not body.nodes:
        return body
    found = saturate(body, rules, budget.LOW)
    built = build.build_graph(body, found, extract.exact(found, count_nodes(found)))
    normalize(built, exact=exact)
    return built
