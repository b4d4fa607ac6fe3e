"""Make a key for each use of randomness.

Without a seed every use has its own key from the system's entropy. With one they are derived from it, and anyone
who knows the seed can compute the noise and subtract it. Two trainings with one seed and the same settings on data that
differ have the same noise, which their difference does not have. So seeded trainings are reproducible, not private.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from gdpjax._core.keys import fresh_key

SEED_NOTICE = (
    "seeded run: it is reproducible, and therefore NOT private against anyone who knows the seed, or who sees what the "
    "same seed and settings gave on other data (the noise is the same)"
)


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
    return split_keys(with_settings(jax.random.key(seed), settings))


def split_keys(key: jax.Array) -> Keys:
    """Return the two keys of a training from one."""
    init_key, training_key = jax.random.split(key, 2)
    return Keys(init_key, training_key)


def with_settings(key: jax.Array, settings: Mapping[str, object]) -> jax.Array:
    """Return a key of ``key`` and all settings of a training; other settings get another one."""
    # 64 bits of a digest of the settings, in two words.
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).digest()
    first_word = int.from_bytes(digest[:4], "little")
    second_word = int.from_bytes(digest[4:8], "little")
    return jax.random.fold_in(jax.random.fold_in(key, first_word), second_word)
