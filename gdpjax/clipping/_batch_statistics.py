"""Refusal of a loss that normalises over the examples, as BatchNorm does.

Such a layer lets one example move the gradients of all others. It shows in the traced loss of one example, where the
mean over a batch of one is subtracted from the value itself (`refuse_mean_of_one_example`), and in the collections of
variables that the model was given as parameters (`gdpjax._core.statistics`).
"""

from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np

from gdpjax.clipping._known_primitives import OPAQUE
from gdpjax.clipping._row_independence import inner_programs
from gdpjax.clipping._tracing import CALLS, opened


class _Entries(NamedTuple):
    """The origin of the entries of a variable.

    Attributes:
      source: the earlier variable that has the same entries, perhaps in another shape or dtype.
      is_mean: whether a mean was taken on the way, over an axis of length one or over no axis.
    """

    source: Any
    is_mean: bool


_SAME_ENTRIES = frozenset(
    {"copy", "copy_p", "convert_element_type", "reshape", "squeeze", "expand_dims", "broadcast_in_dim"}
)
"""Primitives that leave the entries as they are, provided that their number stays the same."""


def refuse_mean_of_one_example(closed: Any, keep_batch_dim: bool) -> None:
    """Refuse a loss that subtracts from a value its mean over the one example.

    A BatchNorm in training does this when it is given one example: it returns a constant, and all gradients before it
    are exactly zero. That is private, and useless.

    Args:
      closed: the traced loss of one example.
      keep_batch_dim: whether the example has a batch axis of length one.

    Raises:
      ValueError: the loss subtracts such a mean.
    """
    jaxpr, _ = opened(closed)
    inputs = [_Entries(variable, False) for variable in jaxpr.invars]
    _follow_entries(jaxpr, inputs, keep_batch_dim)


def _follow_entries(jaxpr: Any, inputs: list[_Entries], keep_batch_dim: bool) -> list[_Entries]:
    """Follow entries through the equations of a program, and return those of its outputs."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def entries_of(atom: Any) -> _Entries:
        if isinstance(atom, jex.Literal):
            return _Entries(object(), False)
        return known.get(atom, _Entries(atom, False))

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        operands = [entries_of(atom) for atom in eqn.invars]
        if operands and _keeps_entries(eqn):
            known[eqn.outvars[0]] = operands[0]
        elif name == "reduce_sum" and _sums_one_entry(eqn, keep_batch_dim):
            known[eqn.outvars[0]] = _Entries(operands[0].source, True)
        elif name == "sub":
            _refuse_difference(*operands)
        elif name in CALLS and inner_programs(eqn):
            body, _ = opened(inner_programs(eqn)[0])
            outputs = _follow_entries(body, operands, keep_batch_dim)
            known.update(zip(eqn.outvars, outputs, strict=True))
        elif name not in OPAQUE:
            # Loops and branches are followed by themselves, as if their inputs were new values.
            for program in inner_programs(eqn):
                body, _ = opened(program)
                _follow_entries(body, [_Entries(variable, False) for variable in body.invars], keep_batch_dim)
    return [entries_of(atom) for atom in jaxpr.outvars]


def _refuse_difference(left: _Entries, right: _Entries) -> None:
    """Refuse a value minus its own mean."""
    if left.source is right.source and left.is_mean != right.is_mean:
        raise ValueError(
            "loss_fn takes from a value its mean over the batch, which is the value itself, as it sees one "
            "example: all gradients before that are exactly zero. This is a BatchNorm in training; use "
            "GroupNorm or LayerNorm, or the statistics of a public data set (use_running_average=True)"
        )


def _keeps_entries(eqn: Any) -> bool:
    """Whether the output of an equation has the entries of its first input."""
    name = eqn.primitive.name
    if name in ("div", "mul"):
        # A mean divides by its number of terms, which is one here.
        factor = eqn.invars[1]
        return isinstance(factor, jex.Literal) and np.ndim(factor.val) == 0 and factor.val == 1
    if name in _SAME_ENTRIES:
        return np.prod(eqn.invars[0].aval.shape) == np.prod(eqn.outvars[0].aval.shape)
    return False


def _sums_one_entry(eqn: Any, keep_batch_dim: bool) -> bool:
    """Whether a sum is over no axis, or over the batch axis and others of length one."""
    axes = eqn.params["axes"]
    if not axes:
        return True
    shape = eqn.invars[0].aval.shape
    return keep_batch_dim and 0 in axes and all(shape[axis] == 1 for axis in axes)
