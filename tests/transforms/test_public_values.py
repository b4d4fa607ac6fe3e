"""Extra arguments of `update` after the noise: private ones are refused, public ones reach what asks for them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from tests.transforms.test_wrappers import PARAMS, PRIVATE, private, sums_for

pytestmark = pytest.mark.usefixtures("cheap_noise")
FALLING, RISING = (4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0)


def on_plateau():
    return optax.contrib.reduce_on_plateau(factor=0.1, patience=1)


AFTER = {
    "reduce_on_plateau": (on_plateau, {"value": 1.0}),
    "polyak_sgd": (optax.polyak_sgd, {"value": 1.0}),
    "momo": (optax.contrib.momo, {"value": 1.0}),
    "backtracking": (
        lambda: optax.scale_by_backtracking_linesearch(3),
        {"value": 1.0, "grad": PARAMS, "value_fn": lambda params: jnp.sum(params["w"] ** 2)},
    ),
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", PRIVATE)
def test_what_comes_after_the_noise_is_given_no_private_value(name, after):
    """Trap 82: with the same sums and noise, updates would tell falling losses from rising ones."""
    make, values = AFTER[after]
    tx = optax.chain(private(name), optax.sgd(0.1), make())
    with pytest.raises(ValueError, match="got value=, which transformations after the noise"):
        tx.update(sums_for(name), tx.init(PARAMS), PARAMS, **values)


@pytest.mark.parametrize("name", ["grad", "value_fn", "loss", "publicvalue"])
def test_no_name_but_a_public_one_is_let_through(name):
    tx = private("privatize")
    with pytest.raises(ValueError, match=f"pass public_{name}="):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, **{name: 1.0})


@pytest.mark.parametrize("wrap", [optax.chain, lambda tx: optax.contrib.schedule_free(tx, 0.1)])
def test_wrappers_hand_private_values_on_and_so_they_are_refused(wrap):
    tx = optax.chain(wrap(private("privatize")), on_plateau())
    with pytest.raises(ValueError, match="got value="):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=1.0)


def scales_after(values):
    """Return the factor of reduce_on_plateau after a scan over public values."""
    tx = optax.chain(private("privatize"), optax.sgd(0.1), gdpjax.public_values(on_plateau()))

    @jax.jit
    def run(values):
        def step(state, value):
            updates, state = tx.update(PARAMS, state, PARAMS, public_value=value)
            return state, updates

        return jax.lax.scan(step, tx.init(PARAMS), values)[0]

    state = run(jnp.array(values))
    assert gdpjax.ledger_of(state).num_steps == len(values)
    return float(state[-1].scale)


def test_a_public_validation_loss_lowers_the_learning_rate():
    assert scales_after(FALLING) == 1.0
    np.testing.assert_allclose(scales_after(RISING), 1e-3, rtol=1e-5)
