"""A small GPT that learns to continue text, character by character.

    python -m examples.text --plot loss.svg
    python -m examples.text --text novel.txt --target onnxruntime:cpu --optimize --steps 2000

The text is this repository's documentation, or a file. A tenth of it, the end, is kept for testing: the loss there is
told in bits per character, beside what the frequencies of characters alone give.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.support import TARGETS, execution, train, write_plot
from runtime.training import AdamW
from runtime.training.builder import Assignment, Feeds, TrainingBuilder, TrainingSession, Value

DOCS = Path(__file__).parents[1] / "docs"
OUT_OF_SIGHT = -1e9  # added to the score of a later character


@dataclass(frozen=True)
class Sizes:
    """Sizes of the network, and of a batch."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 32
    batch: int = 16


@dataclass(frozen=True)
class Text:
    """Characters as numbers: `train` to learn from, `test` not to. `characters[number]` is the character."""

    characters: str
    train: np.ndarray
    test: np.ndarray

    @staticmethod
    def of(text: str) -> Text:
        """The last tenth is the test."""
        characters = "".join(sorted(set(text)))
        number = {character: index for index, character in enumerate(characters)}
        codes = np.array([number[character] for character in text], np.int64)
        cut = len(codes) * 9 // 10
        return Text(characters, codes[:cut], codes[cut:])

    def frequency_bits(self) -> float:
        """Bits per character of the test, for a reader who knows how often each character occurs in what is learnt."""
        counts = np.bincount(self.train, minlength=len(self.characters)) + 1.0
        return float(-np.log2(counts / counts.sum())[self.test].mean())


def documentation() -> str:
    """The text of all pages of this repository's documentation."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))


@dataclass
class Program:
    """What the network is run by: characters in, of each place the scores of the next one out."""

    net: TrainingBuilder
    sizes: Sizes
    characters: Value
    following: Value
    scores: Value
    loss: Value
    update: list[Assignment]

    def feeds(self, codes: np.ndarray, rng: np.random.Generator) -> Iterator[Feeds]:
        """Endless batches of random places of a text."""
        batch, context = self.sizes.batch, self.sizes.context
        while True:
            start = rng.integers(0, len(codes) - context, batch)
            rows = codes[start[:, None] + np.arange(context + 1)]
            yield {self.characters: rows[:, :-1], self.following: rows[:, 1:]}


class _Layers:
    """Layers of a decoder: each makes its variables when it is called."""

    def __init__(self, net: TrainingBuilder, sizes: Sizes, seed: int = 1) -> None:
        self.net, self.sizes, self.rng = net, sizes, np.random.default_rng(seed)
        self.mask = np.triu(np.full((sizes.context, sizes.context), OUT_OF_SIGHT, np.float32), 1)

    def table(self, name: str, rows: int) -> Value:
        return self.net.variable(name, self.rng.normal(0, 0.1, (rows, self.sizes.width)))

    def linear(self, name: str, x: Value, inner: int, outer: int, scale: float = 1.0) -> Value:
        weight = self.net.variable(f"{name}.weight", self.rng.normal(0, scale * inner**-0.5, (inner, outer)))
        return self.net.matmul(x, weight) + self.net.variable(f"{name}.bias", np.zeros(outer))

    def norm(self, name: str, x: Value) -> Value:
        width = self.sizes.width
        return self.net.LayerNormalization(x, self.net.variable(f"{name}.scale", np.ones(width)),
                                           self.net.variable(f"{name}.shift", np.zeros(width)))

    def attention(self, name: str, x: Value) -> Value:
        net, size = self.net, self.sizes
        head = size.width // size.heads
        query, key, value = (net.Transpose(net.Reshape(self.linear(f"{name}.{part}", x, size.width, size.width),
                                                       [size.batch, size.context, size.heads, head]), perm=order)
                             for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]),
                                                 ("value", [0, 2, 1, 3])))
        weights = net.softmax(net.matmul(query, key) * head**-0.5 + self.mask)
        joined = net.Transpose(net.matmul(weights, value), perm=[0, 2, 1, 3])
        joined = net.Reshape(joined, [size.batch, size.context, size.width])
        return self.linear(f"{name}.out", joined, size.width, size.width, 0.5)

    def block(self, name: str, x: Value) -> Value:
        width = self.sizes.width
        x = x + self.attention(f"{name}.attention", self.norm(f"{name}.norm1", x))
        inner = self.net.Gelu(self.linear(f"{name}.inner", self.norm(f"{name}.norm2", x), width, 4 * width))
        return x + self.linear(f"{name}.outer", inner, 4 * width, width, 0.5)


def gpt(vocabulary: int, sizes: Sizes = Sizes()) -> Program:
    """The network and its training step, with AdamW."""
    net = TrainingBuilder("gpt")
    layers = _Layers(net, sizes)
    characters = net.placeholder("characters", "int64", [sizes.batch, sizes.context])
    following = net.placeholder("following", "int64", [sizes.batch, sizes.context])
    x = net.Gather(layers.table("letters", vocabulary), characters) + layers.table("places", sizes.context)
    for index in range(sizes.layers):
        x = layers.block(f"block{index}", x)
    scores = layers.linear("scores", layers.norm("norm", x), sizes.width, vocabulary, 0.1)
    loss = net.softmax_cross_entropy(scores, following)
    return Program(net, sizes, characters, following, scores, loss, net.minimize(loss, AdamW(3e-3)))


def test_bits(program: Program, session: TrainingSession, text: Text, batches: int = 20) -> float:
    """Bits per character on the text that was kept for testing."""
    feeds = program.feeds(text.test, np.random.default_rng(0))
    losses = [session.run(program.loss, feed) for _, feed in zip(range(batches), feeds)]
    return float(np.mean(losses) / np.log(2))


def continued(program: Program, session: TrainingSession, text: Text, start: str, length: int, seed: int = 0) -> str:
    """`start` and more characters, each drawn from the scores."""
    rng, sizes = np.random.default_rng(seed), program.sizes
    codes = [text.characters.index(character) for character in start]
    for _ in range(length):
        seen = codes[-sizes.context:]
        rows = np.zeros((sizes.batch, sizes.context), np.int64)
        rows[0, : len(seen)] = seen
        scores = session.run(program.scores, {program.characters: rows})[0, len(seen) - 1]
        weights = np.exp(scores.astype(np.float64) - scores.max())
        codes.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return "".join(text.characters[code] for code in codes)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small GPT on text.")
    parser.add_argument("--text", type=Path, help="a text file (default: the documentation of egraft)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--target", choices=TARGETS, default="egraft:cpu")
    parser.add_argument("--optimize", action="store_true", help="superoptimize the training step first")
    parser.add_argument("--plot", type=Path, help="write the losses as SVG")
    arguments = parser.parse_args()
    text = Text.of(documentation() if arguments.text is None else arguments.text.read_text(encoding="utf-8"))
    program = gpt(len(text.characters))
    session = program.net.session(execution(arguments.target, arguments.optimize))
    feeds = program.feeds(text.train, np.random.default_rng(0))
    losses = train(session, program.loss, program.update, feeds, arguments.steps, "gpt")
    bits = test_bits(program, session, text)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; on text not seen {bits:.2f} bits per character "
          f"(by frequency alone {text.frequency_bits():.2f})")
    print(continued(program, session, text, "The graph ", 200))
    write_plot(arguments.plot, {"gpt": losses})


if __name__ == "__main__":
    main()
