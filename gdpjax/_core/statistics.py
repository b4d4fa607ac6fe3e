"""Refusal of parameters that hold statistics over examples, such as those of BatchNorm.

Running averages are functions of the examples that epsilon does not cover, and the layer that keeps them normalises
over the batch, so one example can move the gradients of all others. Frameworks keep them beside the parameters, in a
collection or a class of variables of their own, which shows here.
"""

from collections.abc import Sequence
from typing import Any

import jax

from gdpjax._core.trees import leaf_name
from gdpjax._core.types import PyTree

_COLLECTIONS = ("batch_stats", "batch_norm", "spectral_norm", "moving_mean", "moving_variance", "mean_ema", "var_ema")
_VARIABLES = ("BatchStat", "RngState", "RngKey", "RngCount")


def refuse_statistics(params: PyTree, is_trained: Sequence[bool] | None = None) -> None:
    """Refuse running statistics and other mutable collections among the parameters.

    Args:
      params: the parameters.
      is_trained: one mark for each leaf; only trained leaves are looked at. None: all of them are.

    Raises:
      ValueError: a leaf belongs to such a collection.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    marks = [True] * len(leaves) if is_trained is None else list(is_trained)

    # flax.linen and haiku name the collection in the path of the leaf.
    for (path, _), mark in zip(leaves, marks, strict=True):
        names = {str(getattr(part, "key", getattr(part, "name", ""))) for part in path}
        collections = sorted(names.intersection(_COLLECTIONS))
        if collections and mark:
            _refuse(leaf_name(path), collections[0])

    # flax.nnx marks the kind of a variable by its class; the name of the class is enough, without importing flax.
    remaining = iter(marks)
    for node in jax.tree.leaves(params, is_leaf=_is_variable):
        node_marks = [next(remaining) for _ in jax.tree.leaves(node)]
        if not _is_variable(node) or not any(node_marks):
            continue
        classes = [base.__name__ for base in type(node).__mro__]
        kinds = [name for name in classes if name in _VARIABLES]
        if kinds:
            _refuse(type(node).__name__, kinds[0])


def _is_variable(node: Any) -> bool:
    return any(base.__name__ in ("Variable", "VariableState") for base in type(node).__mro__)


def _refuse(where: str, kind: str) -> None:
    raise ValueError(
        f"the parameters hold {where}, mutable state ({kind}) that is not a parameter: statistics over examples are "
        "outside epsilon, and a layer that normalises over the batch breaks the per-example bound. Use GroupNorm or "
        "LayerNorm; with a public, frozen BatchNorm close over its statistics and pass only the parameters"
    )
