"""Every version a record names: what `write` gives has a place in the ONNX schema, and `read` gives it back."""

from __future__ import annotations

from importlib import import_module

import onnx
import pytest

from graphs.operators import Operator

FAMILIES = ("convolution", "normalization", "recurrent", "attention", "quantization", "control_flow", "random")
# Values for required attributes.
REQUIRED = {"kernel_shape": (2, 2), "size": 3, "num_groups": 2, "scales": (1.0, 2.0), "shape": (2,), "body": None,
            "then_branch": None, "else_branch": None, "num_scan_inputs": 1}  # fmt: skip
ALL = [(operator, version) for family in FAMILIES
       for operator in import_module(f"graphs.operators.{family}").OPERATORS for version in operator.versions]


@pytest.mark.parametrize(("operator", "version"), ALL, ids=[f"{o.name}-{v}" for o, v in ALL])
def test_write_and_read(operator: Operator, version: int) -> None:
    schema = onnx.defs.get_schema(operator.name, version, operator.domain)
    assert schema.since_version == version
    inputs = [formal.name for formal in schema.inputs]
    attrs = {name: REQUIRED.get(name, default) for name, default in operator.attrs.items()}
    if operator.name in ("Softmax", "LogSoftmax", "Hardmax") and version < 11:
        attrs |= {"axis": 1, "flatten": 1}
    if operator.name == "Dropout" and version < 10:
        attrs["legacy_mask"] = 1
    written = attrs if operator.write is None else operator.write(dict(attrs), version)
    assert written is not None
    for name, value in written.items():
        as_input = name in operator.static and len(inputs) > operator.static[name]
        assert name in schema.attributes or as_input or value is None, f"{name} has no place"
    given = {name: value for name, value in written.items() if value is not None}
    back = given if operator.read is None else operator.read(dict(given), version)
    assert back is not None
    again = {name: back.get(name, default) for name, default in attrs.items()}
    assert again == attrs
    assert set(back) <= set(operator.attrs)


@pytest.mark.parametrize(("operator", "version"), ALL, ids=[f"{o.name}-{v}" for o, v in ALL])
def test_read_of_schema_defaults(operator: Operator, version: int) -> None:
    """A node that gives no attribute means the defaults of its own version."""
    schema = onnx.defs.get_schema(operator.name, version, operator.domain)
    defaults = {name: onnx.helper.get_attribute_value(attribute.default_value)
                for name, attribute in schema.attributes.items() if attribute.default_value.name}
    defaults = {name: value.decode() if isinstance(value, bytes) else value for name, value in defaults.items()}
    for name, value in REQUIRED.items():
        if name in schema.attributes and schema.attributes[name].required:
            defaults[name] = value
    if "is_test" in schema.attributes:
        defaults["is_test"] = 1
    if "consumed_inputs" in schema.attributes:
        defaults["consumed_inputs"] = [0]
    read = dict(defaults) if operator.read is None else operator.read(dict(defaults), version)
    assert read is not None
    unknown = set(read) - set(operator.attrs)
    assert not unknown, f"read leaves {unknown}"
    for name, value in defaults.items():  # an old default that differs must have been written down
        if name in operator.attrs and operator.attrs[name] != value:
            assert name in read
