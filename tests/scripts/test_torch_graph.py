"""The zoo as PyTorch modules, against egraft's own runtime."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.sizes import default_measure_sizes
from graphs import zoo
from runtime import run
from runtime.feeds import draw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.bench


@pytest.mark.parametrize("name", ["logistic-regression", "bilstm-tiny", "bert-tiny", "llama-tiny", "gpt-tiny",
                                  "resnet-tiny"])
def test_a_zoo_model_computes_the_same_in_torch(name: str) -> None:
    from scripts.torch_graph import TorchGraph

    graph = zoo.build(name)
    sizes = {symbol: min(size, 16) for symbol, size in default_measure_sizes(graph, {}).items()}
    feeds = draw(graph, 0, sizes)
    module = TorchGraph(graph, sizes).eval()
    with torch.no_grad():
        found = module(*[torch.from_numpy(feeds[name]) for name in graph.inputs])
    for mine, wanted in zip(found, run(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-4, atol=1e-5)
