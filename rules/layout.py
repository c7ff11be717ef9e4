"""Movement rules: Transpose and Reshape carried through elementwise operators, Concat, Softmax and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.dtypes import INTEGERS

from .declare import Leaf, Match, NodeView, Operand, Outcome, Rule, refuse, rule, term
from .values import STEADY, UNARY

FAMILY = "movement"
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
              "ReduceSumSquare", "ReduceLogSumExp")  # fmt: skip
_CALLS = {"Cast": "Cast({}, to=11)", "Clip": "Clip({}, min=0, max=1)", "LeakyRelu": "LeakyRelu({}, alpha=0.5)"}


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(perm)), key=lambda axis: perm[axis]))


def transposed(operand: Operand, perm: Sequence[int]) -> Leaf:
    """An operand, broadcast up to the rank of the permutation by leading ones, with its axes moved."""
    rank = len(perm)
    if all(dim == 1 for dim in operand.shape):
        return operand  # the same wherever its axes of one stand
    value: Leaf = operand
    if operand.rank < rank:
        value = term("Reshape", operand, shape=(1,) * (rank - operand.rank) + operand.shape)
    return term("Transpose", value, perm=tuple(perm))


def _call(op: str, argument: str) -> str:
    return _CALLS.get(op, f"{op}({{}})").format(argument)


def _dtype(op: str) -> tuple[str, int]:
    return ("bool" if op == "Not" else "float32"), {"Mish": 18, "Gelu": 20}.get(op, 17)


def _through(op: str) -> list[Rule]:
    dtype, opset = _dtype(op)
    exactness = "exact" if op in STEADY else "rounding"
    head = f"graph opset {opset} (x: {dtype}[2, 3, 4]) -> (y)"

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} does not care where an element stands: Transpose first.",
        before=f"Transpose(c:{op}(x), perm=p)", after=f"{op}(Transpose(x, perm=p), *c)",
        example=f"{head} {{ t = {_call(op, 'x')} y = Transpose(t, perm=[1, 0, 2]) }}",
        near_miss=f"{head} {{ t = Transpose(x, perm=[1, 0, 2]) y = {_call(op, 't')} }}",
    )
    def first(m: Match) -> Outcome:
        return None

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} does not care where an element stands: Transpose last.",
        before=f"c:{op}(Transpose(x, perm=p))", after=f"Transpose({op}(x, *c), perm=p)",
        example=f"{head} {{ t = Transpose(x, perm=[1, 0, 2]) y = {_call(op, 't')} }}",
        near_miss=f"{head} {{ t = {_call(op, 'x')} y = Transpose(t, perm=[1, 0, 2]) }}",
    )
    def last(m: Match) -> Outcome:
        return None

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} does not care about the shape: Reshape first.",
        before=f"Reshape(c:{op}(x), shape=s)", after=f"{op}(Reshape(x, shape=s), *c)",
        example=f"{head} {{ t = {_call(op, 'x')} y = Reshape(t, shape=[6, 4]) }}",
        near_miss=f"{head} {{ t = Reshape(x, shape=[6, 4]) y = {_call(op, 't')} }}",
    )
    def reshape(m: Match) -> Outcome:
        return None

    name = op.lower()
    return [first.renamed(f"transpose-before-{name}"), last.renamed(f"transpose-after-{name}"),
            reshape.renamed(f"reshape-before-{name}")]


THROUGH_UNARY = [each for op in UNARY for each in _through(op)]


# Two operands ----------------------------------------------------------------------------------------------


def _binary(op: str) -> list[Rule]:
    exactness = "exact" if op in STEADY else "rounding"
    head = "graph opset 17 (x: float32[2, 3, 4], z: float32[2, 3, 4]) -> (y)"
    constant = "graph opset 17 (x: float32[2, 3, 4]) -> (y) { c = constant float32[4] [1, 2, 3, 4]"

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} of transposed operands: Transpose first.",
        before=f"Transpose({op}(a, b), perm=p)",
        example=head + f" {{ t = Transpose(x, perm=[1, 0, 2]) u = Transpose(z, perm=[1, 0, 2]) v = {op}(t, u) "
                       "y = Transpose(v, perm=[1, 0, 2]) }",
        near_miss=head + f" {{ v = {op}(x, z) y = Transpose(v, perm=[1, 0, 2]) }}",
    )
    def first(m: Match) -> Outcome:
        views = [view for operand in (m.a, m.b) for view in operand.forms("Transpose")[:1]]
        if not views:
            return refuse("no operand is transposed, so nothing would cancel")
        m.use(views[0])
        return term(op, transposed(m.a, m["p"]), transposed(m.b, m["p"]))

    @rule(
        family=FAMILY, exactness=exactness, meaning=f"{op} of operands that are transposed alike: Transpose last.",
        before=f"{op}(Transpose(a, perm=p), Transpose(b, perm=p))", after=f"Transpose({op}(a, b), perm=p)",
        example=head + f" {{ t = Transpose(x, perm=[1, 0, 2]) u = Transpose(z, perm=[1, 0, 2]) y = {op}(t, u) }}",
        near_miss=head + f" {{ t = Transpose(x, perm=[1, 0, 2]) u = Transpose(z, perm=[1, 2, 0]) "
                         f"v = Transpose(u, perm=[0, 2, 1]) w = Neg(v) y = {op}(t, w) }}",
    )
    def last(m: Match) -> Outcome:
        return None

    def carried(left: bool) -> Rule:
        pattern = f"{op}(Transpose(a, perm=p), $c)" if left else f"{op}($c, Transpose(a, perm=p))"
        use = f"{op}(t, c)" if left else f"{op}(c, t)"

        @rule(
            family=FAMILY, exactness=exactness,
            meaning=f"{op} with a constant: Transpose last, the constant turned back.",
            before=pattern,
            example=constant + f" t = Transpose(x, perm=[1, 0, 2]) y = {use} }}",
            near_miss=constant.replace("[4] [1, 2, 3, 4]", "[1, 1, 1, 1] [1]")
            + f" t = Transpose(x, perm=[0, 2, 1]) y = {use} }}",
        )
        def guard(m: Match) -> Outcome:
            if m.c.rank > m.a.rank:
                return refuse("the constant raises the rank")
            back = transposed(m.c, inverse(m["p"]))
            inner = term(op, m.a, back) if left else term(op, back, m.a)
            return term("Transpose", inner, perm=m["p"])

        return guard.renamed(f"transpose-after-{op.lower()}-constant" + ("" if left else "-first"))

    name = op.lower()
    found = [first.renamed(f"transpose-before-{name}-operands"), last.renamed(f"transpose-after-{name}-operands")]
    return [*found, carried(True)] if op in ("Add", "Mul") else [*found, carried(True), carried(False)]


THROUGH_BINARY = [each for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow") for each in _binary(op)]


# Concat, Softmax, reductions -------------------------------------------------------------------------------


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Concat of values that are transposed alike is a transposed Concat.",
    before="Concat(*xs, axis=a)",
    example="graph opset 17 (x: float32[n, 4, 3], z: float32[n, 2, 3]) -> (y) { p = Transpose(x, perm=[0, 2, 1]) "
            "q = Transpose(z, perm=[0, 2, 1]) y = Concat(p, q, axis=2) }",
    near_miss="graph opset 17 (x: float32[3, 3, 3], z: float32[3, 3, 3]) -> (y) { p = Transpose(x, perm=[0, 2, 1]) "
              "q = Transpose(z, perm=[1, 0, 2]) y = Concat(p, q, axis=2) }",
)
def concat_of_transposes(m: Match) -> Outcome:
    perm: tuple[int, ...] | None = None
    sources: list[Leaf] = []
    for piece in m.xs:
        views: list[NodeView] = [view for view in piece.forms("Transpose") if perm in (None, view.attrs["perm"])]
        if views:
            perm = views[0].attrs["perm"]
            m.use(views[0])
            sources.append(views[0].args[0])  # type: ignore[arg-type]
        elif piece.is_constant:
            sources.append(piece)
        else:
            return refuse("not all inputs are transposed alike")
    if perm is None:
        return refuse("no input is transposed")
    back = inverse(perm)
    sources = [term("Transpose", source, perm=back) if source is piece else source
               for source, piece in zip(sources, m.xs, strict=True)]
    return term("Transpose", term("Concat", *sources, axis=perm[m["a"]]), perm=perm)


def _softmax(op: str) -> list[Rule]:
    head = "graph opset 17 (x: float32[2, 3, 4]) -> (y)"

    @rule(
        family=FAMILY, exactness="rounding", meaning=f"{op} along the axis where a Transpose takes its own from.",
        before=f"Transpose({op}(x, axis=a), perm=p)", after=f"{op}(Transpose(x, perm=p), axis=b)",
        example=head + f" {{ t = {op}(x, axis=1) y = Transpose(t, perm=[0, 2, 1]) }}",
        near_miss=head + f" {{ t = Transpose(x, perm=[0, 2, 1]) y = {op}(t, axis=1) }}",
    )
    def first(m: Match) -> Outcome:
        return {"b": m["p"].index(m["a"])}

    @rule(
        family=FAMILY, exactness="rounding",
        meaning=f"{op} of a Transpose is a Transpose of {op} along the axis it came from.",
        before=f"{op}(Transpose(x, perm=p), axis=a)", after=f"Transpose({op}(x, axis=b), perm=p)",
        example=head + f" {{ t = Transpose(x, perm=[1, 2, 0]) y = {op}(t, axis=1) }}",
        near_miss=head + f" {{ t = {op}(x, axis=1) y = Transpose(t, perm=[0, 2, 1]) }}",
    )
    def last(m: Match) -> Outcome:
        return {"b": m["p"][m["a"]]}

    @rule(
        family=FAMILY, exactness="rounding",
        meaning=f"{op} along an inner axis is {op} along the last one of the value with both exchanged.",
        before=f"{op}(x, axis=a)", after=f"Transpose({op}(Transpose(x, perm=p), axis=b), perm=p)",
        example=head + f" {{ y = {op}(x, axis=0) }}", near_miss=head + f" {{ y = {op}(x, axis=2) }}",
    )
    def exchanged(m: Match) -> Outcome:
        end, perm = m.x.rank - 1, list(range(m.x.rank))
        if m["a"] == end:
            return refuse("it is the last axis")
        perm[m["a"]], perm[end] = end, m["a"]
        return {"p": tuple(perm), "b": end}

    name = op.lower()
    return [first.renamed(f"transpose-before-{name}"), last.renamed(f"transpose-after-{name}"),
            exchanged.renamed(f"{name}-along-the-last")]


SOFTMAX = [each for op in ("Softmax", "LogSoftmax") for each in _softmax(op)]


def _reduction(op: str, integers: bool = False) -> Rule:
    head = f"graph opset 17 (x: {'int32' if integers else 'float32'}[n, 4, 3, 5]) -> (y)"
    extreme = op in ("ReduceMax", "ReduceMin")  # in some runtimes the order of elements decides what becomes of NaN

    @rule(
        family=FAMILY, exactness="exact" if integers else "finite" if extreme else "rounding",
        meaning=f"{op} over renamed axes needs no Transpose before it.",
        before=f"{op}(Transpose(x, perm=p), axes=a, keepdims=k)",
        example=head + f" {{ t = Transpose(x, perm=[0, 2, 3, 1]) y = {op}(t, axes=[1, 2], keepdims=0) }}",
        near_miss=head + f" {{ t = Abs(x) y = {op}(t, axes=[1, 2], keepdims=0) }}",
    )
    def guard(m: Match) -> Outcome:
        perm, axes = m["p"], m["a"]
        if integers and m.x.dtype not in INTEGERS:
            return refuse("floats have a rule of their own")
        if not isinstance(axes, tuple) or not axes:
            return refuse("the axes are not known")
        reduced = tuple(sorted(perm[axis] for axis in axes))
        inner = term(op, m.x, axes=reduced, keepdims=m["k"])
        if m["k"]:
            return term("Transpose", inner, perm=perm)
        kept = [axis for axis in range(len(perm)) if axis not in reduced]
        order = tuple(kept.index(perm[axis]) for axis in range(len(perm)) if axis not in axes)
        return inner if list(order) == sorted(order) else term("Transpose", inner, perm=order)

    return guard.renamed(f"transpose-in-{op.lower()}" + ("-integers" if integers else ""))


REDUCTION = [_reduction(op) for op in REDUCTIONS] + [_reduction(op, True) for op in ("ReduceMax", "ReduceMin")]
