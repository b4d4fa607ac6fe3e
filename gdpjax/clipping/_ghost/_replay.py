"""Evaluate a loss again with a probe at every site, whose derivative is what the site saw.

A site y = f(W, x) is replaced by a function of custom derivative with one more argument, a probe of zeros that it does
not use. Its backward pass answers to x as f does, to W not at all (no weight gradient is formed), and to the probe with
the pair (x, s): the data that met the weight, and the cotangent of y. So one `jax.grad` with respect to the parameters
that JAX differentiates and to the probes gives everything, through scans (the probes are scanned over, and come back
stacked), branches and checkpoints (x is recomputed with the rest). A layer with a derivative of its own is replaced in
the same way by the two halves of its rule (`_custom`), and answers with the values that the rule multiplies.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._ghost import _convolution, _sites
from gdpjax.clipping._ghost._custom import halves
from gdpjax.clipping._ghost._jaxpr import CUSTOM, REMAT, Env, Frame, evaluate, leading_to, scan_of
from gdpjax.clipping._ghost._uses import Place, Site

Probe = tuple[Array, ...]
_LOW = 12
"""Bits of an index in the second of the two floats that carry it."""


def probes(sites: dict[Place, Site]) -> dict[Place, Probe]:
    """Zeros, with a leading axis for each scan around the site."""

    def zeros(site: Site, aval: Any) -> Array:
        if jnp.issubdtype(aval.dtype, jnp.floating):
            return jnp.zeros((*site.lengths, *aval.shape), aval.dtype)
        return jnp.zeros((*site.lengths, 2, *aval.shape), jnp.float32)

    return {place: tuple(zeros(site, aval) for aval in site.carried) for place, site in sites.items()}


def decoded(site: Site, seen: Probe) -> list[Array]:
    """What a site saw, from what its probe returned (without axes of scans)."""
    return [
        x if jnp.issubdtype(aval.dtype, jnp.floating)
        else (x[0].astype(jnp.int32) << _LOW) + x[1].astype(jnp.int32)
        for x, aval in zip(seen, site.carried, strict=True)
    ]  # fmt: skip


def _encoded(x: Array, size: int) -> Array:
    """A differentiable carrier of indices, those below 0 as -1 and those above ``size`` as that: two floats, exact."""
    limits = jnp.iinfo(x.dtype)
    index = jnp.clip(x, max(-1, limits.min), min(size, limits.max)).astype(jnp.int32)
    return jnp.stack([index >> _LOW, index & ((1 << _LOW) - 1)]).astype(jnp.float32)


def _tapped(site: Site, values: Sequence[Any], probe: Probe) -> list[Array]:
    place = _sites.data_operand(site.eqn, site.operand)

    # Everything is an argument: a function of custom derivative must not close over values of a trace.
    def primal(x: Array, others: tuple[Any, ...]) -> Array:
        return _plainly(site.eqn, [*others[:place], x, *others[place:]])[0]

    def forward(x: Array, others: tuple[Any, ...], probe: Probe) -> tuple[Array, Any]:
        return primal(x, others), (x, others)

    def backward(saved: tuple[Array, tuple[Any, ...]], s: Array):
        x, others = saved
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return None, None, (_encoded(x, max(site.eqn.invars[site.operand].aval.shape)), s)
        if _convolution.is_rewritten(site.eqn):
            layout = _convolution.layout_of(site.eqn)
            return _convolution.input_gradient(layout, x, others[0], s), None, (x, s)
        _, pull = jax.vjp(lambda x: primal(x, others), x)
        return (*pull(s), None, (x, s))

    function = jax.custom_vjp(lambda x, others, probe: primal(x, others))
    function.defvjp(forward, backward)
    return [function(values[place], tuple(v for i, v in enumerate(values) if i != place), probe)]


def _plainly(eqn: Any, values: Sequence[Any]) -> list[Any]:
    if _convolution.is_rewritten(eqn):
        return [_convolution.forward(_convolution.layout_of(eqn), *values)]
    return evaluate(eqn, values)


def _has_rewritten(frame: Frame) -> bool:
    own = any(_convolution.is_rewritten(eqn) for eqn in frame.jaxpr.eqns)
    return own or any(_has_rewritten(child) for children in frame.children.values() for child in children)


def replay(frame: Frame, args: Sequence[Any], sites: dict[Place, Site], given: dict[Place, Probe], place: Place = ()):
    """Evaluate the frame with every site (all of ``given`` lie in this frame) and every convolution replaced."""
    env = Env(frame.jaxpr, frame.consts, args)
    run: list[Any] = []
    inside: dict[int, dict[Place, Probe]] = {}
    for site, probe in given.items():
        inside.setdefault(site[len(place)], {})[site] = probe
    for index, eqn in enumerate(frame.jaxpr.eqns):
        bodies = frame.children.get(index, ())
        rewritten = _convolution.is_rewritten(eqn)
        if index not in inside and not rewritten and not any(_has_rewritten(body) for body in bodies):
            run.append(eqn)
            continue
        env.run(run)
        run = []
        here, values = (*place, index), env.read_all(eqn.invars)
        if here in sites:
            outputs = _tapped(sites[here], values, given[here])
        elif rewritten:
            outputs = [_convolution.convolve(eqn, *values)]
        else:
            outputs = _NESTED[eqn.primitive.name](eqn, bodies, values, sites, inside.get(index, {}), here)
        env.write(eqn.outvars, outputs)
    env.run(run)
    return env.read_all(frame.jaxpr.outvars)


def _scan(eqn: Any, bodies: Any, values: list[Any], sites: Any, given: dict[Place, Probe], place: Place):
    scan = scan_of(eqn)
    assert scan is not None  # else it has no body to look into
    carried = scan.num_consts + scan.num_carry
    consts, carry, scanned = values[: scan.num_consts], values[scan.num_consts : carried], values[carried:]

    def body(carry: list[Any], inputs: Any):
        scanned, given = inputs
        outputs = replay(bodies[0], [*consts, *carry, *scanned], sites, given, (*place, 0))
        return outputs[: scan.num_carry], outputs[scan.num_carry :]

    carry, stacked = lax.scan(
        body, carry, (scanned, given), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*carry, *stacked]


def _cond(eqn: Any, bodies: Any, values: list[Any], sites: Any, given: dict[Place, Probe], place: Place):
    def branch(number: int):
        mine = {site: probe for site, probe in given.items() if site[len(place)] == number}
        return lambda args, given: replay(bodies[number], args, sites, {site: given[site] for site in mine}, (
            *place, number))  # fmt: skip

    return lax.switch(values[0], [branch(number) for number in range(len(bodies))], values[1:], given)


def _remat(eqn: Any, bodies: Any, values: list[Any], sites: Any, given: dict[Place, Probe], place: Place):
    again = jax.checkpoint(
        lambda values, given: replay(bodies[0], values, sites, given, (*place, 0)),
        prevent_cse=eqn.params.get("prevent_cse", True), policy=eqn.params.get("policy"),
    )  # fmt: skip
    return again(values, given)


def _custom(eqn: Any, bodies: Any, values: list[Any], sites: Any, given: dict[Place, Probe], place: Place):
    rules = {site: sites[site].rule for site in given}
    pull = next(iter(rules.values())).pull
    answered = [i for i in pull.operands if (*place, i) not in given]
    seen = [(site, atom) for site, rule in rules.items() for atom in rule.atoms]
    forward, backward = halves(pull, [*(pull.cotangent(i) for i in answered), *(atom for _, atom in seen)])

    def respond(saved: list[Any], cotangents: list[Array]):
        found = backward(saved, cotangents)
        inputs = dict(zip(answered, found, strict=False))
        collected: dict[Place, Probe] = dict.fromkeys(given, ())
        for (site, _), x in zip(seen, found[len(answered) :], strict=True):
            real = jnp.issubdtype(x.dtype, jnp.floating)
            collected[site] += (x if real else _encoded(x, max(eqn.invars[site[-1]].aval.shape)),)
        return [inputs.get(i) for i in range(len(values))], None, collected

    function = jax.custom_vjp(lambda inputs, consts, probes: forward(inputs, consts)[0])
    function.defvjp(lambda inputs, consts, probes: forward(inputs, consts), respond)
    return function(values, list(pull.frame.consts), given)


_NESTED = {"scan": _scan, "cond": _cond} | dict.fromkeys(REMAT, _remat) | dict.fromkeys(CUSTOM, _custom)


def parameter_values(frame: Frame, leaves: Sequence[Array], wanted: set[Any]) -> dict[Any, Array]:
    """Values of variables of the outermost frame that depend on parameters and constants alone."""
    env = Env(frame.jaxpr, frame.consts, [*leaves, *(None for _ in frame.jaxpr.invars[len(leaves) :])])
    env.run(leading_to(frame.jaxpr, list(wanted)))
    return {v: env.read(v) for v in wanted}
