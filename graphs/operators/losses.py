"""Records of the loss operators: classes along axis 1, integer labels without that axis."""

from __future__ import annotations

from ..dims import DimLike
from ..types import Shape, TensorType, Type
from ._common import common_dtype, shape_of, unify_checked
from .record import Operator, Site


def _checked(site: Site) -> Shape | None:
    """The shape of the labels, which is that of the scores without the classes."""
    common_dtype(site, (0, 2))
    scores, labels, weights = (shape_of(site, position) for position in range(3))
    if scores is not None and len(scores) < 2:
        raise site.fail(f"scores of rank {len(scores)}", "give scores of shape [batch, classes, ...]")
    if scores is None or labels is None:
        return labels if scores is None else (scores[0], *scores[2:])
    if len(labels) != len(scores) - 1:
        raise site.fail(f"scores of rank {len(scores)} and labels of rank {len(labels)}",
                        "labels have the shape of the scores without the classes")
    if weights is not None:
        if len(weights) != 1:
            raise site.fail(f"weights of rank {len(weights)}", "give one weight for each class")
        unify_checked(site, weights[0], scores[1])
    met: list[DimLike] = [unify_checked(site, a, b) for a, b in zip(labels, (scores[0], *scores[2:]))]
    return tuple(met)


def _loss(site: Site) -> list[Type | None]:
    scores, shape = site.type(0), _checked(site)
    if scores is None:
        return [None] * site.outputs
    loss = TensorType(scores.dtype, shape if site.attrs["reduction"] == "none" else ())
    found: list[Type | None] = [loss, scores]
    return found[: site.outputs]


_ATTRS = {"reduction": "mean", "ignore_index": None}

OPERATORS: list[Operator] = [
    Operator("SoftmaxCrossEntropyLoss", _loss, (12, 13), dict(_ATTRS)),
    Operator("NegativeLogLikelihoodLoss", _loss, (12, 13, 22), dict(_ATTRS)),
]
