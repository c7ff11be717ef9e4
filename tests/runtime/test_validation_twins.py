"""How the weights and inputs of a twin are moved: of tables only the rows that are looked up."""

import ml_dtypes
import numpy as np
import pytest

from graphs.constants import Constant
from graphs.text import parse_graph
from runtime.validation import twins
from runtime.validation.changes import Changes
from runtime.validation.twins import TINY, Twin, TwinProgram, looked_up

TABLES = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64), np.dtype(ml_dtypes.bfloat16)]
TWINS = [Twin(False, 0), Twin(True), Twin(True, 1, step=TINY), Twin(True, 2), Twin(True, 0, changed=True)]


@pytest.mark.parametrize("twin", TWINS, ids=str)
@pytest.mark.parametrize("dtype", TABLES, ids=str)
@pytest.mark.parametrize("integral", [False, True])
def test_only_rows_that_are_looked_up_are_varied(twin: Twin, dtype: np.dtype, integral: bool,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).standard_normal((700, 3, 50)).astype(dtype)
    graph = parse_graph('graph "g" opset 17 (i: int64[n, 2], t: float32[700, 3, 50]) -> (y) { y = Gather(t, i) }')
    graph.inputs.remove("t")
    graph.types.pop("t", None)
    graph.constants["t"] = Constant.of(np.rint(table) if integral else table)
    indices = np.array([[0, 699], [-1, -700], [350, 350]], np.int64)
    found = []
    for least in (1 << 40, 1):
        monkeypatch.setattr(twins, "_TABLE_ELEMENTS", least)
        for changed in (frozenset(), frozenset({id(graph.constants["t"])})):
            program = TwinProgram(graph, twin, None, 0, frozenset({"i"}), Changes(changed))
            found.append(program.run({"i": indices})["y"])
    for whole, rows in zip(found[:2], found[2:]):
        assert whole.dtype == rows.dtype and whole.shape == rows.shape == (3, 2, 3, 50)
        assert whole.tobytes() == rows.tobytes()


def test_a_table_that_is_read_otherwise_too_is_varied_as_a_whole() -> None:
    text = ('graph "g" opset 17 (i: int64[n], t: float32[2000, 600], x: float32[n, 2000]) -> (y, z) '
            "{ y = Gather(t, i)\n %s }")
    lines = {"z = Gather(t, i)": {"t"}, "z = MatMul(x, t)": set(), "z = Gather(t, i, axis=1)": set()}
    for line, expected in lines.items():
        graph = parse_graph(text % line)
        graph.inputs.remove("t")
        graph.constants["t"] = Constant.of(np.zeros((2000, 600), np.float32))
        assert looked_up(graph) == expected
