"""One valid call of every public entry point, for `tests.fuzz` to mutate.

`case` takes a call as it would be written, and `cases` returns them all by name, with arrays and keys made anew.
Functions that return something lazy (an optax transformation, an iterator) are used once, so that a bad argument cannot
hide in it.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx as flax_nnx

import gdpjax
from gdpjax import (
    accounting,
    auditing,
    clipping,
    correlated,
    ledger,
    mechanisms,
    nnx,
    plotting,
    sampling,
    sweeps,
    tradeoff,
    training,
    transforms,
)

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

# Of an audit: scores, and whether each canary was in.
SCORES = np.arange(64.0)
COINS = np.arange(64) % 2 == 0


def case(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Case:
    """Return a call as a case: ``case(f, 1.0, delta=0.1)`` is that of ``f(1.0, delta=0.1)``."""
    return function, args, kwargs


def loss_fn(params: Any, x: Any, y: Any) -> Any:
    return (jnp.sum(params["w"] * x) + params["b"] - y) ** 2


def augmented_loss(params: Any, x: Any) -> Any:
    return jnp.sum(params["w"] * x)


def module_loss(model: Any, x: Any, y: Any) -> Any:
    return (model(x)[0] - y) ** 2


@functools.cache
def module() -> Any:
    return flax_nnx.Linear(2, 1, rngs=flax_nnx.Rngs(0))


def load() -> Any:
    return (X, Y), (X, Y)


def build(example: Any, penalty: float = 0.0) -> Any:
    def loss(w: Any, x: Any, y: Any) -> Any:
        return (jnp.sum(w * x) - y) ** 2 + penalty * jnp.sum(w**2)

    def scores(w: Any, x: Any, y: Any) -> Any:
        return {"mse": jnp.mean((x @ w - y) ** 2)}

    return sweeps.Model(lambda key: jnp.zeros(2), loss, scores)


@functools.cache
def task() -> Any:
    return sweeps.Task(load, build, optax.sgd)


SPEC = {
    "delta": 1e-3,
    "hyperparameters": {
        "learning_rate": 0.1,
        "l2_clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "batch_size": 2,
        "epochs": 1,
        "seeds": 1,
    },
}
SPEC_TEXT = """\
data = "my_task:load"
model = "my_task:build"
optimizer = "sgd"
delta = 1e-3
[hyperparameters]
learning_rate = 0.1
l2_clip_norm = 1.0
noise_multiplier = 2.0
batch_size = 2
epochs = 1
seeds = 1
"""


def _in_a_folder(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function in a folder that is removed again: wrong paths may be written to."""

    @functools.wraps(function)
    def call_in_folder(*args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            function(*args, **kwargs)

    return call_in_folder


def release(key: Any, included: Any) -> Any:
    return jax.random.normal(key, ()) + included


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


def _first(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make an iterable and return its first element."""

    @functools.wraps(make)
    def make_and_draw(*args: Any, **kwargs: Any) -> Any:
        iterator = iter(make(*args, **kwargs))
        return next(iterator)

    return make_and_draw


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
def loop() -> Any:
    return training.private_training(plan(), loss_fn, optax.sgd(0.1))


@functools.cache
def module_loop() -> Any:
    return nnx.private_training(plan(), module(), module_loss, optax.sgd(0.1))


@functools.cache
def grad_fn() -> Any:
    return gdpjax.clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))


@functools.cache
def private_state() -> Any:
    return gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE).init(PARAMS)


@functools.cache
def adaptive() -> Any:
    return gdpjax.privatize_adaptive(initial_l2_clip_norm=1.0, count_stddev=2.0, **PRIVATE)


@functools.cache
def state() -> Any:
    return loop().init(PARAMS, KEY)


@functools.cache
def data() -> Any:
    return loop().place(X, Y)


def _trained(*args: Any, **kwargs: Any) -> Any:
    """Make a training and take one step."""
    made = training.private_training(*args, **kwargs)
    state = made.init(PARAMS, KEY)
    return made.step(state, made.place(X, Y))


def _accumulated(clip: Any, num_microbatches: Any) -> Any:
    """Accumulate sums of this clip, which are noised."""
    private = gdpjax.privatize(clip, **PRIVATE)
    return _accumulate_any(private, num_microbatches)


def _accumulate_any(tx: Any, num_microbatches: Any) -> Any:
    """Accumulate sums for any transformation, and take one step."""
    accumulating = gdpjax.accumulate_clipped(tx, num_microbatches)
    state = accumulating.init(PARAMS)
    return accumulating.update(PARAMS, state, PARAMS)


def _hyperparameters_of_task(*args: Any, **kwargs: Any) -> Any:
    """Make a task and read its functions' hyperparameters."""
    return sweeps.Task(*args, **kwargs).hyperparameters


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
        "clipped_grad()": case(grad_fn(), PARAMS, X, Y, is_padding=np.zeros(4, bool)),
        "clipped_grad().sensitivity": case(
            grad_fn().sensitivity,
            gdpjax.NeighboringRelation.REPLACE_ONE,
        ),
        "explain": case(gdpjax.explain, loss_fn, PARAMS, (X, Y), batch_argnums=(1, 2), strategy="auto"),
        "per_example_grad": case(
            _called(gdpjax.per_example_grad, PARAMS, X, Y),
            loss_fn,
            batch_argnums=(1, 2),
        ),
    }


def _flax_cases() -> dict[str, Case]:
    return {
        "nnx.clipped_grad": case(
            _called(nnx.clipped_grad, module(), X, Y),
            module_loss,
            1.0,
            wrt=flax_nnx.Param,
            batch_argnums=(1, 2),
            strategy="auto",
            return_info=False,
        ),
        "nnx.clipped_grad()": case(
            nnx.clipped_grad(module_loss, 1.0, batch_argnums=(1, 2)),
            module(),
            X,
            Y,
            is_padding=np.zeros(4, bool),
        ),
        "nnx.explain": case(
            nnx.explain,
            module_loss,
            module(),
            (X, Y),
            wrt=flax_nnx.Param,
            batch_argnums=(1, 2),
        ),
        "nnx.private_training": case(
            nnx.private_training,
            plan(),
            module(),
            module_loss,
            optax.sgd(0.1),
            wrt=flax_nnx.Param,
            num_arrays=2,
            example_key=False,
            strategy="auto",
            constant_work=False,
        ),
        "nnx.private_training().init": case(module_loop().init, module(), KEY),
    }


def _sweep_cases() -> dict[str, Case]:
    return {
        "Task": case(
            _hyperparameters_of_task,
            load,
            build,
            optax.sgd,
            defaults={"epochs": 1.0},
            names={"data": "d", "model": "m", "optimizer": "o"},
        ),
        "train": case(
            _in_a_folder(sweeps.train),
            task(),
            SPEC,
            "run",
            resume=False,
            diagnostics=True,
        ),
        "run_sweep": case(
            _in_a_folder(sweeps.run_sweep),
            task(),
            SPEC,
            "run",
            resume=False,
            backend="local",
            width=2,
            memory_gb=1.0,
        ),
        "report_sweep": case(_in_a_folder(sweeps.report_sweep), "run"),
    }


def _transform_cases() -> dict[str, Case]:
    return {
        "accumulate_clipped": case(
            _accumulate_any,
            gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE),
            2,
        ),
        "accumulate_clipped(clip)": case(_accumulated, gdpjax.Sensitivity(1.0), 2),
        "add_gaussian_noise": case(_stepped(gdpjax.add_gaussian_noise), 1.0, KEY),
        "clip_and_sum": case(
            _stepped(gdpjax.clip_and_sum, GRADS),
            1.0,
            trainable={"w": True, "b": True},
            max_batch_size=8,
        ),
        "clip_norm_of": case(gdpjax.clip_norm_of, adaptive().init(PARAMS)),
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
        "privatize.update": case(
            gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE).update,
            PARAMS,
            private_state(),
            PARAMS,
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
        "public_values": case(gdpjax.public_values, optax.sgd(0.1)),
    }


def _correlated_cases() -> dict[str, Case]:
    return {
        "BandedInverse": case(correlated.BandedInverse, [1.0, -0.5], memory="buffer"),
        "BandedToeplitz": case(correlated.BandedToeplitz, [1.0, 0.5]),
        "BufferedToeplitz": case(correlated.BufferedToeplitz, [0.9, 0.5], [0.2, 0.1]),
        "Dense": case(correlated.Dense, np.eye(2)),
        "FixedEpochs": case(correlated.FixedEpochs, 2),
        "MinSep": case(correlated.MinSep, 2, 3),
        "MomentumSGD": case(correlated.MomentumSGD, 0.9, 0.01),
        "bisr": case(correlated.bisr, 3, 0.9, 0.01),
        "lambda_cgd": case(correlated.lambda_cgd, 0.5),
        "sensitivity": case(correlated.bisr(3).sensitivity, 8, correlated.MinSep(2, 3)),
        "sensitivity of Dense": case(
            correlated.Dense(np.eye(8)).sensitivity,
            8,
            correlated.MinSep(2, 3),
        ),
        "error": case(correlated.bisr(3).error, 8, "max", workload=correlated.PrefixSum()),
        "error of Dense": case(
            correlated.Dense(np.eye(8)).error,
            8,
            "max",
            workload=correlated.PrefixSum(),
        ),
        "optimize_banded_inverse": case(
            correlated.optimize_banded_inverse,
            8,
            2,
            correlated.MinSep(2, 3),
            "max",
            workload=correlated.PrefixSum(),
        ),
        "optimize_banded_toeplitz": case(
            correlated.optimize_banded_toeplitz,
            8,
            2,
            "max",
            workload=correlated.PrefixSum(),
        ),
        "optimize_buffered_toeplitz": case(
            correlated.optimize_buffered_toeplitz,
            8,
            correlated.MinSep(2, 3),
            "max",
            max_buffers=2,
            workload=correlated.PrefixSum(),
        ),
        "optimize_dense": case(correlated.optimize_dense, 8, 2, workload=correlated.PrefixSum()),
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
        "Ledger.add": case(gdpjax.Ledger().add, EVENT),
        "Ledger.from_json": case(gdpjax.Ledger.from_json, gdpjax.Ledger([EVENT]).to_json()),
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
        "report": case(gdpjax.report, RUN, deltas=[1e-3], names=["a run"], unit="row"),
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


def _auditing_cases() -> dict[str, Case]:
    return {
        "audit_many_runs": case(auditing.audit_many_runs, SCORES, COINS, delta=1e-3, threshold=30.0),
        "audit_one_run": case(auditing.audit_one_run, SCORES, COINS, key=KEY, delta=1e-3, num_guesses=8),
        "audit_step": case(
            auditing.audit_step,
            release,
            KEY,
            delta=1e-3,
            num_releases=256,
            confidence=0.9,
        ),
        "black_box_scores": case(auditing.black_box_scores, np.ones(3), np.ones(3)),
        "gradient_canaries(coordinates)": case(auditing.gradient_canaries, KEY, 2, PARAMS, 1.0, coordinates=True),
        "ErrorRegion": case(auditing.ErrorRegion, 0.1, 0.1),
        "ErrorRegion.from_counts": case(auditing.ErrorRegion.from_counts, 3, 10, 2, 10, confidence=0.9),
        "RightGuesses": case(auditing.RightGuesses, 8, 10, 20),
        "RightGuesses.count": case(auditing.RightGuesses.count, SCORES, COINS, 8, KEY),
        "RightGuesses.epsilon": case(auditing.RightGuesses(8, 10, 20).epsilon, 1e-3, confidence=0.9),
        "RightGuesses.mu": case(auditing.RightGuesses(8, 10, 20).mu, confidence=0.9),
        "RightGuesses.p_value": case(auditing.RightGuesses(8, 10, 20).p_value, 1.0, 1e-3),
        "RightGuesses.refutes": case(auditing.RightGuesses(8, 10, 20).refutes, GAUSSIAN, confidence=0.9),
        "flip_coins": case(auditing.flip_coins, KEY, 3),
        "gradient_canaries": case(auditing.gradient_canaries, KEY, 2, PARAMS, 1.0),
        "mislabel": case(auditing.mislabel, KEY, np.arange(3), 3),
        "out_of_distribution": case(auditing.out_of_distribution, KEY, 2, (3,), 0.0, 1.0),
        "white_box_scores": case(auditing.white_box_scores, np.ones(3), np.ones((2, 3))),
        "with_gradient_canaries": case(
            _called(auditing.with_gradient_canaries, PARAMS, PARAMS, True, X[0], Y[0]),
            loss_fn,
        ),
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


def _plotting_cases() -> dict[str, Case]:
    return {
        "epsilon_curves": case(plotting.epsilon_curves, *RUN, 1e-3, num_points=8, log=False),
        "plot_epsilon": case(plotting.plot_epsilon, _epsilon_curves(), log=False),
        "plot_score": case(plotting.plot_score, [{"epsilon_upper": 1.0, "accuracy": 0.5}], names=["run"], delta=1e-3),
        "plot_tradeoff": case(plotting.plot_tradeoff, _tradeoff_curves(), log=False),
        "tradeoff_curves": case(plotting.tradeoff_curves, *RUN, 1e-3, num_points=8),
    }


def _sampling_cases() -> dict[str, Case]:
    return {
        "fresh_key": case(gdpjax.fresh_key, "threefry2x32"),
        "HostBatches[]": case(sampling.Poisson(20, 4, 3).on_host(KEY).__getitem__, 1),
        "HostBatches.take": case(sampling.Poisson(20, 4, 3).on_host(KEY).take, 1, np.ones((8, 2))),
        "Batch.take": case(sampling.poisson_sample(KEY, 20, 0.1, 8).take, np.ones((8, 2)), np.ones(8)),
        "Poisson": case(sampling.Poisson, 20, 4.0, 3, capacity=16),
        "Poisson(epochs)": case(sampling.Poisson, 20, 4.0, epochs=2),
        "Poisson.sample": case(sampling.Poisson(20, 4, 3).sample, KEY, 1, num_valid=10),
        "Poisson.on_host": case(_first(sampling.Poisson(20, 4, 3).on_host), KEY, num_valid=10),
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
        "Plan.from_json": case(training.Plan.from_json, plan().to_json()),
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
        "choose_microbatch": case(
            training.choose_microbatch,
            lambda rows: loop(),
            PARAMS,
            data(),
            memory_bytes=10**9,
        ),
        "private_training": case(
            _trained,
            plan(),
            loss_fn,
            optax.sgd(0.1),
            num_arrays=2,
            example_key=False,
            keep_batch_dim=False,
            strategy="auto",
            microbatch_size=4,
            trainable={"w": True, "b": True},
            scale=lambda state: 1.0,
        ),
        "adam_scale": case(training.adam_scale, epsilon=1e-8, b2=0.999),
        "Training.init": case(loop().init, PARAMS, KEY),
        "Training.place": case(loop().place, X, Y),
        "Training.step": case(loop().step, state(), data()),
        "Training.run_steps": case(loop().run_steps, state(), data(), 2),
        "Training.step_on": case(
            loop().step_on,
            state(),
            np.ones((plan().capacity, 2), np.float32),
            np.ones(plan().capacity, np.float32),
            is_padding=np.zeros(plan().capacity, bool),
        ),
        "batch_source": case(training.batch_source, plan(), state(), 4),
        "group_by_user": case(
            training.group_by_user,
            np.array([1, 2, 1]),
            np.ones(3),
            max_per_user=2,
            key=KEY,
        ),
        "start_run": case(
            training.start_run,
            "/nonexistent/run",
            loop(),
            PARAMS,
            data(),
            key=KEY,
            scan=True,
        ),
        "resume_run": case(training.resume_run, "/nonexistent/run", loop(), PARAMS, data(), scan=True),
        "save_figure": case(plotting.save_figure, _figure(), "/nonexistent/figure.png"),
    }


def cases() -> dict[str, Case]:
    """Return every case by the name of its entry point."""
    return {
        **_clipping_cases(),
        **_flax_cases(),
        **_sweep_cases(),
        **_transform_cases(),
        **_correlated_cases(),
        **_ledger_cases(),
        **_accounting_cases(),
        **_auditing_cases(),
        **_mechanisms_cases(),
        **_plotting_cases(),
        **_sampling_cases(),
        **_tradeoff_cases(),
        **_training_cases(),
    }


@functools.cache
def _epsilon_curves() -> Any:
    return plotting.epsilon_curves(*RUN, 1e-3, num_points=8)


@functools.cache
def _tradeoff_curves() -> Any:
    return plotting.tradeoff_curves(*RUN, 1e-3, num_points=8)


@functools.cache
def _figure() -> Any:
    return plotting.plot_epsilon(_epsilon_curves())


# Records of results, which hold what they are given.
RECORDS = {
    "AbstractBatches",
    "AbstractClipRule",
    "AbstractNoiseStrategy",
    "AbstractParticipation",
    "AbstractPrimitive",
    "AbstractWorkload",
    "IndependentGaussian",
    "PrefixSum",
    "SingleParticipation",
    "Full",
    "Outer",
    "Sparse",
    "BatchOverflowError",
    "Bounds",
    "CheckpointError",
    "Groups",
    "Identity",
    "NeighboringRelation",
    "Examples",
    "Model",
}
# Called by the layers above with arguments that they have checked.
BETWEEN_LAYERS = {
    "audit_installation",
}
# Readers of files and switches of the process, which have tests of their own.
OF_FILES = {
    "use_compilation_cache",
    "register_primitive",
}
MODULES = (
    gdpjax,
    accounting,
    auditing,
    clipping,
    correlated,
    ledger,
    mechanisms,
    nnx,
    plotting,
    sampling,
    sweeps,
    tradeoff,
    training,
    transforms,
)


def entry_points() -> set[str]:
    """Return the public names that are to have a case: functions and classes, but for those listed above and errors."""
    public = {}
    for module in MODULES:
        for name in module.__all__:
            public[name] = getattr(module, name)

    without_case = RECORDS | BETWEEN_LAYERS | OF_FILES
    result = set()
    for name, value in public.items():
        is_error = isinstance(value, type) and issubclass(value, Exception)
        if callable(value) and not is_error and name not in without_case:
            result.add(name)
    return result
