"""One valid call of every public function that a number of a privacy statement goes into, for `tests.fuzz` to mutate.

`case` takes a call as it would be written, and `cases` returns them all by name, with arrays and keys made anew.
Functions that return something lazy (an optax transformation, an iterator) are used once, so that a bad argument cannot
hide in it.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax
from gdpjax import accounting, correlated, ledger, mechanisms, sampling, tradeoff, training

Case = tuple[Callable[..., Any], tuple, dict[str, Any]]
KEY = jax.random.key(7)
PARAMS = {"w": np.ones(2, np.float32), "b": np.zeros((), np.float32)}
X = np.ones((4, 2), np.float32)
Y = np.zeros(4, np.float32)
GRADS = {"w": np.ones((4, 2), np.float32), "b": np.ones(4, np.float32)}
PRIVATE = {
    "noise_multiplier": 1.0,
    "batches": sampling.PoissonNumbers(0.1, 4.0),
    "key": KEY,
}

# Noise multiplier, sampling probability and number of steps.
RUN = (1.0, 0.1, 10)
EVENT = gdpjax.Event(*RUN)
GAUSSIAN = tradeoff.Gaussian(1.0)
LAPLACE = tradeoff.Laplace(1.0)

# Rényi divergences, and their orders.
ORDERS = np.array([2.0, 3.0])
DIVERGENCES = np.full(2, 0.1)


def case(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Case:
    """Return a call as a case: ``case(f, 1.0, delta=0.1)`` is that of ``f(1.0, delta=0.1)``."""
    return function, args, kwargs


def loss_fn(params: Any, x: Any, y: Any) -> Any:
    return (jnp.sum(params["w"] * x) + params["b"] - y) ** 2


def augmented_loss(params: Any, x: Any) -> Any:
    return jnp.sum(params["w"] * x)


def _stepped(make: Callable[..., Any], updates: Any = PARAMS) -> Callable[..., Any]:
    """Make an optax transformation and take one step with it."""

    @functools.wraps(make)
    def make_and_step(*args: Any, **kwargs: Any) -> Any:
        tx = make(*args, **kwargs)
        state = tx.init(PARAMS)
        return tx.update(updates, state, PARAMS)

    return make_and_step


def _called(make: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """Make a function and call it with ``inputs``."""

    @functools.wraps(make)
    def make_and_call(*args: Any, **kwargs: Any) -> Any:
        function = make(*args, **kwargs)
        return function(*inputs)

    return make_and_call


@functools.cache
def plan() -> Any:
    return training.make_plan(
        clip=1.0,
        max_examples=8,
        expected_batch_size=2,
        num_steps=3,
        delta=1e-3,
        noise_multiplier=2.0,
    )


@functools.cache
def private_state() -> Any:
    return gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE).init(PARAMS)


def _accumulated(clip: Any, num_microbatches: Any) -> Any:
    """Accumulate sums of this clip, which are noised."""
    private = gdpjax.privatize(clip, **PRIVATE)
    accumulating = gdpjax.accumulate_clipped(private, num_microbatches)
    state = accumulating.init(PARAMS)
    return accumulating.update(PARAMS, state, PARAMS)


def _clipping_cases() -> dict[str, Case]:
    return {
        "AutoS": case(gdpjax.AutoS, 1.0, 0.01),
        "Flat": case(gdpjax.Flat, 1.0),
        "Normalize": case(gdpjax.Normalize, 1.0),
        "PerGroup": case(gdpjax.PerGroup, {"w": "a", "b": "a"}, {"a": 1.0}),
        "PerLeaf": case(gdpjax.PerLeaf, 1.0),
        "Sensitivity": case(gdpjax.Sensitivity, 1.0, True),
        "average_augmentations": case(
            _called(gdpjax.average_augmentations, PARAMS, X),
            augmented_loss,
            4,
            augmented_argnums=1,
        ),
        "clipped_grad": case(
            _called(gdpjax.clipped_grad, PARAMS, X, Y),
            loss_fn,
            1.0,
            argnums=0,
            batch_argnums=(1, 2),
            keep_batch_dim=False,
            has_aux=False,
            strategy="auto",
            trainable={"w": True, "b": True},
            microbatch_size=2,
            return_info=False,
        ),
        "clipped_grad().sensitivity": case(
            gdpjax.clipped_grad(loss_fn, 1.0).sensitivity,
            gdpjax.NeighboringRelation.REPLACE_ONE,
        ),
    }


def _transform_cases() -> dict[str, Case]:
    return {
        "accumulate_clipped(clip)": case(_accumulated, gdpjax.Sensitivity(1.0), 2),
        "add_gaussian_noise": case(_stepped(gdpjax.add_gaussian_noise), 1.0, KEY),
        "clip_and_sum": case(
            _stepped(gdpjax.clip_and_sum, GRADS),
            1.0,
            trainable={"w": True, "b": True},
            max_batch_size=8,
        ),
        "dpsgd": case(
            _stepped(gdpjax.dpsgd, GRADS),
            0.1,
            1.0,
            **PRIVATE,
            momentum=0.9,
            nesterov=True,
        ),
        "dpadam": case(
            _stepped(gdpjax.dpadam, GRADS),
            0.1,
            1.0,
            **PRIVATE,
            b1=0.9,
            b2=0.99,
            eps=1e-8,
        ),
        "privatize": case(
            _stepped(gdpjax.privatize),
            gdpjax.Sensitivity(1.0),
            **PRIVATE,
            noise=gdpjax.IndependentGaussian(),
            neighboring_relation=gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
        "privatize(batches)": case(
            _stepped(gdpjax.privatize),
            gdpjax.Sensitivity(1.0),
            noise_multiplier=1.0,
            key=KEY,
            batches=sampling.Poisson(20, 4, 3),
        ),
        "privatize_adaptive": case(
            _stepped(gdpjax.privatize_adaptive, GRADS),
            **PRIVATE,
            initial_l2_clip_norm=1.0,
            count_stddev=2.0,
            target_quantile=0.5,
            learning_rate=0.2,
            l2_clip_norm_range=(1e-3, 1e3),
        ),
    }


def _ledger_cases() -> dict[str, Case]:
    return {
        "Event": case(
            gdpjax.Event,
            *RUN,
            overflow=0.0,
            neighboring_relation=gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
        "Event.joint": case(gdpjax.Event.joint, 1.0, 2.0, sampling_prob=0.1, num_steps=3),
        "Event.quantile_clipping": case(
            gdpjax.Event.quantile_clipping,
            1.0,
            5.0,
            sampling_prob=0.1,
            num_steps=3,
        ),
        "AllocationEvent": case(ledger.AllocationEvent, 1.0, 10, 3, 2, missing_steps=1),
        "ApproximateDPEvent": case(ledger.ApproximateDPEvent, 1.0, 1e-5, 2),
        "GaussianEvent": case(ledger.GaussianEvent, 1.0, 2),
        "LaplaceEvent": case(ledger.LaplaceEvent, 1.0, 2, sampling_prob=0.1),
        "OutcomesEvent": case(ledger.OutcomesEvent, [0.5, 0.5], [0.4, 0.6], 2),
        "CorrelatedGaussianEvent": case(
            ledger.CorrelatedGaussianEvent,
            1.0,
            10,
            12,
            2,
            5,
            is_exact=False,
        ),
        "CyclicPoissonEvent": case(
            ledger.CyclicPoissonEvent,
            1.0,
            0.1,
            10,
            3,
            overflow=1e-9,
            announced=True,
        ),
        "ShuffledEvent": case(ledger.ShuffledEvent, 1.0, 10, 3, overflow=1e-9, missing_steps=1),
        "UniformEvent": case(ledger.UniformEvent, *RUN, overflow=0.0),
        "TruncatedPoissonEvent": case(ledger.TruncatedPoissonEvent, 1.0, 0.1, 3, 20, 4),
        "RandomizedResponseEvent": case(ledger.RandomizedResponseEvent, 1.0, 3, 2),
        "Ledger": case(gdpjax.Ledger, [EVENT]),
        "Ledger.from_opacus_history": case(gdpjax.Ledger.from_opacus_history, [(1.0, 0.1, 3)]),
        "Ledger.statement": case(gdpjax.Ledger([EVENT]).statement, unit="row", delta=1e-3),
        "ledger_of": case(gdpjax.ledger_of, private_state()),
    }


def _accounting_cases() -> dict[str, Case]:
    return {
        "with_overflow": case(
            accounting.with_overflow,
            accounting.certified(*RUN),
            1e-9,
            announced=True,
        ),
        "calibrate_noise_multiplier": case(
            accounting.calibrate_noise_multiplier,
            epsilon=3.0,
            delta=1e-3,
            sampling_prob=0.1,
            num_steps=10,
            accountant="rdp",
        ),
        "calibrate_num_steps": case(
            accounting.calibrate_num_steps,
            epsilon=3.0,
            delta=1e-3,
            sampling_prob=0.1,
            noise_multiplier=1.0,
            accountant="rdp",
        ),
        "clt_epsilon": case(accounting.clt_epsilon, *RUN, 1e-3, sampling="poisson"),
        "clt_mu_poisson": case(accounting.clt_mu_poisson, *RUN),
        "clt_mu_uniform": case(accounting.clt_mu_uniform, *RUN),
        "certified": case(accounting.certified, *RUN, sampling="poisson", group_size=1),
        "mu_and_regret": case(accounting.mu_and_regret, *RUN),
        "delta_bounds": case(accounting.delta_bounds, *RUN, 1.0, sampling="poisson"),
        "epsilon_bounds": case(accounting.epsilon_bounds, *RUN, 1e-3, sampling="poisson"),
        "epsilon_bounds(ledger)": case(accounting.epsilon_bounds, gdpjax.Ledger([EVENT]), delta=1e-3),
        "mu_bounds": case(accounting.mu_bounds, *RUN, failure=1e-3),
        "tradeoff_bounds": case(accounting.tradeoff_bounds, *RUN, 0.1),
        "gamma_for_mean_num_runs": case(accounting.gamma_for_mean_num_runs, 10.0, 0.5),
        "gdp_compose": case(accounting.gdp_compose, np.ones(3), axis=-1),
        "gdp_delta": case(accounting.gdp_delta, 1.0, 1.0),
        "gdp_epsilon": case(accounting.gdp_epsilon, 1e-3, 1.0),
        "gdp_log_delta": case(accounting.gdp_log_delta, 1.0, 1.0),
        "gdp_mu": case(accounting.gdp_mu, 1.0, 1e-3),
        "mean_num_runs": case(accounting.mean_num_runs, 0.5, 0.1),
        "moments_accountant_epsilon": case(accounting.moments_accountant_epsilon, *RUN, 1e-3, "tight"),
        "moments_accountant_epsilon(ledger)": case(
            accounting.moments_accountant_epsilon,
            gdpjax.Ledger([EVENT]),
            delta=1e-3,
        ),
        "rdp_epsilon": case(accounting.rdp_epsilon, DIVERGENCES, ORDERS, 1e-3, conversion="tight"),
        "rdp_subsampled_gaussian": case(accounting.rdp_subsampled_gaussian, 1.0, 0.1, ORDERS),
        "sample_num_runs": case(
            accounting.sample_num_runs,
            KEY,
            distribution="negative_binomial",
            eta=0.5,
            gamma=0.1,
            shape=(2,),
        ),
        "tuning_epsilon": case(accounting.tuning_epsilon, *RUN, 1e-3, eta=0.5, gamma=0.1),
        "tuning_epsilon(axis)": case(accounting.tuning_epsilon, [1.0, 2.0], 0.1, 5, 1e-3, eta=0.5, gamma=0.1, axis=0),
    }


def _mechanisms_cases() -> dict[str, Case]:
    return {
        "DiscreteGaussianMechanism": case(mechanisms.DiscreteGaussianMechanism, 1.0, 2),
        "DiscreteGaussianMechanism.sample": case(
            mechanisms.DiscreteGaussianMechanism(1.0).sample,
            KEY,
            3,
        ),
        "DiscreteLaplaceMechanism": case(mechanisms.DiscreteLaplaceMechanism, 1.0, 2),
        "GaussianMechanism": case(mechanisms.GaussianMechanism, 1.0),
        "GaussianMechanism.sample": case(
            mechanisms.GaussianMechanism(1.0).sample,
            KEY,
            1.0,
            sensitivity=1.0,
        ),
        "GaussianMechanism.epsilon": case(mechanisms.GaussianMechanism(1.0).epsilon, 1e-3),
        "GaussianMechanism.delta": case(mechanisms.GaussianMechanism(1.0).delta, 1.0),
        "LaplaceMechanism": case(mechanisms.LaplaceMechanism, 1.0),
        "LaplaceMechanism.sample": case(
            mechanisms.LaplaceMechanism(1.0).sample,
            KEY,
            X,
            sensitivity=1.0,
        ),
        "PoissonSubsampled": case(mechanisms.PoissonSubsampled, mechanisms.GaussianMechanism(1.0), 0.1),
        "PoissonSubsampled.sample": case(
            mechanisms.PoissonSubsampled(mechanisms.GaussianMechanism(1.0), 0.1).sample,
            KEY,
            X,
            sensitivity=1.0,
        ),
        "PoissonSubsampled.tradeoff": case(
            mechanisms.PoissonSubsampled(mechanisms.GaussianMechanism(1.0), 0.1).tradeoff,
            "remove",
        ),
        "RandomizedResponse": case(mechanisms.RandomizedResponse, 1.0, 3),
        "RandomizedResponse.sample": case(mechanisms.RandomizedResponse(1.0).sample, KEY, np.arange(2)),
        "RandomizedResponse.estimate": case(mechanisms.RandomizedResponse(1.0).estimate, [4, 6]),
        "RandomizedResponse.with_truth_probability": case(
            mechanisms.RandomizedResponse.with_truth_probability,
            0.9,
            3,
        ),
    }


def _sampling_cases() -> dict[str, Case]:
    return {
        "Poisson": case(sampling.Poisson, 20, 4.0, 3, capacity=16),
        "Poisson(epochs)": case(sampling.Poisson, 20, 4.0, epochs=2),
        "Poisson.sample": case(sampling.Poisson(20, 4, 3).sample, KEY, 1, num_valid=10),
        "Poisson.event": case(sampling.Poisson(20, 4, 3).event, 1.0, 2),
        "Poisson.replace": case(sampling.Poisson(20, 4, 3).replace, num_steps=4),
        "PoissonNumbers": case(sampling.PoissonNumbers, 0.1, 4.0, 1e-9),
        "Promised": case(sampling.Promised, 4.0, 3, correlated.MinSep(2, 1)),
        "TruncatedPoisson": case(sampling.TruncatedPoisson, 20, 4.0, 3, capacity=4),
        "WithoutReplacement": case(sampling.WithoutReplacement, 20, 4, 3),
        "RandomAllocation": case(sampling.RandomAllocation, 20, 4, epochs=2, num_selected=2, bins="fixed"),
        "Shuffled": case(sampling.Shuffled, 20, 4, epochs=2, order="fixed"),
        "Shuffled.sample": case(sampling.Shuffled(20, 4, epochs=2).sample, KEY, 5, num_valid=10),
        "CyclicPoisson": case(sampling.CyclicPoisson, 20, 4, 3, num_groups=2),
        "CyclicPoisson.sample": case(sampling.CyclicPoisson(20, 4, 3, num_groups=2).sample, KEY, 5, num_valid=10),
        "poisson_sample": case(sampling.poisson_sample, KEY, 20, 0.1, 16, num_valid=10),
    }


def _tradeoff_cases() -> dict[str, Case]:
    return {
        "ApproximateDP": case(tradeoff.ApproximateDP, 1.0, 0.1),
        "Gaussian": case(tradeoff.Gaussian, 1.0),
        "Gaussian()": case(GAUSSIAN, 0.1),
        "Gaussian.slope": case(GAUSSIAN.slope, 0.1),
        "Laplace": case(tradeoff.Laplace, 1.0),
        "PiecewiseLinear": case(
            tradeoff.PiecewiseLinear,
            np.array([0.0, 0.5, 1.0]),
            np.array([1.0, 0.2, 0.0]),
            rounding="down",
        ),
        "central_limit": case(tradeoff.central_limit, LAPLACE, times=100),
        "compose": case(tradeoff.compose, GAUSSIAN, GAUSSIAN, times=2),
        "delta": case(tradeoff.delta, GAUSSIAN, 1.0),
        "epsilon": case(tradeoff.epsilon, GAUSSIAN, 1e-3),
        "PiecewiseLinear.from_probabilities": case(
            tradeoff.PiecewiseLinear.from_probabilities,
            np.array([0.4, 0.6]),
            np.array([0.6, 0.4]),
        ),
        "group": case(tradeoff.group, GAUSSIAN, 2),
        "subsample": case(tradeoff.subsample, GAUSSIAN, 0.1),
        "symmetrize": case(tradeoff.symmetrize, LAPLACE),
    }


def _training_cases() -> dict[str, Case]:
    return {
        "Budget": case(gdpjax.Budget, 1.0, 1e-3, "row", neighboring_relation="REPLACE_ONE"),
        "Budget.spend": case(gdpjax.Budget(1e3, 1e-3).spend, ledger.LaplaceEvent(1e-6)),
        "Plan": case(
            training.Plan,
            sampling.Poisson(8, 2.0, 3),
            1.0,
            1e-3,
            2.0,
            group_size=1,
            unit="example",
            tuned="no",
            released="all",
            neighboring_relation=gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE,
        ),
        "Plan.mu_bounds": case(plan().mu_bounds, 1e-4),
        "Plan.replace": case(plan().replace, num_steps=4),
        "make_plan": case(
            training.make_plan,
            clip=1.0,
            max_examples=8,
            expected_batch_size=2,
            epochs=1.0,
            delta=1e-3,
            noise_multiplier=2.0,
            group_size=1,
            unit="row",
        ),
        "make_plan(batches)": case(
            training.make_plan,
            sampling.Poisson(8, 2.0, 3),
            clip=1.0,
            delta=1e-3,
            noise_multiplier=2.0,
            noise=gdpjax.IndependentGaussian(),
        ),
        "choose_bands": case(
            training.choose_bands,
            clip=1.0,
            max_examples=8,
            expected_batch_size=2,
            epochs=1.0,
            delta=1e-3,
            mu=1.0,
            num_bands=[1, 2],
            error="max",
        ),
    }


def cases() -> dict[str, Case]:
    """Return every case by the name of its entry point."""
    return {
        **_clipping_cases(),
        **_transform_cases(),
        **_ledger_cases(),
        **_accounting_cases(),
        **_mechanisms_cases(),
        **_sampling_cases(),
        **_tradeoff_cases(),
        **_training_cases(),
    }


MODULES = (accounting, ledger, mechanisms, sampling, tradeoff)
# A base, an error, and a curve without numbers.
WITHOUT_CASE = {"AbstractBatches", "BatchOverflowError", "Identity"}


def entry_points() -> set[str]:
    """Return the public names of the modules of numbers that are to have a case."""
    names = {name for module in MODULES for name in module.__all__ if callable(getattr(module, name))}
    return names - WITHOUT_CASE
