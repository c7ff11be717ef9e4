"""egraft's executor for GPUs: nodes lowered to generated kernels, matrix products of the library, and views."""
