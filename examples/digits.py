"""Handwritten digits of 8 by 8 pixels: logistic regression, a network of two layers, a small CNN.

    python -m examples.digits logistic --plot loss.svg
    python -m examples.digits cnn --target onnxruntime:cpu --optimize

The data are those of scikit-learn (1797 images; a copy of UCI's test set, CC BY 4.0), taken out of its package with
pip and kept in the cache of the model zoo. A fifth of the images is kept for testing.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.support import TARGETS, batches, execution, train, write_plot
from graphs.zoo.packages import fetch_packaged
from graphs.zoo.table import Packaged
from runtime.training import SGD, AdamW
from runtime.training.builder import Assignment, TrainingBuilder, TrainingSession, Value

DIGITS = Packaged("handwritten digits", "scikit-learn>=1.4", "sklearn/datasets/data/digits.csv.gz",
                  "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22", "BSD-3-Clause")
BATCH, TESTED = 64, 360


@dataclass(frozen=True)
class Data:
    """Images as rows of 64 numbers from 0 to 1, and the digits that they show."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits(seed: int = 0) -> Data:
    """The images in random order. Raises ModelUnavailable where pip does not reach a package index."""
    with gzip.open(fetch_packaged("digits", DIGITS), "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    table = table[np.random.default_rng(seed).permutation(len(table))]
    images, labels = (table[:, :64] / 16).astype(np.float32), table[:, 64].astype(np.int64)
    return Data(images[TESTED:], labels[TESTED:], images[:TESTED], labels[:TESTED])


@dataclass
class Program:
    """What a network is run by."""

    net: TrainingBuilder
    image: Value
    label: Value
    loss: Value
    accuracy: Value
    update: list[Assignment]


def logistic() -> Program:
    """softmax(x W + b), by the gradient alone: written out to the last step."""
    net = TrainingBuilder("logistic")
    x = net.placeholder("image", "float32", ["batch", 64])
    label = net.placeholder("label", "int64", ["batch"])
    w, b = net.variable("w", np.zeros((64, 10))), net.variable("b", np.zeros(10))
    logits = net.matmul(x, w) + b
    loss = net.softmax_cross_entropy(logits, label)
    grad_w, grad_b = net.gradients(loss, [w, b])
    update = [net.assign(w, w - 0.5 * grad_w), net.assign(b, b - 0.5 * grad_b)]
    return Program(net, x, label, loss, net.accuracy(logits, label), update)


def two_layers(hidden: int = 64) -> Program:
    """relu(x W1 + b1) W2 + b2, with momentum."""
    net, rng = TrainingBuilder("two_layers"), np.random.default_rng(1)
    x = net.placeholder("image", "float32", ["batch", 64])
    label = net.placeholder("label", "int64", ["batch"])
    w1 = net.variable("w1", rng.normal(0, 64**-0.5, (64, hidden)))
    b1 = net.variable("b1", np.zeros(hidden))
    w2 = net.variable("w2", rng.normal(0, hidden**-0.5, (hidden, 10)))
    b2 = net.variable("b2", np.zeros(10))
    logits = net.matmul(net.relu(net.matmul(x, w1) + b1), w2) + b2
    loss = net.softmax_cross_entropy(logits, label)
    update = net.minimize(loss, SGD(0.1, momentum=0.9))
    return Program(net, x, label, loss, net.accuracy(logits, label), update)


def cnn(channels: int = 16) -> Program:
    """Two convolutions, each followed by a rectifier and a pooling, and a linear layer."""
    net, rng = TrainingBuilder("cnn"), np.random.default_rng(1)
    image = net.placeholder("image", "float32", ["batch", 64])
    label = net.placeholder("label", "int64", ["batch"])
    x, width = net.Reshape(image, [-1, 1, 8, 8]), 1
    for index, out in enumerate((channels, 2 * channels)):
        kernel = net.variable(f"kernel{index}", rng.normal(0, (2 / (9 * width)) ** 0.5, (out, width, 3, 3)))
        bias = net.variable(f"bias{index}", np.zeros(out))
        x = net.relu(net.Conv(x, kernel, bias, pads=[1, 1, 1, 1]))
        x, width = net.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]), out
    w = net.variable("w", rng.normal(0, (4 * width) ** -0.5, (4 * width, 10)))
    b = net.variable("b", np.zeros(10))
    logits = net.matmul(net.Reshape(x, [-1, 4 * width]), w) + b
    loss = net.softmax_cross_entropy(logits, label)
    update = net.minimize(loss, AdamW(3e-3))
    return Program(net, image, label, loss, net.accuracy(logits, label), update)


PROGRAMS: dict[str, Callable[[], Program]] = {"logistic": logistic, "two-layers": two_layers, "cnn": cnn}


def run(program: Program, data: Data, session: TrainingSession, steps: int,
        text: str = "") -> tuple[list[float], float]:
    """Train; the loss of each step, and the accuracy on the images that were kept for testing."""
    rows = batches(np.random.default_rng(0), BATCH, data.images, data.labels)
    feeds = ({program.image: images, program.label: labels} for images, labels in rows)
    losses = train(session, program.loss, program.update, feeds, steps, text)
    tested = session.run(program.accuracy, {program.image: data.test_images, program.label: data.test_labels})
    return losses, float(tested)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a network on the digits of scikit-learn.")
    parser.add_argument("network", choices=PROGRAMS)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--target", choices=TARGETS, default="egraft:cpu")
    parser.add_argument("--optimize", action="store_true", help="superoptimize the training step first")
    parser.add_argument("--plot", type=Path, help="write the losses as SVG")
    arguments = parser.parse_args()
    program = PROGRAMS[arguments.network]()
    session = program.net.session(execution(arguments.target, arguments.optimize))
    losses, accuracy = run(program, digits(), session, arguments.steps, arguments.network)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy on {TESTED} other images {accuracy:.3f}")
    write_plot(arguments.plot, {arguments.network: losses})


if __name__ == "__main__":
    main()
