"""Evaluate a loss again with a probe at every site, whose derivative is what the site saw.

A site y = f(W, x) is replaced by a function of custom derivative with one more argument, a probe of zeros that it does
not use. Its backward pass answers to x as f does, to W not at all (no weight gradient is formed), and to the probe with
the pair (x, s): the data that met the weight, and the cotangent of y. So one `jax.grad` with respect to the parameters
that JAX differentiates and to the probes gives everything, through scans (the probes are scanned over, and come back
stacked), branches and checkpoints (x is recomputed with the rest). A layer with a derivative rule of its own is
replaced in the same way by the two halves of its rule, and answers with the values that the rule multiplies.

Convolutions that are no site are replaced as well, by ones that are fast within loops.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._custom_derivatives import forward_and_backward
from gdpjax.clipping._tracing._jaxprs import CUSTOM, REMAT, Environment, Frame, leading_to, scan_of
from gdpjax.clipping._tracing._parameter_flow import AbstractSite, Place
from gdpjax.clipping._tracing.primitives import family_of

Probe = tuple[Array, ...]
_LOW_BITS = 12
"""Bits of an index in the second of the two floats that carry it."""


def probes(sites: dict[Place, AbstractSite]) -> dict[Place, Probe]:
    """Return zeros for what each site carries, with a leading axis for each scan around the site."""
    found = {}
    for place, site in sites.items():
        zeros = []
        for aval in site.carried:
            if jnp.issubdtype(aval.dtype, jnp.floating):
                zeros.append(jnp.zeros((*site.lengths, *aval.shape), aval.dtype))
            else:
                zeros.append(jnp.zeros((*site.lengths, *aval.shape, 2), jnp.float32))
        found[place] = tuple(zeros)
    return found


def decoded(site: AbstractSite, probe: Probe) -> list[Array]:
    """Return what a site saw, from what its probe returned."""
    values = []
    for x, aval in zip(probe, site.carried, strict=True):
        if not jnp.issubdtype(aval.dtype, jnp.floating):
            x = (x[..., 0].astype(jnp.int32) << _LOW_BITS) + x[..., 1].astype(jnp.int32)
        values.append(x)
    return values


def _encoded(x: Array, size: int) -> Array:
    """Carry indices in a differentiable array: two floats, exactly; those below 0 as -1, and above ``size`` as that."""
    limits = jnp.iinfo(x.dtype)
    index = jnp.clip(x, max(-1, limits.min), min(size, limits.max)).astype(jnp.int32)
    return jnp.stack([index >> _LOW_BITS, index & ((1 << _LOW_BITS) - 1)], axis=-1).astype(jnp.float32)


class _Replay:
    """An evaluation of a loss in which sites and convolutions are replaced."""

    def __init__(self, sites: dict[Place, AbstractSite]) -> None:
        self.sites = sites
        self.rewritten: dict[int, bool] = {}

    def frame(self, frame: Frame, args: Sequence[Any], given: dict[Place, Probe], place: Place) -> list[Any]:
        """Evaluate a frame; all sites of ``given`` lie in it."""
        environment = Environment(frame.jaxpr, frame.consts, args)
        inside: dict[int, dict[Place, Probe]] = {}
        for site, probe in given.items():
            inside.setdefault(site[len(place)], {})[site] = probe

        # Equations that stay as they are, are evaluated together.
        waiting: list[Any] = []
        for index, eqn in enumerate(frame.jaxpr.eqns):
            bodies = frame.children.get(index, ())
            is_rewritten = family_of(eqn).is_rewritten(eqn)
            if index not in inside and not is_rewritten and not any(self.is_rewritten_in(body) for body in bodies):
                waiting.append(eqn)
                continue
            environment.run(waiting)
            waiting = []
            here, values = (*place, index), environment.read_all(eqn.invars)
            if here in self.sites:
                outputs = _at_site(self.sites[here], values, given[here])
            elif is_rewritten:
                outputs = family_of(eqn).differentiable(eqn, values)
            else:
                outputs = self.nested(eqn, bodies, values, inside.get(index, {}), here)
            environment.write(eqn.outvars, outputs)
        environment.run(waiting)
        return environment.read_all(frame.jaxpr.outvars)

    def is_rewritten_in(self, frame: Frame) -> bool:
        """Return whether a frame holds an equation that is replaced though it is no site."""
        known = self.rewritten.get(id(frame))
        if known is None:
            own = any(family_of(eqn).is_rewritten(eqn) for eqn in frame.jaxpr.eqns)
            children = [child for bodies in frame.children.values() for child in bodies]
            known = own or any(self.is_rewritten_in(child) for child in children)
            self.rewritten[id(frame)] = known
        return known

    def nested(
        self, eqn: Any, bodies: Sequence[Frame], values: list[Any], given: dict[Place, Probe], place: Place
    ) -> Sequence[Any]:
        """Evaluate a loop, branch, checkpoint or derivative rule that holds sites."""
        name = eqn.primitive.name
        if name == "scan":
            return self.scan(eqn, bodies[0], values, given, place)
        if name == "cond":
            return self.cond(bodies, values, given, place)
        if name in REMAT:
            return self.checkpoint(eqn, bodies[0], values, given, place)
        assert name in CUSTOM
        return self.custom(eqn, values, given, place)

    def scan(self, eqn: Any, body: Frame, values: list[Any], given: dict[Place, Probe], place: Place) -> Sequence[Any]:
        scan = scan_of(eqn)
        assert scan is not None  # otherwise it has no body to look into
        num_before = scan.num_consts + scan.num_carry
        consts, carry, scanned = values[: scan.num_consts], values[scan.num_consts : num_before], values[num_before:]

        def step(carry: list[Any], inputs: Any) -> tuple[list[Any], list[Any]]:
            scanned, given = inputs
            outputs = self.frame(body, [*consts, *carry, *scanned], given, (*place, 0))
            return outputs[: scan.num_carry], outputs[scan.num_carry :]

        carry, stacked = lax.scan(
            step, carry, (scanned, given), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
        )
        return [*carry, *stacked]

    def cond(
        self, branches: Sequence[Frame], values: list[Any], given: dict[Place, Probe], place: Place
    ) -> Sequence[Any]:
        def branch(number: int) -> Callable[..., list[Any]]:
            own = [site for site in given if site[len(place)] == number]

            def evaluate(args: list[Any], given: dict[Place, Probe]) -> list[Any]:
                return self.frame(branches[number], args, {site: given[site] for site in own}, (*place, number))

            return evaluate

        return lax.switch(values[0], [branch(number) for number in range(len(branches))], values[1:], given)

    def checkpoint(
        self, eqn: Any, body: Frame, values: list[Any], given: dict[Place, Probe], place: Place
    ) -> Sequence[Any]:
        again = jax.checkpoint(
            lambda values, given: self.frame(body, values, given, (*place, 0)),
            prevent_cse=eqn.params.get("prevent_cse", True),
            policy=eqn.params.get("policy"),
        )
        return again(values, given)

    def custom(self, eqn: Any, values: list[Any], given: dict[Place, Probe], place: Place) -> Sequence[Any]:
        gradients = {site: self.sites[site].gradient for site in given}  # type: ignore[attr-defined]
        rule = next(iter(gradients.values())).rule

        # The backward half gives the cotangents of the inputs that are no weights, and the values that are carried.
        answered = [operand for operand in rule.operands if (*place, operand) not in given]
        carried = [(site, variable) for site, gradient in gradients.items() for variable in gradient.variables]
        results = [*(rule.cotangent(operand) for operand in answered), *(variable for _, variable in carried)]
        forward, backward = forward_and_backward(rule, results)

        def respond(saved: list[Any], cotangents: list[Array]) -> tuple[Any, None, dict[Place, Probe]]:
            found = backward(saved, cotangents)
            inputs = dict(zip(answered, found, strict=False))
            collected: dict[Place, Probe] = dict.fromkeys(given, ())
            for (site, _), x in zip(carried, found[len(answered) :], strict=True):
                if not jnp.issubdtype(x.dtype, jnp.floating):
                    x = _encoded(x, max(eqn.invars[site[-1]].aval.shape))
                collected[site] += (x,)
            return [inputs.get(operand) for operand in range(len(values))], None, collected

        function = jax.custom_vjp(lambda inputs, consts, probes: forward(inputs, consts)[0])
        function.defvjp(lambda inputs, consts, probes: forward(inputs, consts), respond)
        return function(values, list(rule.frame.consts), given)


def _at_site(site: AbstractSite, values: Sequence[Any], probe: Probe) -> list[Array]:
    """Evaluate a primitive at a site."""
    family, eqn, operand = family_of(site.eqn), site.eqn, site.operand
    place = family.data_operand(eqn, operand)

    # Everything is an argument: a function of custom derivative must not close over values of a trace.
    def primal(values: list[Any], probe: Probe) -> Array:
        return family.evaluate(eqn, values)[0]

    def forward(values: list[Any], probe: Probe) -> tuple[Array, list[Any]]:
        return primal(values, probe), values

    def backward(values: list[Any], s: Array) -> tuple[list[Any], Probe]:
        x = values[place]
        answers: list[Any] = [None] * len(values)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return answers, (_encoded(x, max(eqn.invars[operand].aval.shape)), s)
        answers[place] = family.data_gradient(eqn, operand, values, s)
        return answers, (x, s)

    function = jax.custom_vjp(primal)
    function.defvjp(forward, backward)
    return [function(list(values), probe)]


def replay(frame: Frame, args: Sequence[Any], sites: dict[Place, AbstractSite], given: dict[Place, Probe]) -> list[Any]:
    """Return the outputs of a frame in which every site has the probe that it is given."""
    return _Replay(sites).frame(frame, args, given, ())


def parameter_values(frame: Frame, leaves: Sequence[Array], variables: set[Any]) -> dict[Any, Array]:
    """Return the values of variables of the outermost frame that depend on parameters and constants alone."""
    data = frame.jaxpr.invars[len(leaves) :]
    environment = Environment(frame.jaxpr, frame.consts, [*leaves, *(None for _ in data)])
    environment.run(leading_to(frame.jaxpr, list(variables)))
    return {variable: environment.read(variable) for variable in variables}
