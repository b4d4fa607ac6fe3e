"""Values passed by mistake do not become silent nonsense: no privacy statement is made of NaN, of a text or of a seed.

`CALLS` has a valid call of every public function that a number of a privacy statement goes into. In each of them one
argument after another is replaced. An error of any kind is a good end.
"""

import contextlib
import enum
import functools
import warnings

import jax
import numpy as np
import pytest

import gdpjax
from gdpjax import accounting, auditing, correlated, ledger, mechanisms, sampling, tradeoff, training
from gdpjax.ledger import Event, Ledger
from gdpjax.mechanisms import DiscreteGaussianMechanism, GaussianMechanism, LaplaceMechanism, RandomizedResponse
from gdpjax.sampling import CyclicPoisson, Poisson, PoissonNumbers, Shuffled
from gdpjax.tradeoff import Gaussian, Laplace, PiecewiseLinear

KEY = jax.random.key(7)
PARAMS = {"w": np.ones(2, np.float32), "b": np.zeros((), np.float32)}
GRADS = {"w": np.ones((4, 2), np.float32), "b": np.ones(4, np.float32)}
TRAINABLE = {"w": True, "b": True}
RUN = (1.0, 0.1, 10)
EVENT = Event(*RUN)
PRIVATE = {"noise_multiplier": 1.0, "batches": PoissonNumbers(0.1, 4.0), "key": KEY}
TARGET = {"epsilon": 3.0, "delta": 1e-3, "sampling_prob": 0.1, "accountant": "rdp"}
PLANNED = {"clip": 1.0, "max_examples": 8, "expected_batch_size": 2.0, "epochs": 1.0, "delta": 1e-3}
TUNING = {"eta": 0.5, "gamma": 0.1}
REPLACE_ONE = gdpjax.NeighboringRelation.REPLACE_ONE
SENSITIVITY = gdpjax.Sensitivity(1.0)
CYCLIC = CyclicPoisson(20, 4.0, 3, num_groups=2)
SHUFFLED = Shuffled(20, 4.0, epochs=2.0)
SUBSAMPLED = mechanisms.PoissonSubsampled(GaussianMechanism(1.0), 0.1)


def loss(params, x):
    return (params["w"] * x).sum() + params["b"]


def step_of(make, updates=PARAMS):
    """Make an optax transformation and take one step with it, so that a bad argument cannot hide in it."""

    @functools.wraps(make)
    def step(*args, **kwargs):
        tx = make(*args, **kwargs)
        return tx.update(updates, tx.init(PARAMS), PARAMS)

    return step


@functools.wraps(gdpjax.clipped_grad)
def clipped_sum(*args, **kwargs):
    return gdpjax.clipped_grad(*args, **kwargs)(PARAMS, GRADS["w"])


@functools.wraps(gdpjax.average_augmentations)
def loss_of_copies(*args, **kwargs):
    return gdpjax.average_augmentations(*args, **kwargs)(PARAMS, GRADS["w"])


@functools.wraps(gdpjax.accumulate_clipped)
def accumulated(clip, num_microbatches):
    return step_of(gdpjax.accumulate_clipped)(gdpjax.privatize(clip, **PRIVATE), num_microbatches)


def call(function, /, *args, **kwargs):
    """Return a call as it would be written: ``call(f, 1.0, delta=0.1)`` is that of ``f(1.0, delta=0.1)``."""
    return function, args, kwargs


CALLS = [
    # Sums and noise
    call(gdpjax.AutoS, 1.0, 0.01),
    call(gdpjax.Flat, 1.0),
    call(gdpjax.Normalize, 1.0),
    call(gdpjax.PerGroup, {"w": "a", "b": "a"}, {"a": 1.0}),
    call(gdpjax.PerLeaf, 1.0),
    call(gdpjax.Sensitivity, 1.0, True),
    call(clipped_sum, loss, 1.0, argnums=0, batch_argnums=1, strategy="auto", trainable=TRAINABLE, microbatch_size=2),
    call(gdpjax.clipped_grad(loss, 1.0).sensitivity, REPLACE_ONE),
    call(loss_of_copies, loss, 4, augmented_argnums=1),
    call(accumulated, SENSITIVITY, 2),
    call(step_of(gdpjax.add_gaussian_noise), 1.0, KEY),
    call(step_of(gdpjax.clip_and_sum, GRADS), 1.0, trainable=TRAINABLE, max_batch_size=8),
    call(step_of(gdpjax.dpsgd, GRADS), 0.1, 1.0, **PRIVATE, momentum=0.9),
    call(step_of(gdpjax.dpadam, GRADS), 0.1, 1.0, **PRIVATE, b1=0.9, b2=0.99, eps=1e-8),
    call(step_of(gdpjax.privatize), SENSITIVITY, **PRIVATE, noise=gdpjax.IndependentGaussian()),
    call(step_of(gdpjax.privatize), SENSITIVITY, **PRIVATE, neighboring_relation=REPLACE_ONE),
    call(step_of(gdpjax.privatize_adaptive, GRADS), **PRIVATE, initial_l2_clip_norm=1.0, count_stddev=2.0),
    # What was run
    call(Event, *RUN, overflow=0.0, neighboring_relation=REPLACE_ONE),
    call(Event.joint, 1.0, 2.0, sampling_prob=0.1, num_steps=3),
    call(Event.quantile_clipping, 1.0, 5.0, sampling_prob=0.1, num_steps=3),
    call(ledger.AllocationEvent, 1.0, 10, 3, 2, missing_steps=1),
    call(ledger.ApproximateDPEvent, 1.0, 1e-5, 2),
    call(ledger.GaussianEvent, 1.0, 2),
    call(ledger.LaplaceEvent, 1.0, 2, sampling_prob=0.1),
    call(ledger.OutcomesEvent, [0.5, 0.5], [0.4, 0.6], 2),
    call(ledger.CorrelatedGaussianEvent, 1.0, 10, 12, 2, 5, is_exact=False),
    call(ledger.CyclicPoissonEvent, 1.0, 0.1, 10, 3, overflow=1e-9, announced=True),
    call(ledger.ShuffledEvent, 1.0, 10, 3, overflow=1e-9, missing_steps=1),
    call(ledger.UniformEvent, *RUN, overflow=0.0),
    call(ledger.TruncatedPoissonEvent, 1.0, 0.1, 3, 20, 4),
    call(ledger.RandomizedResponseEvent, 1.0, 3, 2),
    call(Ledger, [EVENT]),
    call(Ledger.from_opacus_history, [(1.0, 0.1, 3)]),
    call(Ledger([EVENT]).statement, unit="row", delta=1e-3),
    call(gdpjax.ledger_of, gdpjax.privatize(SENSITIVITY, **PRIVATE).init(PARAMS)),
    # What it costs
    call(accounting.calibrate_noise_multiplier, **TARGET, num_steps=10),
    call(accounting.calibrate_num_steps, **TARGET, noise_multiplier=1.0),
    call(accounting.clt_epsilon, *RUN, 1e-3, sampling="poisson"),
    call(accounting.clt_mu_poisson, *RUN),
    call(accounting.clt_mu_uniform, *RUN),
    call(accounting.certified, *RUN, sampling="poisson", group_size=1),
    call(accounting.mu_and_regret, *RUN),
    call(accounting.delta_bounds, *RUN, 1.0, sampling="poisson"),
    call(accounting.epsilon_bounds, *RUN, 1e-3, sampling="poisson"),
    call(accounting.epsilon_bounds, Ledger([EVENT]), delta=1e-3),
    call(accounting.mu_bounds, *RUN, failure=1e-3),
    call(accounting.tradeoff_bounds, *RUN, 0.1),
    call(accounting.gamma_for_mean_num_runs, 10.0, 0.5),
    call(accounting.gdp_compose, np.ones(3), axis=-1),
    call(accounting.gdp_delta, 1.0, 1.0),
    call(accounting.gdp_epsilon, 1e-3, 1.0),
    call(accounting.gdp_log_delta, 1.0, 1.0),
    call(accounting.gdp_mu, 1.0, 1e-3),
    call(accounting.mean_num_runs, 0.5, 0.1),
    call(accounting.moments_accountant_epsilon, *RUN, 1e-3, "tight"),
    call(accounting.moments_accountant_epsilon, Ledger([EVENT]), delta=1e-3),
    call(accounting.rdp_epsilon, np.full(2, 0.1), np.array([2.0, 3.0]), 1e-3, conversion="tight"),
    call(accounting.rdp_subsampled_gaussian, 1.0, 0.1, np.array([2.0, 3.0])),
    call(accounting.sample_num_runs, KEY, distribution="negative_binomial", **TUNING, shape=(2,)),
    call(accounting.tuning_epsilon, [1.0, 2.0], 0.1, 5, 1e-3, **TUNING, axis=0),
    # Mechanisms
    call(DiscreteGaussianMechanism, 1.0, 2),
    call(DiscreteGaussianMechanism(1.0).sample, KEY, np.arange(2)),
    call(mechanisms.DiscreteLaplaceMechanism, 1.0, 2),
    call(GaussianMechanism, 1.0),
    call(GaussianMechanism(1.0).sample, KEY, 1.0, sensitivity=1.0),
    call(GaussianMechanism(1.0).epsilon, 1e-3),
    call(GaussianMechanism(1.0).delta, 1.0),
    call(LaplaceMechanism, 1.0),
    call(LaplaceMechanism(1.0).sample, KEY, np.ones(2), sensitivity=1.0),
    call(mechanisms.PoissonSubsampled, GaussianMechanism(1.0), 0.1),
    call(SUBSAMPLED.sample, KEY, np.ones(2), sensitivity=1.0),
    call(SUBSAMPLED.tradeoff, "remove"),
    call(RandomizedResponse, 1.0, 3),
    call(RandomizedResponse(1.0).sample, KEY, np.arange(2)),
    call(RandomizedResponse(1.0).estimate, [4, 6]),
    call(RandomizedResponse.with_truth_probability, 0.9, 3),
    # Batches
    call(Poisson, 20, 4.0, 3, capacity=16),
    call(Poisson, 20, 4.0, epochs=2.0),
    call(Poisson(20, 4, 3).sample, KEY, 1, num_valid=10),
    call(Poisson(20, 4, 3).event, 1.0, 2),
    call(Poisson(20, 4, 3).replace, num_steps=4),
    call(PoissonNumbers, 0.1, 4.0, 1e-9),
    call(sampling.Promised, 4.0, 3, correlated.MinSep(2, 1)),
    call(sampling.TruncatedPoisson, 20, 4.0, 3, capacity=4),
    call(sampling.WithoutReplacement, 20, 4, 3),
    call(sampling.RandomAllocation, 20, 4.0, epochs=2.0, num_selected=2, bins="fixed"),
    call(Shuffled, 20, 4.0, epochs=2.0, order="fixed"),
    call(SHUFFLED.sample, KEY, 5, num_valid=10),
    call(CyclicPoisson, 20, 4.0, 3, num_groups=2),
    call(CYCLIC.sample, KEY, 5, num_valid=10),
    call(sampling.poisson_sample, KEY, 20, 0.1, 16, num_valid=10),
    # Trade-off curves
    call(tradeoff.ApproximateDP, 1.0, 0.1),
    call(Gaussian, 1.0),
    call(Gaussian(1.0), 0.1),
    call(Gaussian(1.0).slope, 0.1),
    call(Laplace, 1.0),
    call(PiecewiseLinear, np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.2, 0.0]), rounding="down"),
    call(PiecewiseLinear.from_probabilities, np.array([0.4, 0.6]), np.array([0.6, 0.4])),
    call(tradeoff.central_limit, Laplace(1.0), times=100),
    call(tradeoff.compose, Gaussian(1.0), Gaussian(1.0), times=2),
    call(tradeoff.delta, Gaussian(1.0), 1.0),
    call(tradeoff.epsilon, Gaussian(1.0), 1e-3),
    call(tradeoff.group, Gaussian(1.0), 2),
    call(tradeoff.subsample, Gaussian(1.0), 0.1),
    call(tradeoff.symmetrize, Laplace(1.0)),
    # Correlated noise, and audits
    call(correlated.lambda_cgd, 0.5),
    call(correlated.bisr, 3, 0.9, 0.01),
    call(correlated.MinSep, 2, 3),
    call(correlated.bisr(3).sensitivity, 8, correlated.MinSep(2, 3)),
    call(auditing.ErrorRegion.from_counts, 3, 10, 2, 10, confidence=0.9),
    call(auditing.RightGuesses, 8, 10, 20),
    call(auditing.RightGuesses(8, 10, 20).epsilon, 1e-3, confidence=0.9),
    call(auditing.gradient_canaries, KEY, 2, PARAMS, 1.0),
    # Plans
    call(gdpjax.Budget, 1.0, 1e-3, "row", neighboring_relation="REPLACE_ONE"),
    call(gdpjax.Budget(1e3, 1e-3).spend, ledger.LaplaceEvent(1e-6)),
    call(training.Plan, Poisson(8, 2.0, 3), 1.0, 1e-3, 2.0, group_size=1, unit="example", tuned="no", released="all"),
    call(training.make_plan, **PLANNED, noise_multiplier=2.0, group_size=1, unit="row"),
    call(training.make_plan, Poisson(8, 2.0, 3), clip=1.0, delta=1e-3, noise_multiplier=2.0),
    call(training.choose_bands, **PLANNED, mu=1.0, num_bands=[1, 2], error="max"),
]
NAMES = [getattr(function, "__qualname__", "curve") for function, _, _ in CALLS]
# Compiled for seconds whenever a sign changes: only what is refused at once.
COSTLY = ("bounds", "calibrate", "tuning", "moments", "compose", "regret", "certified", "make_plan", "bands")
STEPS = ("sample", "noise", "dp", "clip", "privatize")
QUICK = [place for place, name in enumerate(NAMES) if not any(part in name for part in COSTLY + STEPS)]


def hopeless(value):
    """Return what nobody can have meant in the place of a valid ``value``."""
    if isinstance(value, bool):
        return []  # what is true stands for True
    if isinstance(value, int):
        return ["3", 1.5, -5, np.nan, np.inf, KEY]
    if isinstance(value, float):
        return ["1.0", np.nan, 1j, KEY]
    if isinstance(value, str):
        return [3, 1.5, ["poisson"], KEY]
    if isinstance(value, enum.Enum):
        return [3, "no such relation", KEY]
    if isinstance(value, jax.Array):
        return [0, -5, 1.5, "key", np.zeros(2), jax.random.split(KEY, 2)]
    if isinstance(value, np.ndarray | dict | tuple | list):
        return ["x", len]
    if callable(value) and not hasattr(value, "sensitivity"):
        return []  # what cannot be called fails where it is called
    return ["x", 3, KEY, np.ones(2), type(value)]


def debatable(value):
    """Return values that may have been meant, but must not become NaN."""
    if isinstance(value, float):
        return [0.0, -1.0, np.inf, 5e-324]
    if isinstance(value, int) and not isinstance(value, bool):
        return [0, 3.0, np.int8(3)]
    return []


def accepted(given, choices):
    """Return what replaced an argument of a call without an error, and the results."""
    function, args, kwargs = given
    found = []
    for place, value in [*enumerate(args), *kwargs.items()]:
        for other in choices(value):
            positional = [other if place == number else each for number, each in enumerate(args)]
            named = {name: other if place == name else each for name, each in kwargs.items()}
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                found.append((place, other, function(*positional, **named)))
    return found


def holds_nan(tree):
    """Return whether any number of a tree is NaN."""
    for leaf in jax.tree.leaves(tree):
        is_float = isinstance(leaf, float) or getattr(getattr(leaf, "dtype", None), "kind", "") == "f"
        if is_float and np.isnan(np.asarray(leaf)).any():
            return True
    return False


@pytest.mark.parametrize("given", CALLS, ids=NAMES)
def test_what_nobody_can_have_meant_is_refused(given):
    """Or NaN goes in and comes out, as in arithmetic."""
    assert not [found for found in accepted(given, hopeless) if not (holds_nan(found[1]) and holds_nan(found[2]))]


@pytest.mark.parametrize("given", [CALLS[place] for place in QUICK], ids=[NAMES[place] for place in QUICK])
def test_no_finite_number_becomes_nan(given):
    assert not [found for found in accepted(given, debatable) if holds_nan(found[2])]


def test_every_function_of_numbers_has_a_call():
    """But for a base, an error, and a curve without numbers."""
    without = {"AbstractBatches", "BatchOverflowError", "Identity"}
    for module in (accounting, ledger, mechanisms, sampling, tradeoff):
        assert set(module.__all__) - without <= {name.split(".")[0] for name in NAMES}
