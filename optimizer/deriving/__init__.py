"""Models made of models: a model's gradients (`egraft grad`) and its training step (`egraft train-step`).

The graphs are built by `runtime.gradients` and `runtime.training`; here are the options, the choice of loss and
names, the validation of what was built, and the report. docs/autodiff.md tells how it is used.
"""

from __future__ import annotations

from .options import KINDS, Deriving, GradOptions, TrainOptions
from .run import Derived, derive, grad, train_step

__all__ = ["KINDS", "Derived", "Deriving", "GradOptions", "TrainOptions", "derive", "grad", "train_step"]
