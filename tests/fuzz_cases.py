"""One valid call of every public entry point, for `tests.fuzz` to mutate.

A case is ``name: (function, args, kwargs)``, made by a function so that arrays and keys are made anew. Functions that
return something lazy (an optax transformation, an iterator) are used once, so that a bad argument cannot hide in it.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
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
X, Y = np.ones((4, 2), np.float32), np.zeros(4, np.float32)
GRADS = {"w": np.ones((4, 2), np.float32), "b": np.ones(4, np.float32)}
PRIVATE = {"noise_multiplier": 1.0, "sampling_prob": 0.1, "expected_batch_size": 4.0, "key": KEY}


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
        "learning_rate": 0.1, "l2_clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": 2, "epochs": 1, "seeds": 1
    },
}  # fmt: skip
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
    """Call it in a folder that is removed again: wrong paths may be written to."""

    @functools.wraps(function)
    def used(*args: Any, **kwargs: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            function(*args, **kwargs)

    return used


def release(key: Any, included: Any) -> Any:
    return jax.random.normal(key, ()) + included


def _stepped(make: Callable[..., Any], updates: Any = PARAMS) -> Callable[..., Any]:
    @functools.wraps(make)
    def used(*args: Any, **kwargs: Any) -> Any:
        tx = make(*args, **kwargs)
        return tx.update(updates, tx.init(PARAMS), PARAMS)

    return used


def _called(make: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    @functools.wraps(make)
    def used(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)(*inputs)

    return used


def _first(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def used(*args: Any, **kwargs: Any) -> Any:
        return next(iter(make(*args, **kwargs)))

    return used


@functools.cache
def plan() -> Any:
    return training.make_plan(
        clip=1.0, max_examples=8, expected_batch_size=2, num_steps=3, delta=1e-3, noise_multiplier=2.0
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
    made = training.private_training(*args, **kwargs)
    return made.step(made.init(PARAMS, KEY), made.place(X, Y))


def _accumulated(clip: Any, num_microbatches: Any) -> Any:
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(clip, **PRIVATE), num_microbatches)
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def _accumulate_any(tx: Any, num_microbatches: Any) -> Any:
    made = gdpjax.accumulate_clipped(tx, num_microbatches)
    return made.update(PARAMS, made.init(PARAMS), PARAMS)


def cases() -> dict[str, Case]:
    """Every case by the name of its entry point."""
    run = (1.0, 0.1, 10)
    f, g = tradeoff.Gaussian(1.0), tradeoff.Laplace(1.0)
    scores, coins = np.arange(64.0), np.arange(64) % 2 == 0
    order2 = (np.full(2, 0.1), np.array([2.0, 3.0]))
    event = gdpjax.Event(1.0, 0.1, 10)
    tally = accounting.gdp_clt()
    found: dict[str, Case] = {
        # clipping
        "AutoS": (gdpjax.AutoS, (1.0, 0.01), {}),
        "Flat": (gdpjax.Flat, (1.0,), {}),
        "Normalize": (gdpjax.Normalize, (1.0,), {}),
        "PerGroup": (gdpjax.PerGroup, ({"w": "a", "b": "a"}, {"a": 1.0}), {}),
        "PerLeaf": (gdpjax.PerLeaf, (1.0,), {}),
        "Sensitivity": (gdpjax.Sensitivity, (1.0, True), {}),
        "product_flops": (clipping.product_flops, (jax.make_jaxpr(jnp.sin)(1.0),), {}),
        "as_rule": (clipping.as_rule, (1.0,), {}),
        "average_augmentations": (
            _called(gdpjax.average_augmentations, PARAMS, X), (augmented_loss, 4), {"augmented_argnums": 1}
        ),
        "clipped_grad": (
            _called(gdpjax.clipped_grad, PARAMS, X, Y), (loss_fn, 1.0),
            {"argnums": 0, "batch_argnums": (1, 2), "keep_batch_dim": False, "has_aux": False, "strategy": "auto",
             "trainable": {"w": True, "b": True}, "microbatch_size": 2, "return_info": False},
        ),
        "clipped_grad()": (grad_fn(), (PARAMS, X, Y), {"is_padding": np.zeros(4, bool)}),
        "clipped_grad().sensitivity": (grad_fn().sensitivity, (gdpjax.NeighboringRelation.REPLACE_ONE,), {}),
        "explain": (gdpjax.explain, (loss_fn, PARAMS, (X, Y)), {"batch_argnums": (1, 2), "strategy": "auto"}),
        "per_example_grad": (_called(gdpjax.per_example_grad, PARAMS, X, Y), (loss_fn,), {"batch_argnums": (1, 2)}),
        # modules of flax
        "nnx.clipped_grad": (
            _called(nnx.clipped_grad, module(), X, Y), (module_loss, 1.0),
            {"wrt": flax_nnx.Param, "batch_argnums": (1, 2), "strategy": "auto", "return_info": False},
        ),
        "nnx.clipped_grad()": (
            nnx.clipped_grad(module_loss, 1.0, batch_argnums=(1, 2)), (module(), X, Y),
            {"is_padding": np.zeros(4, bool)},
        ),
        "nnx.explain": (
            nnx.explain, (module_loss, module(), (X, Y)), {"wrt": flax_nnx.Param, "batch_argnums": (1, 2)}
        ),
        "nnx.private_training": (
            nnx.private_training, (plan(), module(), module_loss, optax.sgd(0.1)),
            {"wrt": flax_nnx.Param, "num_arrays": 2, "example_key": False, "strategy": "auto", "constant_work": False},
        ),
        "nnx.private_training().init": (module_loop().init, (module(), KEY), {}),
        # trainings and sweeps of the user's own
        "Task": (
            lambda *args, **kwargs: sweeps.Task(*args, **kwargs).hyperparameters, (load, build, optax.sgd),
            {"defaults": {"epochs": 1.0}, "names": {"data": "d", "model": "m", "optimizer": "o"}},
        ),
        "train": (
            _in_a_folder(sweeps.train), (task(), SPEC, "run"),
            {"resume": False, "diagnostics": True, "how_to_resume": "the same again"},
        ),
        "run_sweep": (
            _in_a_folder(sweeps.run_sweep), (task(), SPEC, "run"),
            {"resume": False, "backend": "local", "width": 2, "memory_gb": 1.0},
        ),
        "report_sweep": (_in_a_folder(sweeps.report_sweep), ("run",), {}),
        "new_project": (_in_a_folder(sweeps.new_project), ("mine",), {}),
        "parse_spec": (sweeps.parse_spec, (Path("train.toml"), SPEC_TEXT, sweeps.ImportedTask()), {}),
        "read_spec": (sweeps.read_spec, (Path("train.toml"), sweeps.ImportedTask()), {}),
        # transforms and optimizers
        "accumulate_clipped": (
            _accumulate_any, (gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE), 2), {}
        ),
        "accumulate_clipped(clip)": (_accumulated, (gdpjax.Sensitivity(1.0), 2), {}),
        "add_gaussian_noise": (_stepped(gdpjax.add_gaussian_noise), (1.0, KEY), {}),
        "clip_and_sum": (
            _stepped(gdpjax.clip_and_sum, GRADS), (1.0,), {"trainable": {"w": True, "b": True}, "max_batch_size": 8}
        ),
        "clip_norm_of": (gdpjax.clip_norm_of, (adaptive().init(PARAMS),), {}),
        "dpsgd": (
            _stepped(gdpjax.dpsgd, GRADS), (0.1, 1.0),
            PRIVATE | {"momentum": 0.9, "nesterov": True, "sampling": "poisson", "ledger_capacity": 2,
                       "overflow_per_step": 0.0, "max_batch_size": 8},
        ),
        "dpadam": (
            _stepped(gdpjax.dpadam, GRADS), (0.1, 1.0),
            PRIVATE | {"b1": 0.9, "b2": 0.99, "eps": 1e-8, "ledger_capacity": 2, "overflow_per_step": 0.0},
        ),
        "privatize": (
            _stepped(gdpjax.privatize), (gdpjax.Sensitivity(1.0),),
            PRIVATE | {"sampling": "poisson", "neighboring_relation": gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE,
                       "ledger_capacity": 2, "overflow_per_step": 0.0},
        ),
        "privatize(batches)": (
            _stepped(gdpjax.privatize), (gdpjax.Sensitivity(1.0),),
            {"noise_multiplier": 1.0, "key": KEY, "batches": sampling.Poisson(20, 4, 3)},
        ),
        "privatize.update": (
            gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE).update, (PARAMS, private_state(), PARAMS), {}
        ),
        "privatize_adaptive": (
            _stepped(gdpjax.privatize_adaptive, GRADS), (),
            PRIVATE | {"initial_l2_clip_norm": 1.0, "count_stddev": 2.0, "target_quantile": 0.5, "learning_rate": 0.2,
                       "l2_clip_norm_range": (1e-3, 1e3)},
        ),
        # correlated noise
        "BandedInverse": (correlated.BandedInverse, ([1.0, -0.5],), {"memory": "buffer"}),
        "BandedToeplitz": (correlated.BandedToeplitz, ([1.0, 0.5],), {}),
        "BufferedToeplitz": (correlated.BufferedToeplitz, ([0.9, 0.5], [0.2, 0.1]), {}),
        "Dense": (correlated.Dense, (np.eye(2),), {}),
        "FixedEpochs": (correlated.FixedEpochs, (2,), {}),
        "MinSep": (correlated.MinSep, (2, 3), {}),
        "check_batches": (_first(correlated.check_batches), ([[0], [1]], correlated.MinSep(2, 1), 4), {}),
        "to_document": (correlated.to_document, (correlated.MinSep(2, 3),), {}),
        "from_document": (correlated.from_document, ({"type": "FixedEpochs", "num_epochs": 2},), {}),
        "MomentumSGD": (correlated.MomentumSGD, (0.9, 0.01), {}),
        "bisr": (correlated.bisr, (3, 0.9, 0.01), {}),
        "lambda_cgd": (correlated.lambda_cgd, (0.5,), {}),
        "sensitivity": (correlated.bisr(3).sensitivity, (8, correlated.MinSep(2, 3)), {}),
        "sensitivity of Dense": (correlated.Dense(np.eye(8)).sensitivity, (8, correlated.MinSep(2, 3)), {}),
        "error": (correlated.bisr(3).error, (8, "max"), {"workload": correlated.PrefixSum()}),
        "error of Dense": (correlated.Dense(np.eye(8)).error, (8, "max"), {"workload": correlated.PrefixSum()}),
        "optimize_banded_inverse": (
            correlated.optimize_banded_inverse, (8, 2, correlated.MinSep(2, 3), "max"),
            {"workload": correlated.PrefixSum()},
        ),
        "optimize_banded_toeplitz": (
            correlated.optimize_banded_toeplitz, (8, 2, "max"), {"workload": correlated.PrefixSum()}
        ),
        "optimize_buffered_toeplitz": (
            correlated.optimize_buffered_toeplitz, (8, correlated.MinSep(2, 3), "max"),
            {"max_buffers": 2, "workload": correlated.PrefixSum()},
        ),
        "optimize_dense": (correlated.optimize_dense, (8, 2), {"workload": correlated.PrefixSum()}),
        # ledger
        "Event": (gdpjax.Event, run, {"sampling": "poisson", "overflow": 0.0,
                                      "neighboring_relation": gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE}),
        "Event.joint": (gdpjax.Event.joint, (1.0, 2.0), {"sampling_prob": 0.1, "num_steps": 3}),
        "Event.quantile_clipping": (
            gdpjax.Event.quantile_clipping, (1.0, 5.0), {"sampling_prob": 0.1, "num_steps": 3}
        ),
        "AllocationEvent": (ledger.AllocationEvent, (1.0, 10, 3, 2), {"missing_steps": 1}),
        "ApproximateDPEvent": (ledger.ApproximateDPEvent, (1.0, 1e-5, 2), {}),
        "GaussianEvent": (ledger.GaussianEvent, (1.0, 2), {}),
        "LaplaceEvent": (ledger.LaplaceEvent, (1.0, 2), {}),
        "CorrelatedGaussianEvent": (ledger.CorrelatedGaussianEvent, (1.0, 10, 12, 2, 5), {"is_exact": False}),
        "CyclicPoissonEvent": (ledger.CyclicPoissonEvent, (1.0, 0.1, 10, 3), {"overflow": 1e-9, "announced": True}),
        "ShuffledEvent": (ledger.ShuffledEvent, (1.0, 10, 3), {"overflow": 1e-9, "missing_steps": 1}),
        "TruncatedPoissonEvent": (ledger.TruncatedPoissonEvent, (1.0, 0.1, 3, 20, 4), {}),
        "RandomizedResponseEvent": (ledger.RandomizedResponseEvent, (1.0, 3, 2), {}),
        "Ledger": (gdpjax.Ledger, ([event],), {}),
        "Ledger.add": (gdpjax.Ledger().add, (event,), {}),
        "Ledger.from_json": (gdpjax.Ledger.from_json, (gdpjax.Ledger([event]).to_json(),), {}),
        "Ledger.from_opacus_history": (gdpjax.Ledger.from_opacus_history, ([(1.0, 0.1, 3)],), {}),
        "check_scheme": (ledger.check_scheme, ("allocation", {"steps_per_epoch": 4}, 0.25), {}),
        "init_ledger": (ledger.init_ledger, (2, "poisson", gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE), {}),
        "ledger_from_state": (ledger.ledger_from_state, (private_state().ledger,), {}),
        "ledger_of": (gdpjax.ledger_of, (private_state(),), {}),
        "ledger_state_of": (ledger.ledger_state_of, (private_state(),), {}),
        "record_step": (ledger.record_step, (private_state().ledger, 1.0, 0.1, 0.0), {}),
        "record_steps": (ledger.record_steps, (private_state().ledger, 2, 1.0, 0.1, 0.0), {}),
        "resolve_relation": (
            ledger.resolve_relation, ("poisson", gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE), {}
        ),
        "resolve_scheme_relation": (
            ledger.resolve_scheme_relation, ("truncated_poisson", gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE), {}
        ),
        "round_toward": (ledger.round_toward, (0.1, float("inf"), jnp.float32), {}),
        # accounting
        "with_overflow": (accounting.with_overflow, (accounting.certified(*run), 1e-9), {"announced": True}),
        "calibrate_noise_multiplier": (
            accounting.calibrate_noise_multiplier, (),
            {"epsilon": 3.0, "delta": 1e-3, "sampling_prob": 0.1, "num_steps": 10, "accountant": "rdp"},
        ),
        "calibrate_num_steps": (
            accounting.calibrate_num_steps, (),
            {"epsilon": 3.0, "delta": 1e-3, "sampling_prob": 0.1, "noise_multiplier": 1.0, "accountant": "rdp"},
        ),
        "calibrate_sampling_prob": (
            accounting.calibrate_sampling_prob, (),
            {"epsilon": 3.0, "delta": 1e-3, "num_steps": 10, "noise_multiplier": 1.0, "accountant": "rdp"},
        ),
        "clt_epsilon": (accounting.clt_epsilon, (*run, 1e-3), {"sampling": "poisson"}),
        "clt_is_reliable": (accounting.clt_is_reliable, (*run, 1e-3), {}),
        "clt_mu_poisson": (accounting.clt_mu_poisson, run, {}),
        "clt_mu_uniform": (accounting.clt_mu_uniform, run, {}),
        "report": (gdpjax.report, (run,), {"deltas": [1e-3], "names": ["a run"]}),
        "certified": (accounting.certified, run, {"sampling": "poisson", "group_size": 1}),
        "mu_and_regret": (accounting.mu_and_regret, run, {}),
        "delta_bounds": (accounting.delta_bounds, (*run, 1.0), {"sampling": "poisson"}),
        "allocation_delta_bounds": (accounting.allocation_delta_bounds, (1.0, 4, 2, 1.0), {"num_selected": 2}),
        "allocation_epsilon_bounds": (accounting.allocation_epsilon_bounds, (1.0, 4, 2, 1e-3), {"bins": "fresh"}),
        "epsilon_bounds": (accounting.epsilon_bounds, (*run, 1e-3), {"sampling": "poisson"}),
        "epsilon_bounds(ledger)": (accounting.epsilon_bounds, (gdpjax.Ledger([event]),), {"delta": 1e-3}),
        "epsilon_with_overflow": (
            accounting.epsilon_with_overflow, (lambda delta: accounting.epsilon_bounds(*run, delta), 1e-3, 1e-9), {},
        ),
        "delta_after_overflow": (accounting.delta_after_overflow, (1e-3, 1e-9), {}),
        "steps_of_epochs": (accounting.steps_of_epochs, (1.0, 1000, 16), {}),
        "epsilon_estimate": (accounting.epsilon_estimate, (*run, 1e-3), {}),
        "mu_bounds": (accounting.mu_bounds, run, {"failure": 1e-3}),
        "tradeoff_bounds": (accounting.tradeoff_bounds, (*run, 0.1), {}),
        "edgeworth_delta": (accounting.edgeworth_delta, (*run, 1.0), {"order": 2}),
        "edgeworth_epsilon": (accounting.edgeworth_epsilon, (*run, 1e-3), {"order": 2}),
        "gamma_for_mean_num_runs": (accounting.gamma_for_mean_num_runs, (10.0, 0.5), {}),
        "gdp_clt": (tally.step, (tally.init(), *run), {}),
        "gdp_clt().epsilon": (tally.epsilon, (tally.step(tally.init(), *run), 1e-3), {}),
        "gdp_compose": (accounting.gdp_compose, (np.ones(3),), {"axis": -1}),
        "gdp_delta": (accounting.gdp_delta, (1.0, 1.0), {}),
        "gdp_epsilon": (accounting.gdp_epsilon, (1e-3, 1.0), {}),
        "gdp_group": (accounting.gdp_group, (1.0, 2), {}),
        "gdp_log_delta": (accounting.gdp_log_delta, (1.0, 1.0), {}),
        "gdp_mu": (accounting.gdp_mu, (1.0, 1e-3), {}),
        "gdp_tradeoff": (accounting.gdp_tradeoff, (0.1, 1.0), {}),
        "mean_num_runs": (accounting.mean_num_runs, (0.5, 0.1), {}),
        "moments_accountant_epsilon": (accounting.moments_accountant_epsilon, (*run, 1e-3, "tight"), {}),
        "numeric": (accounting.numeric, (4,), {}),
        "numeric().step": (accounting.numeric(4).step, (accounting.numeric(4).init(), *run), {}),
        "numeric().epsilon": (
            accounting.numeric(4).epsilon, (accounting.numeric(4).step(accounting.numeric(4).init(), *run), 1e-3), {}
        ),
        "rdp": (accounting.rdp, ((2.0, 3.0),), {}),
        "rdp().step": (accounting.rdp((2.0, 3.0)).step, (accounting.rdp((2.0, 3.0)).init(), *run), {}),
        "rdp_allocation": (accounting.rdp_allocation, (1.0, 4, 2, order2[1]), {"num_selected": 2, "bins": "fresh"}),
        "rdp_of_ledger": (accounting.rdp_of_ledger, (gdpjax.Ledger([event]), order2[1]), {}),
        "rdp_truncated_poisson": (accounting.rdp_truncated_poisson, (1.0, 0.1, 100, 20, order2[1]), {}),
        "moments_accountant_epsilon(ledger)": (
            accounting.moments_accountant_epsilon, (gdpjax.Ledger([event]),), {"delta": 1e-3}
        ),
        "rdp_delta": (accounting.rdp_delta, (*order2, 1.0), {}),
        "rdp_epsilon": (accounting.rdp_epsilon, (*order2, 1e-3), {"conversion": "tight"}),
        "rdp_subsampled_gaussian": (accounting.rdp_subsampled_gaussian, (1.0, 0.1, order2[1]), {}),
        "sample_num_runs": (
            accounting.sample_num_runs, (KEY,),
            {"distribution": "negative_binomial", "eta": 0.5, "gamma": 0.1, "shape": (2,)},
        ),
        "tuning_epsilon": (accounting.tuning_epsilon, (*run, 1e-3), {"eta": 0.5, "gamma": 0.1}),
        "tuning_rdp": (accounting.tuning_rdp, order2, {"eta": 0.5, "gamma": 0.1}),
        # auditing
        "audit_many_runs": (auditing.audit_many_runs, (scores, coins), {"delta": 1e-3, "threshold": 30.0}),
        "audit_one_run": (auditing.audit_one_run, (scores, coins), {"key": KEY, "delta": 1e-3, "num_guesses": 8}),
        "audit_step": (auditing.audit_step, (release, KEY), {"delta": 1e-3, "num_releases": 256, "confidence": 0.9}),
        "black_box_scores": (auditing.black_box_scores, (np.ones(3), np.ones(3)), {}),
        "coordinate_canaries": (auditing.coordinate_canaries, (KEY, 2, PARAMS, 1.0), {}),
        "count_correct": (auditing.count_correct, (scores, coins, 8, KEY), {}),
        "epsilon_from_errors": (auditing.epsilon_from_errors, (0.1, 0.1, 1e-3), {}),
        "error_rate_upper": (auditing.error_rate_upper, (3, 10), {"confidence": 0.9}),
        "error_region": (auditing.error_region, (3, 10, 2, 10), {"confidence": 0.9}),
        "flip_coins": (auditing.flip_coins, (KEY, 3), {}),
        "gradient_canaries": (auditing.gradient_canaries, (KEY, 2, PARAMS, 1.0), {}),
        "mislabel": (auditing.mislabel, (KEY, np.arange(3), 3), {}),
        "mu_from_errors": (auditing.mu_from_errors, (0.1, 0.1), {}),
        "one_run_epsilon": (auditing.one_run_epsilon, (8, 10, 20), {"delta": 1e-3, "confidence": 0.9}),
        "one_run_mu": (auditing.one_run_mu, (8, 10, 20), {"confidence": 0.9}),
        "one_run_p_value": (auditing.one_run_p_value, (8, 10, 20), {"epsilon": 1.0, "delta": 1e-3}),
        "one_run_refutes": (auditing.one_run_refutes, (f, 8, 10, 20), {"confidence": 0.9}),
        "out_of_distribution": (auditing.out_of_distribution, (KEY, 2, (3,), 0.0, 1.0), {}),
        "white_box_scores": (auditing.white_box_scores, (np.ones(3), np.ones((2, 3))), {}),
        "with_gradient_canaries": (
            _called(auditing.with_gradient_canaries, PARAMS, PARAMS, True, X[0], Y[0]), (loss_fn,), {}
        ),
        # mechanisms
        "DiscreteGaussianMechanism": (mechanisms.DiscreteGaussianMechanism, (1.0, 2), {}),
        "DiscreteGaussianMechanism.sample": (mechanisms.DiscreteGaussianMechanism(1.0).sample, (KEY, 3), {}),
        "DiscreteLaplaceMechanism": (mechanisms.DiscreteLaplaceMechanism, (1.0, 2), {}),
        "GaussianMechanism": (mechanisms.GaussianMechanism, (1.0,), {}),
        "GaussianMechanism.sample": (mechanisms.GaussianMechanism(1.0).sample, (KEY, 1.0), {"sensitivity": 1.0}),
        "GaussianMechanism.epsilon": (mechanisms.GaussianMechanism(1.0).epsilon, (1e-3,), {}),
        "GaussianMechanism.delta": (mechanisms.GaussianMechanism(1.0).delta, (1.0,), {}),
        "LaplaceMechanism": (mechanisms.LaplaceMechanism, (1.0,), {}),
        "LaplaceMechanism.sample": (mechanisms.LaplaceMechanism(1.0).sample, (KEY, X), {"sensitivity": 1.0}),
        "PoissonSubsampled": (mechanisms.PoissonSubsampled, (mechanisms.GaussianMechanism(1.0), 0.1), {}),
        "PoissonSubsampled.sample": (
            mechanisms.PoissonSubsampled(mechanisms.GaussianMechanism(1.0), 0.1).sample, (KEY, X), {"sensitivity": 1.0}
        ),
        "PoissonSubsampled.tradeoff": (
            mechanisms.PoissonSubsampled(mechanisms.GaussianMechanism(1.0), 0.1).tradeoff, ("remove",), {}
        ),
        "RandomizedResponse": (mechanisms.RandomizedResponse, (1.0, 3), {}),
        "RandomizedResponse.sample": (mechanisms.RandomizedResponse(1.0).sample, (KEY, np.arange(2)), {}),
        "RandomizedResponse.estimate": (mechanisms.RandomizedResponse(1.0).estimate, ([4, 6],), {}),
        "RandomizedResponse.with_truth_probability": (
            mechanisms.RandomizedResponse.with_truth_probability, (0.9, 3), {}
        ),
        # plotting
        "approximate_dp_tradeoff": (plotting.approximate_dp_tradeoff, (np.array([0.1, 0.5]), 1.0, 1e-3), {}),
        "epsilon_curves": (plotting.epsilon_curves, (*run, 1e-3), {"num_points": 8, "log": False}),
        "plot_epsilon": (plotting.plot_epsilon, (_epsilon_curves(),), {"log": False}),
        "plot_tradeoff": (plotting.plot_tradeoff, (_tradeoff_curves(),), {"log": False}),
        "tradeoff_curves": (plotting.tradeoff_curves, (*run, 1e-3), {"num_points": 8}),
        # sampling
        "fresh_key": (gdpjax.fresh_key, ("threefry2x32",), {}),
        "poisson_batches": (
            _first(gdpjax.poisson_batches), (KEY, 20, 0.1),
            {"num_steps": 3, "capacity": 16, "overflow": 1e-9, "num_valid": 10, "start": 1},
        ),
        "PoissonBatches": (
            _first(sampling.PoissonBatches), (KEY, 20, 0.1), {"num_steps": 3, "overflow": 1e-9, "num_valid": 10}
        ),
        "PoissonBatches(sizes)": (_first(sampling.PoissonBatches), (KEY, 20, 0.1), {"num_steps": 3, "sizes": (8, 16)}),
        "PoissonBatches[]": (sampling.PoissonBatches(KEY, 20, 0.1, num_steps=3).__getitem__, (1,), {}),
        "AllocationBatches": (
            _first(sampling.AllocationBatches), (KEY, 20, 4), {"num_epochs": 2, "capacity": 16, "num_selected": 2,
                                                               "num_valid": 10},
        ),
        "AllocationBatches[]": (
            sampling.AllocationBatches(KEY, 20, 4, num_epochs=2, capacity=16).__getitem__, (1,), {}
        ),
        "allocation_error": (sampling.allocation_error, (100,), {}),
        "allocation_overflow": (sampling.allocation_overflow, (20, 4, 8, 10, 2), {}),
        "allocation_sample": (
            sampling.allocation_sample, (KEY, 5, 20, 4, 16), {"num_selected": 2, "num_valid": 10}
        ),
        "CyclicPoissonBatches": (
            _first(sampling.CyclicPoissonBatches), (KEY, 20, 0.1, 3), {"num_steps": 6, "capacity": 7, "num_valid": 10},
        ),
        "cyclic_poisson_sample": (sampling.cyclic_poisson_sample, (KEY, 5, 20, 0.1, 3, 7), {"num_valid": 10}),
        "ShuffledBatches": (
            _first(sampling.ShuffledBatches), (KEY, 20, 3), {"num_epochs": 2, "num_valid": 10}
        ),
        "ShuffledBatches[]": (sampling.ShuffledBatches(KEY, 20, 3, num_epochs=2).__getitem__, (1,), {}),
        "shuffled_error": (sampling.shuffled_error, (20, 2), {}),
        "shuffled_sample": (sampling.shuffled_sample, (KEY, 5, 20, 3), {"num_valid": 10}),
        "TruncatedPoissonBatches": (
            _first(sampling.TruncatedPoissonBatches), (KEY, 20, 0.1), {"num_steps": 3, "capacity": 4, "num_valid": 10}
        ),
        "TruncatedPoissonBatches[]": (
            sampling.TruncatedPoissonBatches(KEY, 20, 0.1, num_steps=3, capacity=4).__getitem__, (1,), {}
        ),
        "UniformBatches": (_first(sampling.UniformBatches), (KEY, 20, 4), {"num_steps": 3}),
        "UniformBatches[]": (sampling.UniformBatches(KEY, 20, 4, num_steps=3).__getitem__, (1,), {}),
        "Poisson": (sampling.Poisson, (20, 4.0, 3), {"capacity": 16}),
        "Poisson(overflow)": (sampling.Poisson, (20, 4.0, 3), {"overflow": 1e-9}),
        "Poisson.sample": (sampling.Poisson(20, 4, 3).sample, (KEY, 1), {"num_valid": 10}),
        "Poisson.host_batches": (_first(sampling.Poisson(20, 4, 3).host_batches), (KEY,), {"num_valid": 10}),
        "choose_capacity": (sampling.choose_capacity, (20, 0.1, 3, 1e-9), {}),
        "dyadic_probability": (sampling.dyadic_probability, (0.1,), {}),
        "overflow_probability": (sampling.overflow_probability, (20, 0.1, 3, 10), {}),
        "poisson_sample": (sampling.poisson_sample, (KEY, 20, 0.1, 16), {"num_valid": 10}),
        "truncated_poisson_sample": (sampling.truncated_poisson_sample, (KEY, 20, 0.1, 4), {"num_valid": 10}),
        "uniform_sample": (sampling.uniform_sample, (KEY, 20, 4), {}),
        "uniform_sampling_error": (sampling.uniform_sampling_error, (20, 3), {}),
        # tradeoff
        "ApproximateDP": (tradeoff.ApproximateDP, (1.0, 0.1), {}),
        "Gaussian": (tradeoff.Gaussian, (1.0,), {}),
        "Gaussian()": (f, (0.1,), {}),
        "Gaussian.slope": (f.slope, (0.1,), {}),
        "Laplace": (tradeoff.Laplace, (1.0,), {}),
        "PiecewiseLinear": (
            tradeoff.PiecewiseLinear, (np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.2, 0.0])), {"rounding": "down"}
        ),
        "attack_advantage": (tradeoff.attack_advantage, (f,), {}),
        "bayes_error": (tradeoff.bayes_error, (f, 0.5), {}),
        "berry_esseen": (tradeoff.berry_esseen, (g,), {"times": 100}),
        "biconjugate": (tradeoff.biconjugate, (f, f), {}),
        "central_limit": (tradeoff.central_limit, (g,), {"times": 100}),
        "compose": (tradeoff.compose, (f, f), {"times": 2}),
        "convex_conjugate": (tradeoff.convex_conjugate, (f, -1.0), {}),
        "delta": (tradeoff.delta, (f, 1.0), {}),
        "dominating_mu": (tradeoff.dominating_mu, (f, 0.0), {}),
        "epsilon": (tradeoff.epsilon, (f, 1e-3), {}),
        "from_delta_curve": (tradeoff.from_delta_curve, (np.array([0.0, 1.0]), np.array([0.4, 0.1])), {}),
        "from_probabilities": (tradeoff.from_probabilities, (np.array([0.4, 0.6]), np.array([0.6, 0.4])), {}),
        "group": (tradeoff.group, (f, 2), {}),
        "mixture": (tradeoff.mixture, (f, 0.1), {}),
        "parallel": (tradeoff.parallel, (f, g), {}),
        "reconstruction_robustness": (tradeoff.reconstruction_robustness, (f, 0.1), {}),
        "subsample": (tradeoff.subsample, (f, 0.1), {}),
        "true_positive_rate": (tradeoff.true_positive_rate, (f, 0.1), {}),
        # training
        "Plan": (
            training.Plan, (2.0, 1.0, 8, 2.0, 3, 1e-3),
            {"sampling": "poisson", "group_size": 1, "unit": "example", "tuned": "no", "released": "all",
             "neighboring_relation": gdpjax.NeighboringRelation.ADD_OR_REMOVE_ONE},
        ),
        "Plan.from_json": (training.Plan.from_json, (plan().to_json(),), {}),
        "Plan.mu_bounds": (plan().mu_bounds, (1e-4,), {}),
        "Plan.replace": (plan().replace, (), {"max_steps": 4}),
        "make_plan": (
            training.make_plan, (),
            {"clip": 1.0, "max_examples": 8, "expected_batch_size": 2, "epochs": 1.0, "delta": 1e-3,
             "noise_multiplier": 2.0, "sampling": "poisson", "group_size": 1, "unit": "row"},
        ),
        "choose_bands": (
            training.choose_bands, (),
            {"clip": 1.0, "max_examples": 8, "expected_batch_size": 2, "epochs": 1.0, "delta": 1e-3, "mu": 1.0,
             "num_bands": [1, 2], "error": "max"},
        ),
        "choose_microbatch": (
            training.choose_microbatch, (lambda rows: loop(), PARAMS, data()), {"memory_bytes": 10**9},
        ),
        "private_training": (
            _trained, (plan(), loss_fn, optax.sgd(0.1)),
            {"num_arrays": 2, "example_key": False, "keep_batch_dim": False, "strategy": "auto", "microbatch_size": 4,
             "trainable": {"w": True, "b": True}, "ledger_capacity": 2, "scale": lambda state: 1.0},
        ),
        "adam_scale": (training.adam_scale, (), {"epsilon": 1e-8, "b2": 0.999}),
        "Training.init": (loop().init, (PARAMS, KEY), {}),
        "Training.place": (loop().place, (X, Y), {}),
        "Training.step": (loop().step, (state(), data()), {}),
        "Training.run_steps": (loop().run_steps, (state(), data(), 2), {}),
        "Training.step_on": (
            loop().step_on,
            (state(), np.ones((plan().capacity, 2), np.float32), np.ones(plan().capacity, np.float32)),
            {"is_padding": np.zeros(plan().capacity, bool)},
        ),
        "batch_source": (training.batch_source, (plan(), state(), 4), {}),
        "check_status": (training.check_status, (state(),), {}),
        "group_by_user": (training.group_by_user, (np.array([1, 2, 1]), np.ones(3)), {"max_per_user": 2, "key": KEY}),
        "num_steps_done": (training.num_steps_done, (state(),), {}),
        "start_run": (training.start_run, ("/nonexistent/run", loop(), PARAMS, data()), {"key": KEY, "scan": True}),
        "resume_run": (training.resume_run, ("/nonexistent/run", loop(), PARAMS, data()), {"scan": True}),
        "save_figure": (plotting.save_figure, (_figure(), "/nonexistent/figure.png"), {}),
    }  # fmt: skip
    for name in ("inverse", "kappa2", "kappa3", "kappa3bar", "kl", "symmetrize"):
        found[name] = (getattr(tradeoff, name), (g,), {})
    return found


@functools.cache
def _epsilon_curves() -> Any:
    two = np.ones(2)
    return plotting.EpsilonCurves(np.arange(1, 3), 1e-3, gdpjax.Bounds(two, two), two, two, two)


@functools.cache
def _tradeoff_curves() -> Any:
    two, bounds = np.array([0.2, 0.8]), gdpjax.Bounds(np.array([0.7, 0.1]), np.array([0.8, 0.2]))
    return plotting.TradeoffCurves(two, bounds, two, two, two, gdpjax.Bounds(1.0, 1.1), 1e-3, 0.5, 0.5)


@functools.cache
def _figure() -> Any:
    return plotting.plot_epsilon(_epsilon_curves())


# Records of results: they hold what they are given.
RECORDS = {
    "AbstractClipRule", "AbstractFactor", "AbstractNoiseStrategy", "AbstractParticipation", "AbstractPrimitive",
    "AbstractWorkload", "Correlation", "PrefixSum", "SingleParticipation", "Full", "Outer", "Sparse",
    "AccumulationCharge", "ClippedRows", "Accountant", "AccumulateState", "AdaptiveState",
    "BatchOverflowError", "Bounds", "CertifiedCurve", "CheckpointError", "ClipAndSum", "ClipInfo", "ClippedGrad",
    "Curve", "CurveBounds", "ExactCurve", "Report",
    "Data", "EpsilonCurves", "ErrorRegion", "FrequencyEstimate", "Groups", "Identity", "IndexBatch", "Info",
    "LedgerState", "ManyRunsAudit", "NoiseState", "NormalApproximation", "OneRunAudit", "Phases", "PoissonSample",
    "PrivatizeState", "Run", "State", "StepAudit", "Tally", "TradeoffCurves", "Training", "environment", "AnyEvent",
    "NeighboringRelation", "NoGuarantee",
    "Examples", "ImportedTask", "Model", "Reader", "Spec", "SweepResult", "TaskFields", "TrainingResult",
}  # fmt: skip
# Called by the layers above with arguments that they have checked.
BETWEEN_LAYERS = {"accumulation_charge", "charge_of_sum", "clip_rows", "resolve_correlation", "rule_sensitivity"}
# Readers of files and switches of the process, which have tests of their own.
OF_FILES = {
    "convert_document",
    "parse_document",
    "read_document",
    "read_document_lines",
    "has_run",
    "use_compilation_cache",
    "register_primitive",
    "print_training",
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
    """The public names that are to have a case."""
    found = {name: getattr(module, name) for module in MODULES for name in module.__all__}
    errors = {name for name, value in found.items() if isinstance(value, type) and issubclass(value, Exception)}
    return {name for name, value in found.items() if callable(value)} - RECORDS - BETWEEN_LAYERS - OF_FILES - errors
