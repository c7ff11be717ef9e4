"""Generated kernels: one text in the kernel language (`language.h`), read as CUDA or by the checking emulation."""

from .kernel import Kernel, Parameter

__all__ = ["Kernel", "Parameter"]
