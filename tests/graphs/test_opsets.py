"""Every operator version that onnx knows from opset 7 on is understood or stays opaque; none is taken for another."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from graphs.canonical import newest_opset, same_attribute, version_at
from graphs.ir import Node
from graphs.operators import REQUIRED, find, table
from graphs.versions import canonicalize, schema_default, write_node
from scripts import opsets_page

KIND = onnx.defs.OpSchema.AttrType
OPSETS = range(opsets_page.OLDEST, newest_opset() + 1)
# What an attribute may be, one value that is no default for each kind.
OTHER = {KIND.INT: 1, KIND.INTS: (1, 1), KIND.FLOAT: 0.75, KIND.FLOATS: (0.75,), KIND.STRING: "nearest"}


def node_at(domain: str, name: str, opset: int, changed: str = "") -> Node | None:
    """A node with the attributes that a schema requires, and one more that is changed; None where one has no value."""
    found = onnx.defs.get_schema(name, opset, domain)
    attrs: dict[str, object] = {}
    for each in found.attributes.values():
        if each.required or each.name == changed:
            if each.type not in OTHER:
                return None
            attrs[each.name] = OTHER[each.type]
    inputs = tuple(f"x{index}" for index in range(max(found.min_input, 1)))
    outputs = tuple(f"y{index}" for index in range(max(found.min_output, 1)))
    return Node(name, inputs, outputs, attrs, domain)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_version_is_the_one_in_force_or_opaque(opset: int) -> None:
    for record in table().values():
        if record.standard and not record.domain:
            found, version = opsets_page.schema(record.name, opset), version_at(record.name, "", opset)
            is_read = found is not None and found.since_version in record.versions
            assert version == (found.since_version if is_read else 0)


def test_an_opset_that_onnx_does_not_know_is_opaque() -> None:
    assert all(version_at(record.name, "", newest_opset() + 1) == 0 for record in table().values()
               if record.standard and not record.domain)


@pytest.mark.parametrize("opset", OPSETS)
def test_no_attribute_is_lost(opset: int) -> None:
    """A node that gives an attribute another value than the default is written with that value again, or it stays as
    it was."""
    checked, lost = 0, []
    for name in sorted({each.name for each in onnx.defs.get_all_schemas_with_history() if not each.domain}):
        found = opsets_page.schema(name, opset)
        if found is None or name == "Constant":
            continue
        for changed in ["", *found.attributes]:
            node = node_at("", name, opset, changed)
            if node is None:
                continue
            stated = dict(node.attrs)
            canonicalize(node, opset, lambda _: None)
            if node.is_opaque:
                assert node.attrs == stated
                continue
            record = find(name)
            assert record is not None and node.version == found.since_version
            if any(value is REQUIRED for value in node.attrs.values()):
                continue
            written = write_node(node, opset, lambda _: None)
            if isinstance(written, str):  # types decide how it is written
                continue
            given = {key: value for key, value, _ in written.attrs}
            for key, value in stated.items():
                default = schema_default(found.attributes[key])
                if not same_attribute(given.get(key, default), value):
                    lost.append((name, key, value, given))
            checked += 1
    assert not lost and checked > 100


def test_the_page_is_up_to_date() -> None:
    written = Path(opsets_page.OUT).read_text(encoding="utf-8")
    if f"onnx {onnx.__version__})" not in written:
        pytest.skip("it was written with another onnx")
    assert written == opsets_page.page(), "run: python -m scripts.opsets_page"
