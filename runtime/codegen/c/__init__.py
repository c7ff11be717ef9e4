"""The C reading of the kernel language: fused kernels for the CPU, compiled by the system's C compiler."""

from .compiler import REFUSED, not_compiled, passed_over, unavailable
from .fused import FusedKernel, plan_of
from .tiles import Packs
from .views import NotFusable

__all__ = ["REFUSED", "FusedKernel", "NotFusable", "Packs", "not_compiled", "passed_over", "plan_of", "unavailable"]
