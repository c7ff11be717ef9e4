"""The tables about operators agree: every record has its rows, every row its record."""

from importlib import import_module

import onnx
import pytest

from cost_model import work
from graphs.canonical import default_of, plain, same_attribute
from graphs.operators import FAMILIES, REQUIRED, Operator, find, table
from runtime import kernels
from runtime.execute import CONTROL_FLOW

# Operators that onnx.reference runs, with the reason why a kernel of our own is not worth having.
WITHOUT_KERNEL: dict[tuple[str, str], str] = {}

RECORDS = list(table().values())
STANDARD = [each for each in RECORDS if not each.domain and each.standard]


def named(operator: Operator) -> str:
    return f"{operator.domain}.{operator.name}" if operator.domain else operator.name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_same_file_name_on_every_floor(family: str) -> None:
    for package in ("graphs.operators", "runtime.kernels", "cost_model.work"):
        import_module(f"{package}.{family}")


def test_every_operator_has_a_kernel() -> None:
    missing = {
        record.key for record in RECORDS
        if kernels.find(record.name, record.domain) is None and record.name not in CONTROL_FLOW
    }  # fmt: skip
    assert missing - set(WITHOUT_KERNEL) == set(), "write a kernel, or the reason why not into WITHOUT_KERNEL"
    assert set(WITHOUT_KERNEL) - missing == set(), "take these off WITHOUT_KERNEL"


@pytest.mark.parametrize("rows", [kernels.table, work.table], ids=["kernels", "work"])
def test_every_row_belongs_to_an_operator(rows: object) -> None:
    assert [key for key in rows() if find(key[1], key[0]) is None] == []  # type: ignore[operator]


@pytest.mark.parametrize("record", STANDARD, ids=named)
def test_versions_are_those_of_the_onnx_schemas(record: Operator) -> None:
    assert record.versions == tuple(sorted(set(record.versions)))
    for version in record.versions:
        assert onnx.defs.get_schema(record.name, version).since_version == version


@pytest.mark.parametrize("record", STANDARD, ids=named)
def test_attributes_are_those_of_the_newest_schema_and_the_static_inputs(record: Operator) -> None:
    schema = onnx.defs.get_schema(record.name, record.versions[-1])
    assert set(record.static) <= set(record.attrs)
    assert all(0 <= position < len(schema.inputs) for position in record.static.values())
    ours, theirs = set(record.attrs), set(schema.attributes) | set(record.static)
    assert ours <= theirs or record.write is not None, f"{ours - theirs} can not be written"
    assert theirs <= ours or record.read is not None, f"{theirs - ours} would be lost"


def test_attributes_of_contrib_operators_are_those_of_onnx_runtime() -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    schemas = {(each.domain, each.name): each for each in get_all_operator_schema()}
    contrib = [each for each in RECORDS if each.domain == "com.microsoft" or not each.standard]
    assert len(contrib) > 40
    for record in contrib:
        stated = schemas[record.key].attributes
        assert set(stated) == set(record.attrs), record.key
        for name, attribute in stated.items():
            assert attribute.required == (record.attrs[name] is REQUIRED), (record.key, name)
            if attribute._default_value:
                proto = onnx.AttributeProto.FromString(attribute._default_value)
                value = plain(onnx.helper.get_attribute_value(proto))
                value = value.decode() if isinstance(value, bytes) else value
                assert same_attribute(value, default_of(record, name)), (record.key, name)
