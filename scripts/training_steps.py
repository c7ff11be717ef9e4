"""Training steps of the zoo, for measurements: BERT of two layers, a small ResNet and a small GPT, with AdamW."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from graphs import zoo
from graphs.inference import infer
from graphs.ir import Graph
from runtime.feeds import draw
from runtime.training import AdamW, add_loss, training_step

RATE = 1e-3
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class TrainingCase:
    """A model (the forward pass) and its loss, of the first output: the mean squared error, or the cross-entropy of
    integer labels."""

    model: Graph
    labels: bool
    sizes: Mapping[str, int]

    def step(self) -> Graph:
        """The training step."""
        kind = "softmax-cross-entropy" if self.labels else "mse"
        graph = add_loss(self.model, kind, labels=self.labels)
        return training_step(graph, graph.outputs[-1], AdamW(RATE))

    def feeds(self, graph: Graph, seed: int = 0) -> Feeds:
        """Inputs of the step; parameters and their state as they are at first."""
        found = draw(graph, seed, dict(self.sizes))
        return {name: graph.defaults[name].array if name in graph.defaults else array for name, array in found.items()}


def in_training(graph: Graph) -> Graph:
    """A copy whose BatchNormalizations use the statistics of the batch; the running ones are further outputs."""
    copy = graph.copy()
    for index, node in enumerate(copy.nodes):
        if node.op == "BatchNormalization":
            names = (f"running_mean_{index}", f"running_var_{index}")
            copy.nodes[index] = replace(node, attrs={**node.attrs, "training_mode": 1},
                                        outputs=(node.outputs[0], *names))
            copy.outputs += names
    infer(copy)
    return copy


def bert(batch: int = 8, sequence: int = 128, **sizes: object) -> TrainingCase:
    """BERT of two layers of width 256 (one of the small ones that Google published), with a mean squared error of its
    pooled output."""
    sizes = {"vocabulary": 2000, "hidden": 256, "heads": 4, "intermediate": 1024, **sizes}
    graph = zoo.build("bert-2", **sizes)
    graph.outputs = ["pooler_output"]
    return TrainingCase(graph, False, {"batch": batch, "sequence": sequence})


def resnet(batch: int = 16, image: int = 64, width: int = 32) -> TrainingCase:
    """A residual network of four blocks, BatchNormalization in training mode, with a cross-entropy of labels."""
    graph = in_training(zoo.build("resnet18", blocks=(2, 2), width=width, image=image, classes=10))
    return TrainingCase(graph, True, {"batch": batch})


def gpt(batch: int = 8, sequence: int = 128, **sizes: object) -> TrainingCase:
    """A GPT of four layers, with the cross-entropy of the next token."""
    return TrainingCase(zoo.build("gpt-small", **sizes), True, {"batch": batch, "sequence": sequence})


CASES: dict[str, Callable[[], TrainingCase]] = {"bert-2": bert, "resnet-small": resnet, "gpt-small": gpt}
