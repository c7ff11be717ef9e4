"""Dataflow graphs: values, nodes, types, operator records, and the forms that graphs are read from and written to."""

from __future__ import annotations

from .constants import Constant
from .ir import Graph, NameSupply, Node
from .types import OtherType, TensorType, Type

__all__ = ["Constant", "Graph", "NameSupply", "Node", "OtherType", "TensorType", "Type"]
