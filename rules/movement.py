"""Movement rules: Transpose, Reshape and Expand that compose, cancel or do nothing."""

from __future__ import annotations

from .declare import Match, Outcome, refuse, rule

FAMILY = "movement"


@rule(
    family=FAMILY, exactness="exact",
    meaning="Two transposes in a row are one.",
    before="Transpose(Transpose(x, perm=p), perm=q)", after="Transpose(x, perm=r)",
    example="graph opset 17 (x: float32[2, 3, 4]) -> (y) "
            "{ t = Transpose(x, perm=[1, 0, 2]) y = Transpose(t, perm=[0, 2, 1]) }",
    near_miss="graph opset 17 (x: float32[2, 3, 4]) -> (y) { t = Transpose(x, perm=[1, 0, 2]) y = Relu(t) }",
)
def transpose_transpose(m: Match) -> Outcome:
    return {"r": tuple(m["p"][axis] for axis in m["q"])}


@rule(
    family=FAMILY, exactness="exact",
    meaning="A transpose that leaves every axis in place does nothing.",
    before="Transpose(x, perm=p)", after="x",
    example="graph opset 17 (x: float32[2, 3]) -> (y) { y = Transpose(x, perm=[0, 1]) }",
    near_miss="graph opset 17 (x: float32[3, 3]) -> (y) { y = Transpose(x, perm=[1, 0]) }",
)
def transpose_identity(m: Match) -> Outcome:
    return None if list(m["p"]) == list(range(m.x.rank)) else refuse("the axes change places")


@rule(
    family=FAMILY, exactness="exact",
    meaning="Only the last shape counts.",
    before="Reshape(Reshape(x, shape=s), shape=t)", after="Reshape(x, shape=t)",
    example="graph opset 17 (x: float32[n, 3, 4]) -> (y) { t = Flatten(x, axis=1) y = Reshape(t, shape=[0, 4, 3]) }",
    near_miss="graph opset 17 (x: float32[2, 3, 4]) -> (y) "
              "{ t = Transpose(x, perm=[1, 0, 2]) y = Reshape(t, shape=[2, 12]) }",
)
def reshape_reshape(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="A reshape to the shape that is there does nothing.",
    before="Reshape(x, shape=s)", after="x",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { y = Reshape(x, shape=[-1, 3]) }",
    near_miss="graph opset 17 (x: float32[n, 3]) -> (y) { y = Reshape(x, shape=[3, -1]) }",
)
def reshape_same(m: Match) -> Outcome:
    return None if m.x.shape == tuple(m["s"]) else refuse("the shape changes")


@rule(
    family=FAMILY, exactness="exact",
    meaning="A transpose that moves only axes of size 1 is a reshape.",
    before="Transpose(x, perm=p)", after="Reshape(x, shape=s)",
    example="graph opset 17 (x: float32[n, 1, 4]) -> (y) { y = Transpose(x, perm=[1, 0, 2]) }",
    near_miss="graph opset 17 (x: float32[n, 2, 4]) -> (y) { y = Transpose(x, perm=[1, 0, 2]) }",
)
def transpose_of_ones(m: Match) -> Outcome:
    perm = tuple(m["p"])
    moved = [axis for axis in perm if m.x.shape[axis] != 1]
    if moved != sorted(moved):
        return refuse("axes of more than one element change their order")
    return {"s": tuple(m.x.shape[axis] for axis in perm)}


@rule(
    family=FAMILY, exactness="exact",
    meaning="An Expand to the shape that is there does nothing.",
    before="Expand(x, shape=s)", after="x",
    example="graph opset 17 (x: float32[n, 3]) -> (y) { y = Expand(x, shape=[1, 1]) }",
    near_miss="graph opset 17 (x: float32[1, 3]) -> (y) { y = Expand(x, shape=[2, 3]) }",
)
def expand_same(m: Match) -> Outcome:
    return None if m.x.shape == tuple(m["s"]) else refuse("the shape changes")
