"""Evaluate a frame with some of its equations replaced, in the bodies of scans, branches and checkpoints too.

    replaced = {place: function}              # function(extra, values of the inputs) -> values of the outputs
    outputs = evaluate_replaced(frame, args, replaced, {place: extra})

Each replaced equation has an extra value, any tree of arrays, which its function is given. In a scan the extra values
have a leading axis of iterations. They are arguments of the bodies, so that JAX differentiates with respect to them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from gdpjax.clipping._tracing._jaxprs import Frame, Place, evaluate, scan_of

Extras = dict[Place, Any]
"""The extra values of replaced equations."""


def evaluate_replaced(
    frame: Frame, args: Sequence[Any], replaced: dict[Place, Callable[..., Any]], extras: Extras
) -> list[Any]:
    """Return the outputs of a frame.

    Args:
      frame: the frame.
      args: the values of its inputs.
      replaced: by the places of equations, the functions that are evaluated in place of them.
      extras: the extra value of each of them.
    """
    return _Evaluation(replaced).frame(frame, args, extras, ())


class _Evaluation:
    """An evaluation in which these equations are replaced."""

    def __init__(self, replaced: dict[Place, Callable[..., Any]]) -> None:
        self.replaced = replaced

    def frame(self, frame: Frame, args: Sequence[Any], extras: Extras, place: Place) -> list[Any]:
        """Evaluate the frame at this place, given the extra values of the equations in it and in bodies inside it."""
        # Sort the extra values by the equations of this frame that they belong to.
        extras_of: dict[int, Extras] = {}
        for inside, extra in extras.items():
            extras_of.setdefault(inside[len(place)], {})[inside] = extra

        def in_place_of(index: int, eqn: Any) -> Any:
            here = (*place, index)
            if here in self.replaced:
                return functools.partial(self.replaced[here], extras[here])
            if index in extras_of:
                return functools.partial(self.nested, eqn, frame.children[index], extras_of[index], here)
            return None

        return evaluate(frame.jaxpr, frame.consts, args, in_place_of)

    def nested(
        self, eqn: Any, bodies: Sequence[Frame], extras: Extras, place: Place, values: list[Any]
    ) -> Sequence[Any]:
        """Evaluate a scan, branch or checkpoint that has replaced equations inside."""
        name = eqn.primitive.name
        if name == "scan":
            return self.scan(eqn, bodies[0], values, extras, place)
        if name == "cond":
            return self.cond(bodies, values, extras, place)
        return self.checkpoint(eqn, bodies[0], values, extras, place)

    def scan(self, eqn: Any, body: Frame, values: list[Any], extras: Extras, place: Place) -> list[Any]:
        """Evaluate a scan; each iteration has a slice of the extra values."""
        scan = scan_of(eqn)
        assert scan is not None  # otherwise it has no body to look into
        consts, carried, scanned = scan.split(values)

        def one_iteration(carried: list[Any], slices: Any) -> list[Any]:
            scanned, extras = slices
            return self.frame(body, [*consts, *carried, *scanned], extras, (*place, 0))

        return scan.evaluate(one_iteration, carried, (scanned, extras))

    def cond(self, branches: Sequence[Frame], values: list[Any], extras: Extras, place: Place) -> Sequence[Any]:
        """Evaluate the branch that the first value chooses."""

        def branch(number: int) -> Callable[..., list[Any]]:
            # Each branch uses the extra values of its own equations. With respect to others its derivative is zero.
            own_places = [inside for inside in extras if inside[len(place)] == number]

            def evaluate(args: list[Any], extras: Extras) -> list[Any]:
                own_extras = {inside: extras[inside] for inside in own_places}
                return self.frame(branches[number], args, own_extras, (*place, number))

            return evaluate

        index, *args = values
        functions = [branch(number) for number in range(len(branches))]
        return lax.switch(index, functions, args, extras)

    def checkpoint(self, eqn: Any, body: Frame, values: list[Any], extras: Extras, place: Place) -> Sequence[Any]:
        """Evaluate a checkpoint, which JAX computes again in the backward pass."""

        def evaluate(values: list[Any], extras: Extras) -> list[Any]:
            return self.frame(body, values, extras, (*place, 0))

        if eqn.params.get("differentiated", False):
            # This is that backward pass. The barrier keeps XLA from finding that all this was computed before.
            return evaluate(lax.optimization_barrier(values), extras)
        prevent_cse = eqn.params.get("prevent_cse", True)
        policy = eqn.params.get("policy")
        return jax.checkpoint(evaluate, prevent_cse=prevent_cse, policy=policy)(values, extras)
