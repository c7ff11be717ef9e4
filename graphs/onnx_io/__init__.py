"""ONNX models in and out: `load_onnx`, `save_onnx`, `to_model_proto`, `with_bodies`,
`writable`."""

from __future__ import annotations

from .files import load_onnx, proto_bytes, save_onnx
from .functions import inline_functions, with_bodies
from .writer import to_model_proto, writable

__all__ = ["inline_functions", "load_onnx", "proto_bytes", "save_onnx", "to_model_proto", "with_bodies",
           "writable"]
