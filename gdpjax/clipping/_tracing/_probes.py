"""Evaluate a loss again with a probe at every site, so that one derivative gives what every site saw.

    probes = zero_probes(flow.sites)
    grad = jax.grad(lambda probes: replay(frame, args, flow.sites, probes)[0])(probes)
    values_seen(site, grad[place])      # for a dense layer, the input x and the cotangent s of its output

A site y = f(W, x) is replaced by a `jax.custom_vjp` function with one more argument, the probe. It is an array of zeros
that the forward pass does not use. The backward pass of the function is given s, the cotangent of y, and returns

* for x, the gradient that f has;
* for W, nothing: no weight gradient is formed;
* for the probe, the pair (x, s). By the rules of automatic differentiation it is "the derivative with respect to the
  probe". In fact it is the data that met the weight, and the cotangent.

So one `jax.grad`, with respect to the probes and to the parameters that JAX differentiates, gives everything. It goes
through scans (which scan over the probes and stack what they return), branches and checkpoints (x is computed again
with the rest).

Convolutions that are no site are replaced too, by ones that are fast inside loops. `evaluate_replaced` does both: each
replaced equation has an extra value, any tree of arrays, which its function is given. In a scan the extra values have a
leading axis of iterations. They are arguments of the bodies, so that JAX differentiates with respect to them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import Frame, Place, equations, evaluate, scan_of
from gdpjax.clipping._tracing._parameter_flow import Site
from gdpjax.clipping._tracing.primitives import family_of

Probe = tuple[Array, ...]
"""One array for each value of `Site.carried`: zeros on the way in, those values on the way back."""

_LOW_BITS = 12
"""Bits of an index in the second of the two floats that carry it."""


def zero_probes(sites: dict[Place, Site]) -> dict[Place, Probe]:
    """Return the probe of every site: zeros, with a leading axis for each scan around the site."""
    probes = {}
    for place, site in sites.items():
        zeros = []
        for carried in site.carried:
            shape = (*site.lengths, *carried.shape)
            if jnp.issubdtype(carried.dtype, jnp.floating):
                zeros.append(jnp.zeros(shape, carried.dtype))
            else:
                # Integers have no derivative, so indices travel as two floats: see `_encoded`.
                zeros.append(jnp.zeros((*shape, 2), jnp.float32))
        probes[place] = tuple(zeros)
    return probes


def values_seen(site: Site, answer: Probe) -> list[Array]:
    """Return the values that a site carries, given the derivative with respect to its probe."""
    values = []
    for x, carried in zip(answer, site.carried, strict=True):
        if not jnp.issubdtype(carried.dtype, jnp.floating):
            x = _decoded(x)
        values.append(x)
    return values


def _encoded(x: Array, table: Any) -> Array:
    """Return indices as pairs of floats, which hold them exactly.

    Args:
      x: the indices. Those below 0 become -1. Those above the length of the longest axis of the table become that
        length, which is out of range too.
      table: the variable of the table.
    """
    # All indices that are out of range look alike, so that they fit into 32 bits.
    size = max(table.aval.shape)
    limits = jnp.iinfo(x.dtype)
    index = jnp.clip(x, max(-1, limits.min), min(size, limits.max)).astype(jnp.int32)

    # A float32 holds 24 bits exactly: one float gets the lowest bits, and the other one all that are above.
    high = index >> _LOW_BITS
    low = index & ((1 << _LOW_BITS) - 1)
    return jnp.stack([high, low], axis=-1).astype(jnp.float32)


def _decoded(x: Array) -> Array:
    """Return the indices of the pairs of floats that `_encoded` made."""
    high = x[..., 0].astype(jnp.int32) << _LOW_BITS
    low = x[..., 1].astype(jnp.int32)
    return high + low


def replay(frame: Frame, args: Sequence[Any], sites: dict[Place, Site], probes: dict[Place, Probe]) -> list[Any]:
    """Return the outputs of a frame, evaluated with a probe at every site."""
    replaced: dict[Place, Callable[..., Any]] = {}
    for place, eqn in equations(frame):
        if place in sites:
            replaced[place] = functools.partial(_at_site, sites[place])
        elif family_of(eqn).is_rewritten(eqn):
            replaced[place] = lambda _, values, eqn=eqn: family_of(eqn).differentiable(eqn, values)
    return evaluate_replaced(frame, args, replaced, {place: probes.get(place, ()) for place in replaced})


def _at_site(site: Site, probe: Probe, values: Sequence[Any]) -> list[Array]:
    """Evaluate the equation of a site, by a function whose derivative for the probe is what the site saw."""
    eqn = site.eqn
    weight = site.operand
    family = family_of(eqn)
    data = family.data_operand(eqn, weight)

    # Everything is an argument: a function of custom derivative must not close over values of a trace.
    def primal(values: list[Any], probe: Probe) -> Array:
        (output,) = family.evaluate(eqn, values)
        return output

    def forward_rule(values: list[Any], probe: Probe) -> tuple[Array, list[Any]]:
        return primal(values, probe), values

    def backward_rule(values: list[Any], cotangent: Array) -> tuple[list[Any], Probe]:
        # Floating data gets its gradient, and the probe gets what the site saw. The weight gets nothing.
        x = values[data]
        of_values: list[Any] = [None] * len(values)
        if jnp.issubdtype(x.dtype, jnp.floating):
            of_values[data] = family.data_gradient(eqn, weight, values, cotangent)
        else:
            x = _encoded(x, eqn.invars[weight])
        return of_values, (x, cotangent)

    function = jax.custom_vjp(primal)
    function.defvjp(forward_rule, backward_rule)
    return [function(list(values), probe)]


# Evaluate a frame with some of its equations replaced, in the bodies of scans, branches and checkpoints too.

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
