"""Training as graphs: losses, optimizers, and one graph for a whole training step. See `docs/autodiff.md`."""

from __future__ import annotations

from .builder import Assignment, TrainingBuilder, TrainingSession
from .losses import add_loss, mean_squared_error, softmax_cross_entropy
from .optimizers import SGD, Adam, AdamW, Muon, Optimizer
from .step import initial_state, next_state, training_step

__all__ = ["SGD", "Adam", "AdamW", "Assignment", "Muon", "Optimizer", "TrainingBuilder", "TrainingSession", "add_loss",
           "initial_state", "mean_squared_error", "next_state", "softmax_cross_entropy", "training_step"]
