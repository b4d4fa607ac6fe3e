"""The layer that checks what callers pass: it refuses, names the argument, and shows no data."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import accounting, sampling, training
from tests.refused import refusals


class _Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__

    @property
    def dtype(self) -> str:
        raise RuntimeError("no dtype")


class _Name(enum.Enum):
    A = 1


NO_NUMBERS = [
    None, True, np.True_, "1", b"1", ["1"], 1j, np.ones(2, complex), object(), {"a": 1}, [True], [None], lambda: 1, int,
    np.array(["x"]), _Name.A, np.ma.masked, np.ma.array([1.0, 2.0], mask=[True, False]),
]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_real_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^epsilon must be a finite number >= 0, got "):
        accounting.gdp_delta(value, 1.0)


test_wrong_keywords_of_public_functions_are_value_errors = refusals(
    (lambda: accounting.epsilon_bounds(sigma=1.0), "epsilon_bounds has no argument 'sigma'.*'noise_multiplier'"),
    (lambda: gdpjax.privatize(1, noise_multiplier=1.0, seed=0), "privatize has no argument 'seed'.*'key'"),
    (
        lambda: sampling.Poisson(100, batch_size=10, num_steps=1),
        "Poisson has no argument 'batch_size'.*'expected_batch",
    ),
    (lambda: training.private_training(1, 2, 3, has_aux=True), "private_training has no argument 'has_aux'; it takes"),
)


def test_a_loss_that_returns_a_tuple_is_told_to_return_the_loss_alone() -> None:
    plan = gdpjax.make_plan(
        noise_multiplier=2.0, clip=1.0, max_examples=8, expected_batch_size=4, num_steps=1, delta=1e-5
    )
    loop = training.private_training(plan, lambda w, x: ((w * x).sum(), x), optax.sgd(0.1), num_arrays=1)
    state = loop.init(np.ones(2, np.float32), gdpjax.fresh_key())
    with pytest.raises(ValueError, match="with has_aux=True takes"):
        loop.step(state, loop.place(np.ones((8, 2), np.float32)))


def refusal_of(value) -> str:
    """Return the message with which anything but the name of a way of sampling is refused."""
    with pytest.raises(ValueError, match="sampling must be one of") as refused:
        accounting.epsilon_bounds(1.0, 0.1, 1, 1e-5, sampling=value)
    return str(refused.value)


def test_refusals_never_fail_are_short_and_print_no_data() -> None:
    secret = np.full(3, 0.123456789)
    nested: list = []
    for _ in range(200):
        nested = [nested]
    values = [
        *NO_NUMBERS, secret, jnp.asarray(secret), [secret, 0.123456789], {"x": (secret, "0.123456789")}, nested,
        {_Broken(): _Broken()}, "0" * 10_000, 10**5000, gdpjax, {1: 1, "a": secret}, set("ab"), _Broken,
        np.float32(2), list(range(10**5)), jax.random.split(jax.random.key(0)),
    ]  # fmt: skip
    for value in values:
        text = refusal_of(value)
        assert "1234567" not in text
        assert len(text) < 300, text
    assert "[float64[3], float]" in refusal_of([secret, 1.0])
    assert "an array of key<fry>[]" in refusal_of(jax.random.key(0))


def test_a_bracket_is_written_with_its_ends_rounded_outward():
    assert f"{gdpjax.Bounds(3.2462, 16.5231):.2f}" == "[3.24, 16.53]"
    assert f"{gdpjax.Bounds(np.float64(0.5), jnp.float32(0.5)):.1f}" == "[0.5, 0.5]"
    assert f"{gdpjax.Bounds(1.7e308, np.inf):.3f}".endswith(".000, inf]")
    assert f"{gdpjax.Bounds(2.67462, 2.67614)}" == str(gdpjax.Bounds(2.67462, 2.67614)) == "[2.6746, 2.6762]"
    with pytest.raises(ValueError, match=r"such as \.3f, got '\.3g'"):
        format(gdpjax.Bounds(1.0, 2.0), ".3g")


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (gdpjax.Bounds(0.0, np.inf), "[0, inf]"),
        (gdpjax.Bounds(1.95575e-7, 1.95771e-7), "[1.9557e-07, 1.9578e-07]"),
        (gdpjax.Bounds(np.array([1 / 7, 2.0]), np.array([1 / 6, 2.0])), "[[0.14285, 0.16667], [2, 2]]"),
        (gdpjax.Bounds("a", None), "Bounds(lower='a', upper=None)"),
    ],
)
def test_a_printed_bracket_is_rounded_outward(bounds, text):
    assert str(bounds) == text
