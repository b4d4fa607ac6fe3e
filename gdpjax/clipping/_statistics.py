"""Models that cannot be trained privately as they are: those with statistics over examples."""

from collections.abc import Sequence
from typing import Any

import jax

from gdpjax._core.trees import leaf_name
from gdpjax._core.types import PyTree

_COLLECTIONS = ("batch_stats", "batch_norm", "spectral_norm", "moving_mean", "moving_variance", "mean_ema", "var_ema")
_VARIABLES = ("BatchStat", "RngState", "RngKey", "RngCount")


def refuse_statistics(params: PyTree, is_trained: Sequence[bool] | None = None) -> None:
    """ValueError if ``params`` holds running statistics or other mutable collections beside the parameters.

    Running means are functions of the examples that epsilon does not cover, and normalising over a batch lets one
    example move the gradients of all others. With ``is_trained``, one mark for each leaf, only trained leaves count.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    marks = [True] * len(leaves) if is_trained is None else list(is_trained)
    for (path, _), mark in zip(leaves, marks, strict=True):
        names = {str(getattr(part, "key", getattr(part, "name", ""))) for part in path}
        found = sorted(names.intersection(_COLLECTIONS))
        if found and mark:
            _refuse(leaf_name(path), found[0])
    # flax.nnx marks the kind of a variable in its class; no import of flax is needed to read its name.
    remaining = iter(marks)
    for node in jax.tree.leaves(params, is_leaf=_is_variable):
        trained = [next(remaining) for _ in jax.tree.leaves(node)]
        kinds = [base.__name__ for base in type(node).__mro__] if _is_variable(node) else []
        found = [kind for kind in kinds if kind in _VARIABLES]
        if found and any(trained):
            _refuse(type(node).__name__, found[0])


def _is_variable(node: Any) -> bool:
    return any(base.__name__ in ("Variable", "VariableState") for base in type(node).__mro__)


def _refuse(where: str, kind: str) -> None:
    raise ValueError(
        f"the parameters hold {where}, mutable state ({kind}) that is not a parameter: statistics over examples are "
        "outside epsilon, and a layer that normalises over the batch breaks the per-example bound. Use GroupNorm or "
        "LayerNorm; with a public, frozen BatchNorm close over its statistics and pass only the parameters"
    )
