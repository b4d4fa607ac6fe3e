"""One stream of randomness per use.

Without a seed every stream has its own key from the system's entropy. With one they are derived from it, and anyone
who knows the seed can compute the noise and subtract it: reproducible, therefore not private against them.
"""

from typing import NamedTuple

import jax

import gdpjax

SEED_NOTICE = "seeded run: it is reproducible, and therefore NOT private against anyone who knows the seed"


class Keys(NamedTuple):
    """Keys of the initial weights, and of the private training: sampling and noise."""

    init: jax.Array
    training: jax.Array


def make_keys(seed: int | None) -> Keys:
    """Independent keys, from the system's entropy or from a seed."""
    if seed is None:
        return Keys(gdpjax.fresh_key(), gdpjax.fresh_key())
    return Keys(*jax.random.split(jax.random.key(seed), 2))
