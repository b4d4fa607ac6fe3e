"""The layer that checks what callers pass: it refuses, names the argument, and shows no data."""

import enum
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax import accounting, sampling, training
from gdpjax._core import arguments, checks
from gdpjax._core.shown import shown


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
    np.array(["x"]), _Name.A,
]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_real_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^epsilon must be a finite number >= 0, got "):
        checks.check("epsilon", value, checks.NONNEGATIVE)


def test_numbers_of_every_kind_pass() -> None:
    for value in (1, 1.5, np.float32(2), np.uint8(3), jnp.bfloat16(1), jnp.arange(3), [1, 2.0], 2**70, np.int64(4)):
        checks.check("x", value, checks.NONNEGATIVE)


@pytest.mark.parametrize("value", [1.5, 0, -5, 2**31, 2**63, float("nan"), float("inf"), "3", True, np.ones(1)])
def test_counts_are_whole_and_fit_an_index(value: object) -> None:
    with pytest.raises(ValueError, match="num_steps must be"):
        arguments.check_count("num_steps", value)


@pytest.mark.parametrize("domain", [checks.COUNT, checks.WHOLE], ids=lambda domain: domain.text)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.array([1.0, np.inf])])
def test_infinity_is_no_whole_number(domain: checks.Domain, value: object) -> None:
    """NumPy warns of inf // 1, and here every warning is an error."""
    with pytest.raises(ValueError, match="n must be a whole number"):
        checks.check("n", value, domain)


def test_counts_in_accounting_end_where_float64_is_no_longer_exact() -> None:
    for value in (2**53, 2**63, 1e300):
        with pytest.raises(ValueError, match="at most 9007199254740991, got"):
            checks.check("num_steps", value, checks.COUNT)


def test_choices_flags_functions_instances() -> None:
    with pytest.raises(ValueError, match="did you mean 'poisson'"):
        arguments.check_choice("sampling", "poison", ("poisson", "uniform"))
    with pytest.raises(ValueError, match="sampling must be one of"):
        arguments.check_choice("sampling", np.array(["poisson"]), ("poisson", "uniform"))
    with pytest.raises(ValueError, match="has_aux must be True or False, got 1"):
        arguments.check_flag("has_aux", 1)
    with pytest.raises(ValueError, match="loss_fn must be a function, got 3"):
        arguments.check_callable("loss_fn", 3)
    with pytest.raises(ValueError, match="key must be a dict, made elsewhere; got "):
        arguments.check_instance("key", _Broken(), dict, "made elsewhere")


def test_trees_name_the_leaf_that_is_no_array() -> None:
    arguments.check_tree("params", {"w": jnp.ones(2), "b": [1.0, None, jax.ShapeDtypeStruct((2,), np.float32)]})
    with pytest.raises(ValueError, match=r"params must be a pytree of arrays, got 'x' at \['w'\]\[1\]"):
        arguments.check_tree("params", {"w": [1.0, "x"]})


def test_unknown_keywords_are_guessed() -> None:
    @arguments.keyword_checked(steps_total="num_steps")
    def made(*, clip: float, num_steps: int = 1) -> float:
        return clip * num_steps

    assert made(clip=2.0) == 2.0
    with pytest.raises(ValueError, match="no argument 'clipp'; did you mean 'clip'"):
        made(clipp=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="did you mean 'num_steps'"):
        made(clip=1.0, steps_total=2)  # type: ignore[call-arg]


def test_keywords_of_a_class_are_guessed_under_its_name() -> None:
    class Kept:
        @arguments.keyword_checked(batch_size="rows")
        def __init__(self, rows: int) -> None:
            self.rows = rows

    assert Kept(3).rows == Kept(rows=3).rows == 3
    assert list(inspect.signature(Kept).parameters) == ["rows"]
    with pytest.raises(ValueError, match=r"^Kept has no argument 'batch_size'; did you mean 'rows'"):
        Kept(batch_size=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"^Kept has no argument 'other'; it takes rows$"):
        Kept(3, other=3)  # type: ignore[call-arg]


WRONG_CALLS = [
    (lambda: accounting.epsilon_bounds(sigma=1.0), "epsilon_bounds has no argument 'sigma'.*'noise_multiplier'"),
    (lambda: gdpjax.privatize(1, noise_multiplier=1.0, seed=0), "privatize has no argument 'seed'.*'key'"),
    (
        lambda: sampling.Poisson(100, batch_size=10, num_steps=1),
        "Poisson has no argument 'batch_size'.*'expected_batch",
    ),
    (lambda: training.private_training(1, 2, 3, has_aux=True), "private_training has no argument 'has_aux'; it takes"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS, ids=[message.split()[0] for _, message in WRONG_CALLS])
def test_wrong_keywords_of_public_functions_are_value_errors(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_signatures_are_those_that_were_written() -> None:
    names = list(inspect.signature(gdpjax.privatize).parameters)
    assert names[:4] == ["clip", "noise_multiplier", "batches", "key"]
    assert list(inspect.signature(sampling.Poisson).parameters)[:2] == ["num_examples", "expected_batch_size"]
    assert inspect.signature(accounting.epsilon_bounds).return_annotation is not inspect.Signature.empty


def test_a_loss_that_returns_a_tuple_is_told_to_return_the_loss_alone() -> None:
    plan = gdpjax.make_plan(
        noise_multiplier=2.0, clip=1.0, max_examples=8, expected_batch_size=4, num_steps=1, delta=1e-5
    )
    loop = training.private_training(plan, lambda w, x: ((w * x).sum(), x), optax.sgd(0.1), num_arrays=1)
    state = loop.init(np.ones(2, np.float32), gdpjax.fresh_key())
    with pytest.raises(ValueError, match="with has_aux=True takes"):
        loop.step(state, loop.place(np.ones((8, 2), np.float32)))


def test_shown_never_raises_is_short_and_prints_no_data() -> None:
    secret = np.full(3, 0.123456789)
    nested: list = []
    for _ in range(200):
        nested = [nested]
    values = [
        *NO_NUMBERS, _Broken(), secret, jnp.asarray(secret), [secret, 0.123456789], {"x": (secret, "0.123456789")},
        nested, {_Broken(): _Broken()}, "0" * 10_000, 10**5000, checks, shown, {1: 1, "a": secret}, set("ab"), _Broken,
        np.float32(2), list(range(10**5)), jax.random.split(jax.random.key(0)),
    ]  # fmt: skip
    for value in values:
        text = shown(value)
        assert "1234567" not in text
        assert len(text) < 200, text
    assert shown([secret, 1.0]) == "[float64[3], float]"
    assert shown(jax.random.key(0)) == "an array of key<fry>[]"


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
