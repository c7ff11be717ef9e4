"""Automatic differentiation: a graph in, a graph out. `docs/autodiff.md` tells how it is used and what it promises.

`gradients` is reverse mode, `jvp` forward mode. Both read one table: an operator has one `Row` in the file of its
family, as kernels have. To add rows, see `rows.py`; what a row may use is `site.py`.
"""

from __future__ import annotations

from .forward import jvp
from .reverse import gradients

__all__ = ["gradients", "jvp"]
