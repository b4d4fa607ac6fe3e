"""Refuse parameters that hold statistics over examples, such as those of BatchNorm.

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
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    marks = [True] * len(leaves) if is_trained is None else list(is_trained)

    # flax.linen and haiku name the collection in the path of the leaf.
    for (path, _), is_marked in zip(leaves, marks, strict=True):
        names = {_name_of_key(key) for key in path}
        collections = sorted(names.intersection(_COLLECTIONS))
        if collections and is_marked:
            _refuse(leaf_name(path), collections[0])

    # flax.nnx marks the kind of a variable by its class; the name of the class is enough, without importing flax.
    first = 0
    for node in jax.tree.leaves(params, is_leaf=_is_variable):
        num_leaves = len(jax.tree.leaves(node))
        marks_of_node = marks[first : first + num_leaves]
        first += num_leaves
        if not _is_variable(node) or not any(marks_of_node):
            continue
        for name in _class_names(node):
            if name in _VARIABLES:
                _refuse(type(node).__name__, name)


def _name_of_key(key: Any) -> str:
    """Return the name in one key of a path, which is an item of a dict or an attribute, or nothing for a number."""
    return str(getattr(key, "key", getattr(key, "name", "")))


def _class_names(node: Any) -> list[str]:
    """Return the names of a node's class and of those that it inherits from."""
    return [base.__name__ for base in type(node).__mro__]


def _is_variable(node: Any) -> bool:
    names = _class_names(node)
    return "Variable" in names or "VariableState" in names


def _refuse(where: str, kind: str) -> None:
    raise ValueError(
        f"the parameters hold {where}, mutable state ({kind}) that is not a parameter: statistics over examples are "
        "outside epsilon, and a layer that normalises over the batch breaks the per-example bound. Use GroupNorm or "
        "LayerNorm; with a public, frozen BatchNorm close over its statistics and pass only the parameters"
    )
