"""egraft's runtime as an ONNX backend (`onnx.backend.base.Backend`), so that ONNX's own test suite can run it.

    import onnx.backend.test, runtime.onnx_backend
    tests = onnx.backend.test.BackendTest(runtime.onnx_backend, __name__)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

import graphs
from graphs.ir import Graph
from graphs.types import TensorType

from .session import Session


class EgraftRep(BackendRep):
    """A prepared model."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.session = Session(graph, seed=0)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs for inputs by position or by name. Absent optional inputs may be left out at the end."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = inputs if isinstance(inputs, Sequence) and not isinstance(inputs, np.ndarray) else [inputs]
            names = [name for name in self.graph.inputs if name not in self.graph.defaults] \
                if len(given) < len(self.graph.inputs) else self.graph.inputs
            feeds = {name: self._value(name, value) for name, value in zip(names, given)}
        return tuple(self.session.run(feeds).values())

    def _value(self, name: str, value: Any) -> Any:
        """Strings arrive as fixed-width arrays, and numbers as NumPy scalars."""
        type_ = self.graph.types.get(name) or self.graph.declared.get(name)
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, np.ndarray) and isinstance(type_, TensorType) and type_.dtype == "string":
            return value.astype(object)
        return value


class EgraftBackend(Backend):
    """`prepare`, `run_model`, `run_node` and `supports_device` on the CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> EgraftRep:
        """Read and prepare a model. Raises egraft's errors for what it cannot read or run."""
        super().prepare(model, device, **kwargs)
        return EgraftRep(graphs.load(model.SerializeToString()))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU",
                 outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
                 **kwargs: Any) -> tuple[Any, ...]:
        """Run a node on arrays, or on a mapping of its input names to arrays."""
        names = [name for name in node.input if name]
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs))
        types = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype),
                                               np.asarray(value).shape) for name, value in feeds.items()]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", types, outputs)
        opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        found = EgraftRep(graphs.load(model.SerializeToString())).run(feeds)  # outputs have no type to be checked
        return namedtupledict("Outputs", [name for name in node.output if name])(*found)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """The CPU."""
        return Device(device).type == DeviceType.CPU


prepare = EgraftBackend.prepare
run_node = EgraftBackend.run_node
run_model = EgraftBackend.run_model
supports_device = EgraftBackend.supports_device
is_compatible = EgraftBackend.is_compatible
