"""Movement rules: Transpose carried through Pad, Slice and Split."""

from __future__ import annotations

from typing import Any

from .declare import Match, Outcome, Rule, refuse, rule, term
from .padding import padding_of

FAMILY = "movement"
_X = "graph opset 17 (x: float32[n, 4, 6]) -> (y)"


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Pad may follow a Transpose, along the renamed axes.",
    before="Transpose(c:Pad(x), perm=p)",
    example=_X + " { t = Pad(x, pads=[0, 1, 0, 0, 0, 2]) y = Transpose(t, perm=[0, 2, 1]) }",
    near_miss=_X + " { t = Transpose(x, perm=[0, 2, 1]) y = Pad(t, pads=[0, 1, 0, 0, 0, 2]) }",
)
def transpose_before_pad(m: Match) -> Outcome:
    padding = padding_of(m.c)
    if padding is None or len(m.c.args) != 1:
        return refuse("the pads are not known")
    moved = [padding[axis] for axis in m["p"]]
    pads = tuple(pair[0] for pair in moved) + tuple(pair[1] for pair in moved)
    return term("Pad", term("Transpose", m.x, perm=m["p"]), **{**m.c.attrs, "pads": pads, "axes": None})


@rule(
    family=FAMILY, exactness="exact",
    meaning="A Slice may follow a Transpose, along the renamed axes.",
    before="Transpose(c:Slice(x), perm=p)",
    example=_X + " { t = Slice(x, starts=[1], ends=[3], axes=[1]) y = Transpose(t, perm=[0, 2, 1]) }",
    near_miss=_X + " { t = Transpose(x, perm=[0, 2, 1]) y = Slice(t, starts=[1], ends=[3], axes=[1]) }",
)
def transpose_before_slice(m: Match) -> Outcome:
    attrs = m.c.attrs
    if len(m.c.args) != 1 or not isinstance(attrs["axes"], tuple):
        return refuse("the ranges are not known")
    places = sorted(range(len(attrs["axes"])), key=lambda place: m["p"].index(attrs["axes"][place]))
    new: dict[str, Any] = {name: tuple(attrs[name][place] for place in places) for name in ("starts", "ends", "steps")}
    axes = tuple(m["p"].index(attrs["axes"][place]) for place in places)
    return term("Slice", term("Transpose", m.x, perm=m["p"]), axes=axes, **new)


def _split(output: int) -> Rule:
    names = ", ".join([f"o{index}" for index in range(output)] + ["y", "z"])
    parts = ", ".join(["1"] * (output + 1) + [str(5 - output)])

    @rule(
        family=FAMILY, exactness="exact", meaning="A Split of a transposed value is a transposed Split.",
        before=f"s:Split(Transpose(x, perm=p))[{output}]",
        example=f"{_X} {{ t = Transpose(x, perm=[0, 2, 1]) {names} = Split(t, axis=1, split=[{parts}]) }}",
        near_miss=f"{_X} {{ t = Relu(x) {names} = Split(t, axis=2, split=[{parts}]) }}",
    )
    def guard(m: Match) -> Outcome:
        sizes, axis = m.s.attrs["split"], m["p"][m.s.attrs["axis"]]
        if not isinstance(sizes, tuple):
            return refuse("the sizes of the parts are not known")
        part = term("Split", m.x, axis=axis, split=sizes, output=output, outputs=len(sizes))
        return term("Transpose", part, perm=m["p"])

    return guard.renamed(f"split-of-transpose-{output}")


SPLIT = [_split(output) for output in range(4)]
