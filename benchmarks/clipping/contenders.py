"""Everybody's gradient step on JAX, without noise and update: ``step(params, x, y, *frozen)``.

Each is called as its own documentation does. Those with a microbatch size are tried over several. What a contender
needs is imported when it is built, so that a missing package is reported and not fatal.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.clipping.cases import AUTO, NO_PRIVACY
from gdpjax import clipped_grad

MICROBATCH_SIZES = (1, 4, 16, 64, 256)
Step = Callable[..., Any]
BATCH_ARGNUMS = (1, 2)


class Contender(NamedTuple):
    """``build(loss, clip_norm, microbatch_size)`` gives the step; size None: the whole batch, or its own choice."""

    name: str
    build: Callable[[Callable[..., Any], float, int | None], Step]
    module: str = "jax"
    sized: bool = False
    whole: bool = True

    def sizes(self, batch_size: int) -> tuple[int | None, ...]:
        """Return the microbatch sizes to try, all divisors of the batch."""
        some = tuple(k for k in MICROBATCH_SIZES if self.sized and k < batch_size and batch_size % k == 0)
        return (None,) * self.whole + some

    def missing(self) -> str | None:
        """Return why it cannot be imported, or None."""
        return why_missing(self.module)


def why_missing(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


def _axes(frozen: tuple[Any, ...]) -> tuple[int | None, ...]:
    return (None, 0, 0, *(None for _ in frozen))


def _no_privacy(loss: Callable[..., Any], clip_norm: float, size: int | None) -> Step:
    def step(params: Any, x: Any, y: Any, *frozen: Any) -> Any:
        return jax.grad(lambda p: jax.vmap(loss, _axes(frozen))(p, x, y, *frozen).mean())(params)

    return step


def _plain_vmap(loss: Callable[..., Any], clip_norm: float, size: int | None) -> Step:
    def step(params: Any, x: Any, y: Any, *frozen: Any) -> Any:
        grads = jax.vmap(jax.grad(loss), _axes(frozen))(params, x, y, *frozen)
        leaves = [g.reshape(g.shape[0], -1) for g in jax.tree.leaves(grads)]
        norms = jnp.sqrt(sum(jnp.square(g).sum(1) for g in leaves))
        scale = jnp.minimum(1.0, clip_norm / norms)
        return jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), grads)

    return step


def _gdpjax(strategy: str) -> Callable[[Callable[..., Any], float, int | None], Step]:
    def build(loss: Callable[..., Any], clip_norm: float, size: int | None) -> Step:
        return clipped_grad(
            loss, clip_norm, batch_argnums=BATCH_ARGNUMS, strategy=strategy, microbatch_size=size, shared_argnums=3
        ).__call__

    return build


def _jax_privacy(loss: Callable[..., Any], clip_norm: float, size: int | None) -> Step:
    return importlib.import_module("jax_privacy").clipped_grad(
        loss, l2_clip_norm=clip_norm, batch_argnums=BATCH_ARGNUMS, keep_batch_dim=False, microbatch_size=size
    )


def _optax(loss: Callable[..., Any], clip_norm: float, size: int | None) -> Step:
    """It divides by the batch size, which is undone, and draws its noise even when that is zero, which stays."""
    contrib = importlib.import_module("optax.contrib")

    def step(params: Any, x: Any, y: Any, *frozen: Any) -> Any:
        aggregate = contrib.differentially_private_aggregate(clip_norm, 0.0, key=jax.random.key(0))
        grads = jax.vmap(jax.grad(loss), _axes(frozen))(params, x, y, *frozen)
        mean, _ = aggregate.update(grads, aggregate.init(params))
        return jax.tree.map(lambda leaf: leaf * x.shape[0], mean)

    return step


PLAIN_VMAP = "plain vmap"

JAX_CONTENDERS = (
    Contender(NO_PRIVACY, _no_privacy),
    Contender(AUTO, _gdpjax("auto")),
    Contender("gdpjax ghost", _gdpjax("ghost"), sized=True),
    Contender("gdpjax microbatch", _gdpjax("microbatch"), sized=True, whole=False),
    Contender("gdpjax vmap", _gdpjax("vmap")),
    Contender(PLAIN_VMAP, _plain_vmap),
    Contender("jax_privacy", _jax_privacy, "jax_privacy", sized=True),
    Contender("optax.contrib", _optax, "optax.contrib"),
)
