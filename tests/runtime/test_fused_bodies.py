"""Fused nodes in branches and loop bodies run as they do elsewhere: several in one call, in memory that is nobody
else's, however often a body runs within a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph, is_fused
from graphs.text import parse_graph
from optimizer.bodies import improve_bodies
from runtime import Session
from runtime.codegen.c import unavailable
from runtime.control_flow import Body
from runtime.fusion import fuse, with_sizes
from runtime.joined import Record, Stretch
from runtime.program import Program
from search.fusions.enumerate import enumerate_groups, is_movement

needs_compiler = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
ROWS, COLUMNS = 64, 160  # 40 kB: NumPy would write into operands that nobody needs
RUNS = 5


def fused(graph: Graph, exact: bool = True) -> Graph:
    """With the largest groups of nodes of each nested graph as one node."""
    infer(graph)
    made = graph.copy()

    def improve(body: Graph, place: str) -> Graph:
        taken: set[int] = set()
        groups = []
        for each in sorted(enumerate_groups(body, with_sizes(body, {}), 50, 4).groups, key=lambda one: -len(one.nodes)):
            own = {index for index in each.nodes if not is_movement(body.nodes[index])}
            if own and not each.others and taken.isdisjoint(own):
                taken |= own
                groups.append(each)
        return fuse(body, groups, exact)

    improve_bodies(made, improve)
    infer(made)
    return made


def inside(graph: Graph) -> int:
    """How many fused nodes lie in nested graphs."""
    return sum(is_fused(node) for each in graph.walk() if each is not graph for node in each.nodes)


def compare(graph: Graph, feeds: list[dict[str, np.ndarray]], exact: bool = True) -> Graph:
    """Runs of one session give what a session of the unfused graph gives, and what they gave stays as it was."""
    made = fused(graph, exact)
    mine, other = Session(made, threads=1), Session(graph, threads=1)
    found, wanted = [], []
    for number in range(RUNS):
        given = {name: value.copy() for name, value in feeds[number % len(feeds)].items()}
        found.append(mine.run(given))
        wanted.append(other.run(feeds[number % len(feeds)]))
        assert all(given[name].tobytes() == value.tobytes() for name, value in feeds[number % len(feeds)].items())
    for got, want in zip(found, wanted):
        for name, value in want.items():
            if exact:
                np.testing.assert_array_equal(got[name], value, strict=True)
            else:
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-5)
    return made


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def programs(program: Program) -> Iterator[Program]:
    """A program and those of nested graphs."""
    yield program
    for step, _ in program.steps:
        for cell in step.__closure__ or ():
            for inner in getattr(cell.cell_contents, "__closure__", None) or ():
                if isinstance(inner.cell_contents, Body):
                    yield from programs(inner.cell_contents.program)


BRANCHES = """graph "g" opset 18 (x: float32[64, 160], a: bool[]) -> (y) {
  w = constant float32[] 0.5
  s = constant float32[1] [3]
  y = If(a, then_branch=graph () -> (t) {
      b = Mul(x, w)
      c = Add(b, x)
      m = MatMul(c, v)
      e = Relu(m)
      f = Mul(e, s)
      t = Sub(f, e)
    }, else_branch=graph () -> (u) {
      g = Abs(x)
      h = Sqrt(g)
      i = MatMul(h, v)
      u = Exp(i)
    })
}"""


@needs_compiler
def test_branches_with_captured_weights() -> None:
    feeds = [{"x": normal(ROWS, COLUMNS, seed=seed), "a": np.array(bool(seed % 2))} for seed in range(2)]
    weights = Constant.of(normal(COLUMNS, ROWS, seed=5) / 10)  # packed for products once
    text = f"{{\n  v = constant float32[160, 64] sha256:{weights.digest}\n  w"
    graph = parse_graph(BRANCHES.replace("{\n  w", text), {weights.digest: weights})
    made = compare(graph, feeds, exact=False)
    assert inside(made) == 4


@needs_compiler
def test_nodes_of_a_branch_run_as_one_call_and_constants_are_no_arguments() -> None:
    weights = Constant.of(normal(COLUMNS, COLUMNS, seed=5) / 10)
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 160], a: bool[]) -> (y) {
      w = constant float32[1] [0.5]
      k = constant int64[] 3
      y = If(a, then_branch=graph () -> (t) {
          b = Tanh(x)
          c = ReduceSum(b, axes=[1])
          d = Gather(x, k)
          e = MatMul(x, v)
          f = Add(e, c)
          g = Sub(f, d)
          t = Mul(g, w)
        }, else_branch=graph () -> (u) { f = Add(w, w) u = Mul(f, w) })
    }""".replace("w = constant", f"v = constant float32[160, 160] sha256:{weights.digest}\n w = constant"),
                        {weights.digest: weights})
    made = fused(graph, exact=False)
    session = Session(made, threads=1)
    feeds = {"x": normal(ROWS, COLUMNS), "a": np.array(True)}
    x = feeds["x"].astype(np.float64)
    want = (x @ weights.array + np.tanh(x).sum(1, keepdims=True) - x[3]) / 2
    for _ in range(3):
        np.testing.assert_allclose(session.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    assert isinstance(session.program, Program)
    _, other, then = programs(session.program)
    assert then.captured == ("x",) and other.captured == () and len(other.steps) == 1, \
        "what is constant is computed before"
    (part, _, _), = then._runs
    assert isinstance(part, Stretch) and len(part.steps) == len(then.steps)
    (record,) = part.records.values()
    assert isinstance(record, Record)


@needs_compiler
def test_a_loop_with_carried_state_views_and_scan_outputs() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 160], n: int64[]) -> (last, before, all, turned) {
      yes = constant bool[] 1
      half = constant float32[] 0.5
      z = Mul(x, half)
      last, before, all, turned = Loop(n, yes, x, z, body=graph (i, going, s, p) -> (again, t, s, u, v) {
          again = Identity(going)
          b = Mul(s, half)
          c = Add(b, z)
          d = Sub(c, p)
          t = Add(d, d)
          e = Mul(d, c)
          u = Slice(e, starts=[0], ends=[3], axes=[0], steps=[1])
          f = Transpose(s, perm=[1, 0])
          v = Slice(f, starts=[5], ends=[1], axes=[0], steps=[-1])
        })
    }""")
    feeds = [{"x": normal(ROWS, COLUMNS, seed=seed), "n": np.array(turns)} for seed, turns in ((0, 4), (1, 1), (2, 3))]
    made = compare(graph, feeds)
    assert inside(made)


@needs_compiler
def test_a_scan_forwards_and_backwards() -> None:
    graph = parse_graph("""graph "g" opset 18 (s: float32[160], x: float32[7, 160], r: float32[160, 7]) -> (last, y) {
      two = constant float32[] 2.0
      last, y = Scan(s, x, r, num_scan_inputs=2, scan_input_axes=[0, 1], scan_input_directions=[0, 1],
        scan_output_axes=[1], scan_output_directions=[1], body=graph (h, a, b) -> (g, o) {
          c = Mul(a, two)
          d = Add(c, h)
          e = Sub(d, b)
          g = Abs(e)
          o = Mul(g, a)
        })
    }""")
    feeds = [{"s": normal(160, seed=seed), "x": normal(7, 160, seed=seed + 9), "r": normal(160, 7, seed=seed + 5)}
             for seed in range(2)]
    assert inside(compare(graph, feeds))


@needs_compiler
def test_a_branch_in_a_loop_reads_through_both() -> None:
    graph = parse_graph("""graph "g" opset 18 (x: float32[64, 160], w: float32[160]) -> (y) {
      yes = constant bool[] 1
      turns = constant int64[] 5
      two = constant int64[] 2
      zero = constant int64[] 0
      half = constant float32[] 0.5
      y = Loop(turns, yes, x, body=graph (i, going, s) -> (again, t) {
          again = Identity(going)
          c = Mul(s, half)
          b = Add(c, w)
          odd = Mod(i, two)
          is_odd = Equal(odd, zero)
          t = If(is_odd, then_branch=graph () -> (u) {
              d = Mul(b, half)
              e = Add(d, x)
              u = Relu(e)
            }, else_branch=graph () -> (v) {
              f = Sub(s, b)
              h = Mul(f, w)
              v = Neg(h)
            })
        })
    }""")
    feeds = [{"x": normal(ROWS, COLUMNS, seed=seed), "w": normal(COLUMNS, seed=seed + 3)} for seed in range(3)]
    assert inside(compare(graph, feeds)) >= 3


POINTWISE = ("Add", "Mul", "Sub", "Max")


def random_body(rng: np.random.Generator, names: list[str], stem: str, depth: int) -> tuple[list[str], list[str]]:
    """(lines, names of all values), all of [ROWS, COLUMNS] or turned; `names` are there before."""
    lines, full, turned = [], list(names), list[str]()

    def recent(values: list[str]) -> str:  # what nobody reads is nobody's work
        return values[-min(int(rng.geometric(0.3)), len(values))]

    for number in range(int(rng.integers(6, 16))):
        new, kind = f"{stem}{number}", rng.integers(9 if depth else 8)
        one, other = recent(full), recent(full)
        if kind == 0:
            lines.append(f"{new} = Transpose({one}, perm=[1, 0])")
            turned.append(new)
            continue
        if kind == 1 and turned:
            lines.append(f"{new} = Transpose({recent(turned)}, perm=[1, 0])")
        elif kind == 2:
            lines += [f"{new}a = Slice({one}, starts=[0], ends=[20], axes=[1], steps=[1])",
                      f"{new}b = Slice({other}, starts=[20], ends=[160], axes=[1], steps=[1])",
                      f"{new} = Concat({new}a, {new}b, axis=1)"]
        elif kind == 3:
            lines.append(f"{new} = Identity({one})")
        elif kind == 4:
            lines.append(f"{new} = {('Neg', 'Abs', 'Relu')[int(rng.integers(3))]}({one})")
        elif kind == 7:  # NumPy's: stretches end there, and may write into what it made
            lines.append(f"{new} = CumSum({one}, axis)")
        elif kind == 8:
            inner = [random_body(rng, full, f"{new}{side}", 0) for side in "tu"]
            (first, a), (second, b) = inner
            results = [recent(a), recent(b)]
            lines.append(f"{new} = If(flag, then_branch=graph () -> ({results[0]}) {{\n" + "\n".join(first)
                         + f"\n}}, else_branch=graph () -> ({results[1]}) {{\n" + "\n".join(second) + "\n})")
        else:
            lines.append(f"{new} = {POINTWISE[int(rng.integers(4))]}({one}, {other})")
        full.append(new)
    return lines, full


@needs_compiler
@pytest.mark.parametrize("seed", range(16))
def test_random_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, names = random_body(rng, ["s", "p", "x", "w"], "v", 1)
    outputs = [names[-min(int(rng.geometric(0.3)), len(names))] for _ in range(3)]
    type_ = f"float32[{ROWS}, {COLUMNS}]"
    text = (f'graph "g" opset 18 (x: {type_}, w: {type_}, flag: bool[], n: int64[]) -> (a, b, c) {{\n'
            "axis = constant int64[] 1\nyes = constant bool[] 1\nstart = Neg(x)\n"
            "a, b, c = Loop(n, yes, x, start, body=graph (i, going, s, p) -> (again, "
            f"{', '.join(outputs)}) {{\nagain = Identity(going)\n" + "\n".join(lines) + "\n})\n}")
    feeds = [{"x": normal(ROWS, COLUMNS, seed=seed + turns), "w": normal(ROWS, COLUMNS, seed=seed + 40),
              "flag": np.array(turns > 2), "n": np.array(turns)} for turns in (3, 4, 1)]
    compare(parse_graph(text), feeds)
