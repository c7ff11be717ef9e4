"""The BLAS library that NumPy is linked to (`runtime.blas`)."""

from runtime.blas import description, limited_to, thread_switch, threads

__all__ = ["description", "limited_to", "thread_switch", "threads"]
