"""Rules and graphs for the tests of the search."""

from __future__ import annotations

import numpy as np

from graphs.builder import Builder, Value
from graphs.ir import Graph
from graphs.text import parse_graph
from rules.declare import Match, Outcome, refuse, rule, term

EXAMPLE = "graph opset 17 (x: float32[2, 3]) -> (y) { y = Relu(x) }"


def _rule(before, after, exactness="exact", group=""):
    return rule(family="test", exactness=exactness, meaning="For tests.", before=before, after=after,
                example=EXAMPLE, near_miss=EXAMPLE, group=group)


@_rule("Transpose(Transpose(x, perm=p), perm=q)", "Transpose(x, perm=r)")
def t_transpose_compose(m: Match) -> Outcome:
    return {"r": tuple(m["p"][axis] for axis in m["q"])}


@_rule("Transpose(x, perm=p)", "x")
def t_transpose_identity(m: Match) -> Outcome:
    return None if m["p"] == tuple(range(len(m["p"]))) else refuse("the permutation moves something")


@_rule("Mul(x, $c)", "x")
def t_mul_one(m: Match) -> Outcome:
    return None if m.c.splat == 1 else refuse("the constant is not 1 everywhere")


@_rule("Relu(Relu(x))", "Relu(x)")
def t_relu_relu(m: Match) -> Outcome:
    return None


@_rule("Reshape(Reshape(x, shape=s), shape=t)", "Reshape(x, shape=t)")
def t_reshape_compose(m: Match) -> Outcome:
    return None


@_rule("Reshape(x, shape=s)", "x")
def t_reshape_same(m: Match) -> Outcome:
    return None if m.x.shape == m["s"] else refuse("the shape changes")


@_rule("Add(Add(x, $a), $b)", "Add(x, Add(a, b))", exactness="rounding")
def t_add_constants(m: Match) -> Outcome:
    return None


@_rule("MatMul(x, $w)", None, exactness="rounding", group="x")
def t_matmul_merge(m: Match) -> Outcome:
    """Several products with one left operand are one product with the concatenated right operands."""
    members = [each for each in m.members if each.w.rank == 2]
    if len(members) < 2 or m.x.rank < 2:
        return refuse("fewer than two plain matrices")
    joined = term("MatMul", m.x, term("Concat", *(each.w for each in members), axis=1))
    last, parts, start = m.x.rank - 1, {}, 0
    for each in members:
        stop = start + each.w.shape[1]
        parts[id(each)] = term("Slice", joined, starts=(start,), ends=(stop,), axes=(last,), steps=(1,))
        start = stop
    return [parts.get(id(each)) for each in m.members]


@_rule("Add(x, y)", "Add(y, x)")
def t_wrong_type(m: Match) -> Outcome:
    """Unsound: says that a sum is its first operand, whatever its type."""
    return m.x


@_rule("Transpose(Relu(x), perm=p)", "Relu(Transpose(x, perm=p))")
def t_relu_out(m: Match) -> Outcome:
    return None


@_rule("Transpose(Add(x, y), perm=p)", "Add(Transpose(x, perm=p), Transpose(y, perm=p))")
def t_add_out(m: Match) -> Outcome:
    return None if m.x.type == m.y.type else refuse("the operands broadcast")


@_rule("Add(x, Add(y, z))", "Add(Add(x, y), z)", exactness="rounding")
def t_add_associate(m: Match) -> Outcome:
    return None


@_rule("Sqrt(Mul(x, x))", "Abs(x)", exactness="rounding")
def t_sqrt_square(m: Match) -> Outcome:
    return None


SOUND = [t_transpose_compose, t_transpose_identity, t_mul_one, t_relu_relu, t_reshape_compose, t_reshape_same,
         t_add_constants, t_matmul_merge, t_relu_out, t_add_out, t_add_associate, t_sqrt_square]


def graph_of(text: str) -> Graph:
    """A graph from its text."""
    return parse_graph(text)


def bert(layers: int = 2, hidden: int = 64, heads: int = 4, vocabulary: int = 32, opset: int = 17,
         seed: int = 0) -> Graph:
    """A BERT-like encoder as exporters write it: LayerNorm and GELU decomposed, Q, K and V apart."""
    draw = np.random.default_rng(seed)
    b = Builder("bert", opset=opset)
    ids = b.input("ids", "int64", ["batch", "seq"])
    mask = b.input("mask", "float32", ["batch", 1, 1, "seq"])

    def weight(name: str, *shape: int) -> Value:
        return b.constant((draw.standard_normal(shape) * 0.05).astype(np.float32), name)

    def linear(x: Value, n_in: int, n_out: int, name: str) -> Value:
        return b.Add(b.MatMul(x, weight(f"{name}.w", n_in, n_out)), weight(f"{name}.b", n_out))

    def norm(x: Value, name: str) -> Value:
        d = b.Sub(x, b.ReduceMean(x, axes=(-1,)))
        v = b.ReduceMean(b.Pow(d, b.constant(np.float32(2.0))), axes=(-1,))
        y = b.Div(d, b.Sqrt(b.Add(v, b.constant(np.float32(1e-5)))))
        return b.Add(b.Mul(y, weight(f"{name}.g", hidden)), weight(f"{name}.b", hidden))

    def gelu(x: Value) -> Value:
        e = b.Erf(b.Div(x, b.constant(np.float32(2.0**0.5))))
        return b.Mul(b.Mul(x, b.Add(e, b.constant(np.float32(1.0)))), b.constant(np.float32(0.5)))

    def split(x: Value, perm: tuple[int, ...]) -> Value:
        return b.Transpose(b.Reshape(x, shape=(0, -1, heads, hidden // heads)), perm=perm)

    x = norm(b.Gather(weight("table", vocabulary, hidden), ids), "embed")
    for layer in range(layers):
        q = split(linear(x, hidden, hidden, f"l{layer}.q"), (0, 2, 1, 3))
        k = split(linear(x, hidden, hidden, f"l{layer}.k"), (0, 2, 3, 1))
        v = split(linear(x, hidden, hidden, f"l{layer}.v"), (0, 2, 1, 3))
        s = b.Add(b.Div(b.MatMul(q, k), b.constant(np.float32((hidden // heads) ** 0.5))), mask)
        o = b.Transpose(b.MatMul(b.Softmax(s, axis=-1), v), perm=(0, 2, 1, 3))
        o = linear(b.Reshape(o, shape=(0, -1, hidden)), hidden, hidden, f"l{layer}.o")
        x = norm(b.Add(x, o), f"l{layer}.n1")
        f = linear(gelu(linear(x, hidden, 4 * hidden, f"l{layer}.f1")), 4 * hidden, hidden, f"l{layer}.f2")
        x = norm(b.Add(x, f), f"l{layer}.n2")
    b.output(x, "y")
    return b.graph()
