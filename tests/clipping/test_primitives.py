"""The registry of primitives: a user's own family is used, and what is wrong is refused."""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.clipping import AbstractPrimitive, Full, Outer, register_primitive
from gdpjax.clipping._tracing import primitives


@pytest.fixture(autouse=True)
def _defaults():
    """The documentation registers primitives too, in this process maybe."""
    with mock.patch.dict(primitives._FAMILIES):
        primitives._FAMILIES.pop("cumsum", None)
        yield


@contextlib.contextmanager
def registered(name, family, *, replace=False):
    """Register a primitive inside a ``with`` statement, and restore the earlier family at its end."""
    with mock.patch.dict(primitives._FAMILIES):
        register_primitive(name, family, replace=replace)
        yield


class CumulativeSum(AbstractPrimitive):
    """w is added up along its first axis: so are its outer products, from the other end."""

    def is_linear(self, eqn, operand):
        return True

    def pull_back(self, factor, eqn, operand):
        if not isinstance(factor, Outer) or eqn.params["axis"] != 0:
            return super().pull_back(factor, eqn, operand)
        left = jnp.flip(jnp.cumsum(jnp.flip(factor.left, axis=1), axis=1), axis=1)
        return Outer(left, factor.right, factor.left_axes, factor.right_axes)


class Sine(AbstractPrimitive):
    """A family that is wrong on purpose, to see that it is asked."""

    def is_linear(self, eqn, operand):
        return True

    def pull_back(self, factor, eqn, operand):
        return Full(jnp.zeros(eqn.invars[0].aval.shape))


def loss(params, x):
    hidden = jnp.tanh(x @ jnp.cumsum(params["w"], axis=0))
    return jnp.sum(hidden @ jnp.cumsum(params["v"], axis=1))


def norms(strategy):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(5, 4)).astype(np.float32)
    v = rng.normal(size=(4, 3)).astype(np.float32)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    grad_fn = gdpjax.clipped_grad(loss, 1.0, strategy=strategy, return_info=True)
    clipped, info = jax.jit(grad_fn)({"w": w, "v": v}, x)
    return info.norms, clipped


def methods():
    params = {"w": jnp.ones((5, 4)), "v": jnp.ones((4, 3))}
    found = gdpjax.explain(loss, params, jnp.ones((6, 5)), strategy="ghost")
    return {leaf.name: (leaf.method, leaf.why) for leaf in found.leaves}


def test_a_registered_primitive_is_used_and_agrees_with_vmap():
    """Its gradients stay in factors, as long as it is registered."""
    before = methods()
    assert before["['w']"] == ("formed", "cumsum")
    expected = norms("vmap")
    with registered("cumsum", CumulativeSum()):
        assert methods() == {"['w']": ("outer product", "dot_general"), "['v']": ("formed", "dot_general")}
        for left, right in zip(jax.tree.leaves(norms("ghost")), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert methods() == before


def test_a_name_is_taken_once():
    """A second family would replace the first unseen."""
    with pytest.raises(ValueError, match="registered already"):
        register_primitive("dot_general", CumulativeSum())
    with registered("sin", Sine(), replace=True), pytest.raises(ValueError, match="registered already"):
        register_primitive("sin", Sine())


def test_an_unknown_primitive_is_refused_until_it_is_vouched_for():
    """Registering it does."""
    from jax.extend.core import Primitive
    from jax.interpreters import batching

    doubled = Primitive("doubled_by_a_user")
    doubled.def_impl(lambda x: 2 * x)
    doubled.def_abstract_eval(lambda x: x)
    batching.defvectorized(doubled)

    def explained():
        return gdpjax.explain(lambda w, x: jnp.sum(w * doubled.bind(x)), jnp.ones(3), jnp.ones((4, 3)))

    with pytest.raises(ValueError, match="not known to act on one example"):
        explained()
    with registered("doubled_by_a_user", AbstractPrimitive()):
        assert explained().leaves
