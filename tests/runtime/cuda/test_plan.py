"""The memory plan: what is alive at one time does not overlap, what nobody reads is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.builder import Builder
from graphs.ir import Graph, Node
from runtime.arena import ALIGNMENT, Span, aligned, arrange
from runtime.codegen.kernel import Kernel, Parameter
from runtime.cuda import lowering
from runtime.cuda.emitter import Emitter, NoKernel
from runtime.cuda.emulated import EmulatedDevice
from runtime.cuda.lower import Values
from runtime.cuda.plan import Launch, OnHost, Plan, plan_graph
from runtime.cuda.tensor import Tensor
from runtime.execute import Context

spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 12), st.integers(0, 6)).map(
    lambda each: Span(each[0], each[1], each[1] + each[2])), max_size=30)


@given(spans)
def test_spans_that_are_needed_together_do_not_overlap(blocks: list[Span]) -> None:
    offsets, size = arrange(blocks)
    assert all(offset % ALIGNMENT == 0 and offset + aligned(block.size) <= size
               for offset, block in zip(offsets, blocks) if block.size)
    for index, (at, a) in enumerate(zip(offsets, blocks)):
        for other, b in list(zip(offsets, blocks))[:index]:
            together = a.first <= b.last and b.first <= a.last and a.size and b.size
            assert not together or at + a.size <= other or other + b.size <= at
    most = max((sum(aligned(each.size) for each in blocks if each.first <= time <= each.last) for time in range(20)),
               default=0)
    assert most <= size <= sum(aligned(each.size) for each in blocks)


def test_a_gap_is_used_before_the_arena_grows() -> None:
    offsets, size = arrange([Span(1024, 0, 9), Span(512, 0, 3), Span(512, 4, 9), Span(256, 5, 6)])
    assert size == 1024 + 512 + 256 and offsets[1] == offsets[2] == 1024


def _kernel(count: int, in_place: bool) -> Kernel:
    inputs = tuple(Parameter(f"x{index}", "float32") for index in range(count))
    return Kernel("eg_test", (*inputs, Parameter("y", "float32", True)), "", 1, in_place=in_place)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Kernels on tensors and views of tensors that came before; some results are read by nobody."""
    plan = Plan()
    values: list[Tensor] = []
    for index in range(draw(st.integers(1, 3))):
        plan.inputs[f"x{index}"] = Tensor.new("float32", (draw(st.sampled_from([1, 64, 100, 128])),))
    values.extend(plan.inputs.values())
    for _ in range(draw(st.integers(1, 14))):
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        read = [each.viewed((each.shape[0], 1), (1, 1)) if draw(st.booleans()) else each for each in read]
        shape = draw(st.sampled_from([read[0].shape, (64,), (300,)]))
        made = Tensor.new("float32", shape)
        plan.launch(_kernel(len(read), draw(st.booleans())), [*read, made])
        values.append(made if made.rank == 1 else made.viewed((made.size,), (1,)))
    plan.outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
    return plan


@settings(max_examples=300, deadline=None)
@given(plans())
def test_no_instruction_reads_what_another_has_overwritten(plan: Plan) -> None:
    plan.prune()
    layout = plan.layout()
    holds = np.full(layout.size, -1)  # the storage whose content each byte of the arena is

    def region(tensor: Tensor) -> np.ndarray:
        assert tensor.storage is not None
        start = layout.offsets[tensor.storage.number]
        return holds[start : start + tensor.storage.size]

    def number(tensor: Tensor) -> int:
        assert tensor.storage is not None
        return tensor.storage.number

    for each in plan.inputs.values():
        region(each)[:] = number(each)
    for _ in range(2):  # a replay finds its inputs where they were
        for start, size in layout.rest:
            holds[start : start + size] = -1
        for instruction, dying in zip(plan.instructions, layout.dying):
            assert isinstance(instruction, Launch)
            *read, made = instruction.tensors
            assert all((region(each) == number(each)).all() for each in read)
            region(made)[:] = number(made)
            for other in read:  # in place, only on an input of the same size that nobody needs any more
                if not (region(other) == number(other)).all():
                    assert instruction.kernel.in_place and other.shape == made.shape
            for start, size in dying:
                holds[start : start + size] = -1
        assert all((region(each) == number(each)).all() for each in plan.outputs)
    assert layout.size <= layout.without_reuse


def _planned(graph: Graph, **shapes: tuple[int, ...]) -> Plan:
    values = Values(graph, {}, Context.of(graph))
    return plan_graph(graph, {name: ("float32", shape) for name, shape in shapes.items()}, values)


def test_a_chain_needs_no_more_than_its_input_and_one_block() -> None:
    b = Builder("chain", opset=21)
    x = b.input("x", "float32", [1000])
    value = x
    for _ in range(5):
        value = b.Add(value, x)
    b.output(value, "y")
    layout = _planned(b.graph(), x=(1000,)).layout()
    assert layout.size == 2 * aligned(4000) and layout.without_reuse == 6 * aligned(4000)


def test_an_input_stays_for_the_next_run() -> None:
    b = Builder("kept", opset=21)
    x = b.input("x", "float32", [1000])
    b.output(b.Add(x, np.ones(1000, np.float32)), "y")
    layout = _planned(b.graph(), x=(1000,)).layout()
    assert layout.size == 2 * aligned(4000) and layout.dying == [[]]


@pytest.fixture
def fails_midway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mul is lowered by a function that gives up after it has emitted a kernel."""
    add = lowering.find("Add")
    assert add is not None

    def midway(emitter: Emitter) -> None:
        add(emitter)
        raise NoKernel("only in this test")

    table = lowering.table()
    monkeypatch.setitem(table, ("", "Mul"), midway)


@pytest.mark.usefixtures("fails_midway")
def test_what_a_lowering_emitted_before_it_gave_up_is_taken_back() -> None:
    b = Builder("midway", opset=21)
    x = b.input("x", "float32", [8])
    b.output(b.Mul(b.Add(x, x), x), "y")
    plan = _planned(b.graph(), x=(8,))
    assert [type(each) for each in plan.instructions] == [Launch, OnHost]
    assert plan.on_host == ["Mul 'y': only in this test"] and plan.copied_bytes == 3 * 32


def test_kernels_whose_results_nobody_reads_are_dropped() -> None:
    plan = Plan()
    x = plan.inputs["x"] = Tensor.new("float32", (8,))
    unused, used, part = (Tensor.new("float32", (8,)) for _ in range(3))
    plan.launch(_kernel(1, False), [x, unused])
    plan.launch(_kernel(1, False), [x, used])
    plan.launch(_kernel(1, False), [unused, part])
    plan.launch(_kernel(1, False), [x, used])  # writes another part of it
    plan.outputs = [used]
    plan.prune()
    assert [each.tensors[-1] for each in plan.instructions] == [used, used]


def test_a_random_node_runs_even_if_nobody_reads_it() -> None:
    plan = Plan()
    node = Node("RandomNormal", (), ("r",), {"shape": (2,), "dtype": 1})
    made = Tensor.new("float32", (2,))
    plan.instructions.append(OnHost(node, lambda inputs: inputs, (), (made,)))
    plan.outputs = [Tensor.known(np.ones(1))]
    plan.prune()
    assert len(plan.instructions) == 1


def test_the_emulation_notices_a_plan_that_forgets_too_early() -> None:
    device = EmulatedDevice()
    memory = device.allocate(64)
    device.write(memory, 0, np.ones(16, np.float32))
    device.forget(memory, 0, 64)
    with pytest.raises(Exception, match="nothing has written"):
        device.read(memory, 0, np.dtype(np.float32), (16,))
