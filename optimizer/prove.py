"""`egraft check --prove`: both graphs in one e-graph, and the steps from the one to the other."""

from __future__ import annotations

from graphs.ir import Graph
from rules.catalogue import all_rules
from rules.declare import allowed
from search import budget, prove

from .normalize import normalize
from .result import step_text


def print_proof(left: Graph, right: Graph, precision: str) -> bool:
    """Print the steps if the rules of the class join all outputs; else say which outputs stay apart."""
    a, b = left.copy(), right.copy()
    normalize(a)
    normalize(b)
    rules = [rule for rule in all_rules() if allowed(rule.exactness, precision)]
    proof = prove.prove(a, b, rules, budget.NORMAL)
    if not proof.joined:
        apart = [name for name, joined in proof.outputs.items() if not joined]
        print(f"not proved: {', '.join(apart)} not joined by {len(rules)} rules ({proof.stop})")
        if proof.left_out:
            limits = budget.FOLDING
            print(f"{proof.left_out} constants were not computed: more than {limits.elements} elements, or more than "
                  f"{limits.bytes >> 20} MiB in all")
        return False
    print(f"proved equal ({proof.exactness}) in {len(proof.steps)} steps, after normalization of both")
    for index, step in enumerate(proof.steps):
        print(step_text({**step.to_dict(), "index": index}))
    return True
