"""The trained models of the development zoo: families, and the sizes and scalars that they are measured at.

The files are those of `../shared/zoo/build.py --trained-only`; names of dimensions are those that the files have.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from graphs.ir import Graph
from runtime.feeds import draw

Sizes = Mapping[str, int]
IMAGE = "image_width"
VOICE = {"sr": (16000, 8000)}


@dataclass(frozen=True)
class Trained:
    """A model: its family, two sets of sizes, and integers that an input must hold (at the first and second sizes)."""

    family: str
    first: Sizes
    second: Sizes
    scalars: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def sizes(self, which: int) -> Sizes:
        """The sizes number 1 or 2."""
        return self.first if which == 1 else self.second

    def feeds(self, graph: Graph, which: int) -> dict[str, np.ndarray]:
        """Random inputs at these sizes."""
        found = dict(draw(graph, 0, dict(self.sizes(which))))
        for name, values in self.scalars.items():
            found[name] = np.full_like(found[name], values[which - 1])
        return found


def _named(*names: str, first: tuple[int, ...], second: tuple[int, ...]) -> tuple[Sizes, Sizes]:
    return dict(zip(names, first, strict=True)), dict(zip(names, second, strict=True))


_PADDLE = ("p2o.DynamicDimension.0", "?x.2:?", "p2o.DynamicDimension.1")
_VOICE = ("batch", "sequence")

MODELS: dict[str, Trained] = {
    "silero_vad": Trained("silero", *_named("?input.0", "?input.1", "?state.1", first=(1, 576, 1),
                                            second=(2, 288, 2)), VOICE),
    "silero_vad_op15": Trained("silero", *_named(*_VOICE, first=(1, 576), second=(3, 576)), {"sr": (16000, 16000)}),
    "silero_vad_ifless": Trained("silero", *_named(*_VOICE, first=(1, 576), second=(2, 288)), VOICE),
    "silero_vad_seq": Trained("silero", {"sequence_length": 32}, {"sequence_length": 7}),
    "ppocr_det": Trained("ppocr", *_named("p2o.DynamicDimension.0", "p2o.DynamicDimension.1", "p2o.DynamicDimension.2",
                                          first=(1, 320, 320), second=(2, 128, 224))),
    "ppocr_rec": Trained("ppocr", *_named(*_PADDLE, first=(1, 48, 320), second=(2, 48, 200))),
    "ppocr_cls": Trained("ppocr", *_named("?x.0", "?x.2:?", "?x.3:?", first=(1, 48, 192), second=(3, 48, 192))),
    "magika": Trained("magika", {"unk__214": 1}, {"unk__214": 3}),
    "ddddocr_rec": Trained("ddddocr", {IMAGE: 160}, {IMAGE: 232}),
    "ddddocr_old_q": Trained("ddddocr", {IMAGE: 160}, {IMAGE: 232}),
    "nudenet_yolov8n": Trained("nudenet", *_named("batch", "height", "width", first=(1, 320, 320),
                                                  second=(2, 192, 256))),
    "dnsmos_p835": Trained("dnsmos", {"N": 1}, {"N": 2}),
    "khmersm": Trained("khmersm", *_named("batch", "seq", first=(1, 64), second=(1, 41))),
    "tashkeel_bilstm_q": Trained("tashkeel", *_named("batch", "seq_len", first=(1, 64), second=(3, 69))),
    "minilm_l6_int8": Trained("minilm", *_named("batch", "sequence", first=(1, 64), second=(3, 69))),
    "paraphrase_minilm_l3": Trained("minilm", *_named("batch_size", "sequence_length", first=(1, 64),
                                                      second=(3, 69))),
    "mtcnn_pnet": Trained("mtcnn", *_named("N", "M1", "M2", first=(1, 120, 160), second=(2, 47, 60))),
    "mtcnn_rnet": Trained("mtcnn", {"N": 16}, {"N": 3}),
    "mtcnn_onet": Trained("mtcnn", {"N": 8}, {"N": 3}),
    "surfaces_gbdt": Trained("surfaces", {"?input.0": 64}, {"?input.0": 3}),
}


def folder(given: str | None = None) -> Path:
    """Where the files are: what is given, else below `$EGRAFT_ZOO`, else below ~/.cache/egraft-zoo."""
    cache = os.environ.get("EGRAFT_ZOO") or os.path.expanduser("~/.cache/egraft-zoo")
    return Path(given) if given else Path(cache) / "models"
