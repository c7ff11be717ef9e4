"""Every operator has a gradient row or a reason why not."""

import pytest

from graphs.operators import FAMILIES, Operator, find, table
from runtime.gradients.rows import absent
from runtime.gradients.rows import table as rows


@pytest.mark.parametrize("record", table().values(), ids=lambda record: record.name)
def test_every_operator_has_a_row_or_a_reason(record: Operator) -> None:
    has_row, reason = record.key in rows(), absent().get(record.key)
    assert has_row or reason, "write a gradient row, or into ABSENT of its family why there is none"
    assert not (has_row and reason), "take it off ABSENT"


def test_rows_and_reasons_belong_to_operators() -> None:
    assert FAMILIES
    assert [key for key in (*rows(), *absent()) if find(key[1], key[0]) is None] == []
