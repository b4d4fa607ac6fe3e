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

Convolutions that are no site are replaced too, by ones that are fast inside loops.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import Frame, evaluate, scan_of
from gdpjax.clipping._tracing._parameter_flow import Place, Site
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
    return _Replay(sites).frame(frame, args, probes, ())


class _Replay:
    """An evaluation of a loss in which sites, and equations that their family rewrites, are replaced.

    Attributes:
      sites: all sites.
      has_rewritten: a cache of `is_rewritten_in`, by the id of the frame.
    """

    def __init__(self, sites: dict[Place, Site]) -> None:
        self.sites = sites
        self.has_rewritten: dict[int, bool] = {}

    def frame(self, frame: Frame, args: Sequence[Any], probes: dict[Place, Probe], place: Place) -> list[Any]:
        """Evaluate a frame.

        Args:
          frame: the frame.
          args: the values of its inputs.
          probes: the probes of the sites in this frame and in the bodies inside it.
          place: the place of the frame.
        """
        # Sort the probes by the equations of this frame that they belong to.
        depth = len(place)
        probes_of: dict[int, dict[Place, Probe]] = {}
        for site, probe in probes.items():
            probes_of.setdefault(site[depth], {})[site] = probe

        def in_place_of(index: int, eqn: Any) -> Any:
            here = (*place, index)
            if here in self.sites:
                return functools.partial(_at_site, self.sites[here], probes[here])
            if family_of(eqn).is_rewritten(eqn):
                return functools.partial(family_of(eqn).differentiable, eqn)
            bodies = frame.children.get(index, ())
            if index in probes_of or any(self.is_rewritten_in(body) for body in bodies):
                return functools.partial(self.nested, eqn, bodies, probes_of.get(index, {}), here)
            return None

        return evaluate(frame.jaxpr, frame.consts, args, in_place_of)

    def is_rewritten_in(self, frame: Frame) -> bool:
        """Return whether a frame has an equation that its family rewrites, in bodies inside the frame too."""
        if id(frame) not in self.has_rewritten:
            found = any(family_of(eqn).is_rewritten(eqn) for eqn in frame.jaxpr.eqns)
            for bodies in frame.children.values():
                found = found or any(self.is_rewritten_in(body) for body in bodies)
            self.has_rewritten[id(frame)] = found
        return self.has_rewritten[id(frame)]

    def nested(
        self, eqn: Any, bodies: Sequence[Frame], probes: dict[Place, Probe], place: Place, values: list[Any]
    ) -> Sequence[Any]:
        """Evaluate a scan, branch or checkpoint that has replaced equations inside."""
        name = eqn.primitive.name
        if name == "scan":
            return self.scan(eqn, bodies[0], values, probes, place)
        if name == "cond":
            return self.cond(bodies, values, probes, place)
        return self.checkpoint(eqn, bodies[0], values, probes, place)

    def scan(self, eqn: Any, body: Frame, values: list[Any], probes: dict[Place, Probe], place: Place) -> list[Any]:
        """Evaluate a scan; each iteration has a slice of the probes."""
        scan = scan_of(eqn)
        assert scan is not None  # otherwise it has no body to look into
        consts, carried, scanned = scan.split(values)

        def one_iteration(carried: list[Any], slices: Any) -> list[Any]:
            scanned, probes = slices
            return self.frame(body, [*consts, *carried, *scanned], probes, (*place, 0))

        return scan.evaluate(one_iteration, carried, (scanned, probes))

    def cond(
        self, branches: Sequence[Frame], values: list[Any], probes: dict[Place, Probe], place: Place
    ) -> Sequence[Any]:
        """Evaluate the branch that the first value chooses."""

        def branch(number: int) -> Callable[..., list[Any]]:
            # Each branch uses the probes of its own sites. Those of other branches then return zeros.
            own_sites = [site for site in probes if site[len(place)] == number]

            def evaluate(args: list[Any], probes: dict[Place, Probe]) -> list[Any]:
                own_probes = {site: probes[site] for site in own_sites}
                return self.frame(branches[number], args, own_probes, (*place, number))

            return evaluate

        index, *args = values
        functions = [branch(number) for number in range(len(branches))]
        return lax.switch(index, functions, args, probes)

    def checkpoint(
        self, eqn: Any, body: Frame, values: list[Any], probes: dict[Place, Probe], place: Place
    ) -> Sequence[Any]:
        """Evaluate a checkpoint, which JAX computes again in the backward pass."""

        def evaluate(values: list[Any], probes: dict[Place, Probe]) -> list[Any]:
            return self.frame(body, values, probes, (*place, 0))

        prevent_cse = eqn.params.get("prevent_cse", True)
        policy = eqn.params.get("policy")
        return jax.checkpoint(evaluate, prevent_cse=prevent_cse, policy=policy)(values, probes)


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
