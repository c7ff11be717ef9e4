"""Movement rules: Transpose, Reshape and Expand that compose, cancel or do nothing."""

from __future__ import annotations

from graphs.dims import exact_quotient, mul

from .declare import Match, Outcome, Rule, refuse, rule, term

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


# Blocks of pixels ------------------------------------------------------------------------------------------


WITH_KERNELS = ("float32", "float16", "float64")  # of DepthToSpace and SpaceToDepth in ONNX Runtime, at every opset


def _blocks(op: str, mode: str, perm: tuple[int, ...], inner: str, outer: str) -> Rule:
    head = f"graph opset 17 (x: float32[n, {'8, 3, 5' if op == 'DepthToSpace' else '2, 6, 10'}]) -> (y) {{ "
    turn = f"t = Reshape(x, shape={inner}) u = Transpose(t, perm=%s) y = Reshape(u, shape={outer}) }}"

    @rule(
        family=FAMILY, exactness="exact",
        meaning=f"Blocks of pixels taken apart, moved and joined are {op}" + (f" ({mode})." if mode else "."),
        before=f"Reshape(Transpose(Reshape(x, shape=s), perm=[{', '.join(map(str, perm))}]), shape=t)",
        example=head + turn % list(perm), near_miss=head + turn % [0, 1, 3, 2, 4, 5],
    )
    def guard(m: Match) -> Outcome:
        if m.x.rank != 4 or len(m["s"]) != 6 or len(m["t"]) != 4 or m.x.dtype not in WITH_KERNELS:
            return refuse("not pictures taken apart into blocks, or of a type that runtimes move by other means only")
        parts = tuple(m["s"])
        block = parts[{"DCR": 1, "CRD": 2, "": 3}[mode]]
        if not isinstance(block, int) or block < 2:
            return refuse("the size of the blocks is not known")
        batch, channels, height, width = m.x.shape if op == "DepthToSpace" else m["t"]
        planes = exact_quotient(channels, block * block)
        wanted = {"DCR": (batch, block, block, planes, height, width),
                  "CRD": (batch, planes, block, block, height, width),
                  "": (batch, planes, height, block, width, block)}[mode]
        joined = (batch, planes, mul(height, block), mul(width, block))
        if planes is None or parts != wanted or (m["t"] if op == "DepthToSpace" else m.x.shape) != joined:
            return refuse(f"what is taken apart and joined are no blocks of {block} pixels")
        return term(op, m.x, blocksize=block, mode=mode) if mode else term(op, m.x, blocksize=block)

    return guard.renamed("blocks-as-" + ("depth-to-space-" + mode.lower() if mode else "space-to-depth"))


BLOCKS = [_blocks("DepthToSpace", "DCR", (0, 3, 4, 1, 5, 2), "[0, 2, 2, 2, 3, 5]", "[0, 2, 6, 10]"),
          _blocks("DepthToSpace", "CRD", (0, 1, 4, 2, 5, 3), "[0, 2, 2, 2, 3, 5]", "[0, 2, 6, 10]"),
          _blocks("SpaceToDepth", "", (0, 3, 5, 1, 2, 4), "[0, 2, 3, 2, 5, 2]", "[0, 8, 3, 5]")]


@rule(
    family=FAMILY, exactness="exact",
    meaning="Blocks of pixels moved into channels and back are where they were.",
    before='DepthToSpace(SpaceToDepth(x, blocksize=b), blocksize=b, mode="DCR")', after="x",
    example="graph opset 17 (x: float32[n, 2, 6, 10]) -> (y) "
            "{ t = SpaceToDepth(x, blocksize=2) y = DepthToSpace(t, blocksize=2) }",
    near_miss="graph opset 17 (x: float32[n, 2, 6, 10]) -> (y) "
              "{ t = SpaceToDepth(x, blocksize=2) y = DepthToSpace(t, blocksize=2, mode=\"CRD\") }",
)
def blocks_into_channels_and_back(m: Match) -> Outcome:
    return None


@rule(
    family=FAMILY, exactness="exact",
    meaning="Channels moved into blocks of pixels and back are where they were.",
    before='SpaceToDepth(DepthToSpace(x, blocksize=b, mode="DCR"), blocksize=b)', after="x",
    example="graph opset 17 (x: float32[n, 8, 3, 5]) -> (y) "
            "{ t = DepthToSpace(x, blocksize=2) y = SpaceToDepth(t, blocksize=2) }",
    near_miss="graph opset 17 (x: float32[n, 64, 4, 4]) -> (y) "
              "{ t = DepthToSpace(x, blocksize=4) y = SpaceToDepth(t, blocksize=2) }",
)
def channels_into_blocks_and_back(m: Match) -> Outcome:
    return None
