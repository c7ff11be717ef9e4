"""One candidate: its kernel generated, checked against the unfused graph, and measured beside it, once per device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_model import protocol
from cost_model.fingerprint import Fingerprint, egraft_cpu
from graphs.errors import EgraftError
from graphs.ir import Graph
from runtime.blas import limited_to
from runtime.codegen.c import FusedKernel, NotFusable, Packs
from runtime.codegen.c.check import draws, fault
from runtime.codegen.c.compiler import identity
from runtime.codegen.c.fused import Plan, plan_of
from runtime.codegen.c.views import NotCompiled
from runtime.execute import Context
from runtime.fusion import constant_inputs
from runtime.program import Program

MOST_CHECKED = 1 << 16  # elements of an input that the check runs on, where sizes can be made smaller
_SMALL = (19, 5)  # more than one block of channels, and fewer than one
# Two sets are as fast then, and what the product reads is given up before the other one writes.
APART = "a product and a kernel that runs after all of it"
LOOK = protocol.Settings(budget=0.12, quick_rounds=7, max_rounds=40)
LONGER = protocol.Settings(budget=0.8, quick_rounds=7, max_rounds=200)  # where the first look did not tell
Kind = Callable[[Graph, Mapping[str, tuple[int, ...]]], tuple[object, ...]]  # what a kernel is at some sizes


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the kernel and of its nodes one by one. `verdict` is that of the comparison, or `faulty` (the check
    found what `note` says), `crashed` (so did the process that tried it) or `impossible` (there is no kernel, for the
    reason in `note`). `variant`: how a GPU launches it, if not as usual."""

    fused: float
    unfused: float
    verdict: str
    note: str = ""
    variant: str = ""

    @property
    def gain(self) -> float:
        """Seconds that the kernel saves, 0 where that is not certain."""
        return max(0.0, self.unfused - self.fused) if self.verdict == "faster" else 0.0


def shapes_of(body: Graph) -> dict[str, tuple[int, ...]]:
    """The shapes of a body's inputs. Raises NotFusable where one is not known."""
    found = {}
    for name in body.inputs:
        type_ = body.type_of(name)
        if type_ is None or not type_.is_static:
            raise NotFusable(f"the shape of {name} is unknown")
        found[name] = type_.shape
    return found  # type: ignore[return-value]


@lru_cache(maxsize=1)
def fingerprint() -> Fingerprint:
    """Under which kernels are filed: the executor's, with the compiler's."""
    return Fingerprint.of({**dict(egraft_cpu().fields), "compiler": identity()})


def measured_now(body: Graph, exact: bool, threads: int) -> tuple[Measured, Sequence[float]] | None:
    """Generate, check and time a candidate in this process; with the samples of the kernel. None where the compiler did
    not answer: another time it may."""
    kernel = FusedKernel(body, exact)
    try:
        shapes = shapes_of(body)
        if not plan_of(body, shapes).in_tiles:
            return Measured(math.inf, 0.0, "impossible", APART), ()
        wrong = fault(kernel, small_sizes(body, shapes))
    except NotCompiled:
        return None
    except NotFusable as reason:
        return Measured(math.inf, 0.0, "impossible", str(reason)), ()
    except (EgraftError, ValueError) as reason:  # sizes that the shortened shapes do not fit, or a compiler's refusal
        return Measured(math.inf, 0.0, "impossible", f"not checked: {reason}"[:300]), ()
    if wrong is not None:
        return Measured(math.inf, 0.0, "faulty", wrong), ()
    arrays = next(iter(draws(body, shapes)))[1]
    program = Program(body, Context.of(body))
    fused = kernel.bound(arrays, threads, Packs(constant_inputs(body)))  # as it runs among others

    def unfused() -> None:
        program.run(arrays)

    with np.errstate(all="ignore"), limited_to(1):  # as in a session with fused nodes
        for settings in (LOOK, LONGER):
            found = protocol.compare({"unfused": unfused, "fused": fused}, "unfused", threads, settings)
            if found.is_clear():
                break
    mine, other = found.results["fused"], found.results["unfused"]
    samples = [each for each in found.samples["fused"].by(found.clock) if each is not None]
    seconds = min(max(other.seconds * mine.ratio, min(samples)), max(samples))
    return Measured(seconds, other.seconds, mine.verdict), samples


def small_sizes(body: Graph, shapes: Mapping[str, tuple[int, ...]],
                kind: Kind | None = None) -> dict[str, tuple[int, ...]]:
    """Sizes to check at: as they are if small, else with large ones made small everywhere, as far as the body allows
    and the kernel does the same.

    The kernel's text is the same, since it holds no sizes. The innermost size stays: vectors and blocks are cut there;
    and so do those of constants, which have theirs. Where sizes stay large because small operands would be read in
    another way, that is given up: both ways are in the engine's own tests.
    """
    for each in (kind,) if kind else (_kind, _rough_kind):
        found = _smaller(body, shapes, each)
        if _largest(found) <= MOST_CHECKED:
            break
    return found if found == shapes or _fits(body, found) else dict(shapes)


def _largest(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return max(map(math.prod, shapes.values()), default=0)


def _smaller(body: Graph, shapes: Mapping[str, tuple[int, ...]], kind: Kind) -> dict[str, tuple[int, ...]]:
    found, whole = dict(shapes), kind(body, shapes)
    largest = max(shapes.values(), key=math.prod, default=())
    held = {largest[-1] if largest else 0, *_fixed(body)}
    for small in _SMALL:
        for size in sorted({dim for shape in found.values() for dim in shape if dim > small} - held, reverse=True):
            if _largest(found) <= MOST_CHECKED:
                break
            tried = {name: tuple(small if dim == size else dim for dim in shape) for name, shape in found.items()}
            try:
                if kind(body, tried) == whole:
                    found = tried
            except (NotFusable, EgraftError):  # another size in the body depends on this one
                continue
    return found


def _fits(body: Graph, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the nodes run at these sizes: types alone do not tell that a bias is as long as it has to be."""
    try:
        with np.errstate(all="ignore"):
            Program(body, Context.of(body)).run(next(iter(draws(body, shapes)))[1])
    except (EgraftError, ValueError):
        return False
    return True


def _fixed(body: Graph) -> set[int]:
    """Sizes of what the body holds, and of windows."""
    sizes = {dim for constant in body.constants.values() for dim in constant.shape}
    for node in body.nodes:
        weights = body.type_of(node.inputs[1]) if node.op == "Conv" else None
        if weights is not None and weights.shape is not None:
            sizes |= {dim for dim in weights.shape[2:] if isinstance(dim, int)}
        parts = node.attrs.get("split")
        if isinstance(parts, tuple):
            sizes |= {sum(parts), *parts}
    return sizes


def _kind(body: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[object, ...]:
    """What parts of the engine a kernel uses at these sizes, and how operands of its product are read."""
    plan = plan_of(body, shapes)
    return (*_parts_of(plan), plan.product.ways(constant_inputs(body)) if plan.product else ())


def _rough_kind(body: Graph, shapes: Mapping[str, tuple[int, ...]]) -> tuple[object, ...]:
    """What parts of the engine it uses."""
    return _parts_of(plan_of(body, shapes))


def _parts_of(plan: Plan) -> tuple[object, ...]:
    made, turned = plan.product, [len(each.turned) for each in (*plan.before, *plan.launches)]
    if made is None:
        return plan.recurrent.kind if plan.recurrent else (turned,)
    operands = made.operands
    return (made.turned, made.transformed is None, type(operands.lanes), operands.image is None, bool(made.padding),
            made.then is None, made.before is None, plan.in_tiles, turned)
