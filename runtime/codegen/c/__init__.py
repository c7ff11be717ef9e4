"""The C reading of the kernel language: fused kernels for the CPU, compiled by the system's C compiler."""

from .compiler import unavailable
from .fused import FusedKernel, plan_of
from .views import NotFusable

__all__ = ["FusedKernel", "NotFusable", "plan_of", "unavailable"]
