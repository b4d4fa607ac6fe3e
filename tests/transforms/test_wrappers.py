"""Wrappers around a private transform: what each of optax does, which ledgers are read, and states that begin again."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import correlated
from gdpjax.sampling import PoissonNumbers, Promised

pytestmark = pytest.mark.usefixtures("cheap_noise")
PARAMS = {"w": jnp.ones((2, 3))}
ALL = {"w": True}


def every_other(step):
    return step % 2 == 0


def factory_of(tx):
    """Return `tx` as optax.inject_hyperparams takes it: a function of a hyperparameter."""
    return lambda factor: optax.chain(tx, optax.scale(factor))


WRAPPERS = {
    "chain": (lambda tx: optax.chain(tx, optax.scale(0.5)), "keeps it"),
    "named_chain": (lambda tx: optax.named_chain(("first", tx), ("second", optax.scale(0.5))), "keeps it"),
    "flatten": (optax.flatten, "keeps it"),
    "inject_hyperparams": (lambda tx: optax.inject_hyperparams(factory_of(tx))(0.5), "keeps it"),
    "masked": (lambda tx: optax.masked(tx, ALL), "keeps it"),
    "partition": (lambda tx: optax.partition({True: tx, False: optax.identity()}, ALL), "keeps it"),
    "selective_transform": (lambda tx: optax.selective_transform(tx, freeze_mask={"w": False}), "keeps it"),
    "schedule_free": (lambda tx: optax.contrib.schedule_free(tx, 0.1), "keeps it"),
    "lookahead": (lambda tx: optax.lookahead(tx, 2, 0.5), "keeps it here"),
    "lookahead, reset": (lambda tx: optax.lookahead(tx, 2, 0.5, reset_state=True), "begins again"),
    "split_real_and_imaginary": (optax.contrib.split_real_and_imaginary, "keeps it here"),
    "sam, adversary": (lambda tx: optax.contrib.sam(optax.sgd(0.0), tx), "begins again"),
    "sam": (lambda tx: optax.contrib.sam(tx, optax.identity()), "skips"),
    "conditionally_transform": (lambda tx: optax.conditionally_transform(tx, every_other), "skips"),
    "conditionally_mask": (lambda tx: optax.conditionally_mask(tx, every_other), "skips"),
    "apply_if_finite": (lambda tx: optax.apply_if_finite(tx, 3), "skips"),
    "MultiSteps": (lambda tx: optax.MultiSteps(tx, 2), "skips"),
    "sophia": (lambda tx: optax.contrib.sophia(0.1, update_interval=2, hessian_diagonal_fn=tx), "skips"),
    "galore": (lambda tx: optax.contrib.scale_by_galore(1, base_optimizer=tx), "changes the sum"),
    "mechanize": (optax.contrib.mechanize, "uses the sum"),
    "monitor": (lambda tx: optax.monitor({"noisy": tx}), "uses the sum"),
}
"""How each is made, and what it does to the transform inside; "here": not with every argument, or with every model."""


class ProbeState(NamedTuple):
    """The calls so far, and what the last one was given."""

    calls: Any
    given: Any


def probe():
    """Return a transform that answers with the number of the call, whatever the sum."""

    def init(params):
        return ProbeState(jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        calls = state.calls + 1
        answer = jax.tree.map(lambda leaf: jnp.full_like(leaf, calls), updates)
        return answer, ProbeState(calls, updates)

    return optax.GradientTransformation(init, update)


def is_probe(node):
    return isinstance(node, ProbeState)


def params_of(name):
    return optax.LookaheadParams.init_synced(PARAMS) if name.startswith("lookahead") else PARAMS


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def take_steps(tx, params, values):
    """Return what each step on a sum of these values answers, how often the probe was called, and what it was given."""

    @jax.jit
    def run():
        state = tx.init(params)
        steps = []
        for value in values:
            updates, state = tx.update({"w": jnp.full((2, 3), value)}, state, params)
            (inside,) = filter(is_probe, jax.tree.leaves(state, is_leaf=is_probe))
            steps.append((updates, inside.calls, inside.given))
        return steps

    return [(flat(updates), int(calls), flat(given)) for updates, calls, given in run()]


def observed(name):
    """Return what a wrapper is seen to do."""
    tx = WRAPPERS[name][0](probe())
    values = (2.0, 3.0, np.inf, 5.0)
    steps = take_steps(tx, params_of(name), values)
    calls = [count for _, count, _ in steps]
    if sorted(calls) != calls:
        return "begins again"
    if calls != [1, 2, 3, 4]:
        return "skips"
    if any((given != value).any() for value, (_, _, given) in zip(values, steps, strict=True)):
        return "changes the sum"
    others = take_steps(tx, params_of(name), (7.0,) * 4)
    if any((one[0] != other[0]).any() for one, other in zip(steps, others, strict=True)):
        return "uses the sum"
    return "keeps it"


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_ledger_is_read_only_in_wrappers_that_keep_what_is_inside(name):
    """Traps 42, 43 and 81: what each does is seen by running it around a transform that counts its calls."""
    if name in ("selective_transform", "monitor") and not hasattr(optax, name):
        pytest.skip("this optax has none")
    make, does = WRAPPERS[name]
    assert observed(name) == does.removesuffix(" here")
    state = make(private("privatize")).init(params_of(name))
    if does == "keeps it":
        assert len(gdpjax.ledger_of(state)) == 0
    else:
        with pytest.raises(ValueError, match="around the private transform"):
            gdpjax.ledger_of(state)


def private(name, **changes):
    """Return a private transform."""
    options = {"noise_multiplier": 1.0, "key": jax.random.key(0)} | changes
    sampled = {**options, "batches": PoissonNumbers(0.1, 1.0)}
    if name == "add_gaussian_noise":
        return gdpjax.add_gaussian_noise(1.0, options["key"])
    if name == "privatize_adaptive":
        return gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=1.0, **sampled)
    clip = gdpjax.Sensitivity(1.0)
    if name == "correlated":
        strategy = correlated.BandedInverse([1.0, -0.5], memory="buffer")
        keeps = correlated.MinSep(max_participations=2, min_separation=2)
        return gdpjax.privatize(clip, batches=Promised(1.0, 4, keeps), noise=strategy, **options)
    tx = gdpjax.privatize(clip, **sampled)
    return gdpjax.accumulate_clipped(tx, 2) if name == "accumulate_clipped" else tx


PRIVATE = ("privatize", "privatize_adaptive", "add_gaussian_noise", "correlated", "accumulate_clipped")


def sums_for(name):
    """Return what `update` of a private transform takes: a sum, or gradients of each example."""
    return jax.tree.map(lambda leaf: leaf[None], PARAMS) if name == "privatize_adaptive" else PARAMS


def selected(is_due, tx, state):
    return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), tx.init(PARAMS), state)


def branched(is_due, tx, state):
    return jax.lax.cond(is_due, lambda: tx.init(PARAMS), lambda: state)


def compiled_apart(is_due, tx, state):
    return selected(is_due, tx._replace(init=jax.jit(tx.init)), state)


@pytest.mark.parametrize("how", [selected, branched, compiled_apart])
@pytest.mark.parametrize("name", PRIVATE)
def test_a_wrapper_of_ones_own_that_begins_the_state_again_is_refused(name, how):
    """Trap 81: the noise of the first steps would be repeated, and the ledger would forget them."""
    tx = private(name)

    def update(state, is_due):
        updates, state = tx.update(sums_for(name), state, PARAMS)
        return updates, how(is_due, tx, state)

    with pytest.raises(ValueError, match="init of a private transform was called in a compiled step"):
        jax.eval_shape(update, tx.init(PARAMS), True)


def test_lookahead_that_resets_is_refused_when_it_is_compiled():
    tx = optax.lookahead(private("privatize"), 2, 0.5, reset_state=True)
    params = optax.LookaheadParams.init_synced(PARAMS)
    with pytest.raises(ValueError, match="after its update"):
        jax.eval_shape(tx.update, PARAMS, tx.init(params), params)
