"""One stream of randomness per use.

Without a seed every stream has its own key from the system's entropy. With one they are derived from it, and anyone
who knows the seed can compute the noise and subtract it: reproducible, therefore not private against them.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

import jax

import gdpjax

SEED_NOTICE = "seeded run: it is reproducible, and therefore NOT private against anyone who knows the seed"


class Keys(NamedTuple):
    """Keys of the initial weights, and of the private training: sampling and noise."""

    init: jax.Array
    training: jax.Array


def make_keys(seed: int | None, config: Mapping[str, object]) -> Keys:
    """Independent keys, from the system's entropy, or from a seed and a configuration.

    Two configurations with one seed get different keys: with the same noise, the difference of their results would
    have none.
    """
    if seed is None:
        return Keys(gdpjax.fresh_key(), gdpjax.fresh_key())
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).digest()
    key = jax.random.fold_in(jax.random.key(seed), int.from_bytes(digest[:4], "little"))
    return Keys(*jax.random.split(jax.random.fold_in(key, int.from_bytes(digest[4:8], "little")), 2))
