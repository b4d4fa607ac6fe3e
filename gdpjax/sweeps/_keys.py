"""One stream of randomness per use.

Without a seed every stream has its own key from the system's entropy. With one they are derived from it, and anyone
who knows the seed can compute the noise and subtract it: reproducible, therefore not private against them.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from gdpjax._core.keys import fresh_key

SEED_NOTICE = "seeded run: it is reproducible, and therefore NOT private against anyone who knows the seed"


class Keys(NamedTuple):
    """Keys of the initial parameters, and of the private training: sampling and noise."""

    init: Any
    training: Any


def make_keys(seed: int | None, settings: Mapping[str, object]) -> Keys:
    """Return independent keys, from the system's entropy, or from a seed and all settings of a training.

    Two settings with one seed get different keys: with the same noise, the difference of their results would have none.
    """
    if seed is None:
        return Keys(fresh_key(), fresh_key())
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).digest()
    first, second = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), first), second)
    return Keys(*jax.random.split(key, 2))
