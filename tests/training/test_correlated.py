"""Runs with correlated noise: the plan, the promise that its batches keep, the loop, and runs that are killed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gdpjax import correlated
from gdpjax.accounting import certified, gdp_epsilon
from gdpjax.ledger import CorrelatedGaussianEvent, CyclicPoissonEvent, Ledger, ledger_of
from gdpjax.sampling import BatchOverflowError, CyclicPoisson, Poisson, Shuffled, WithoutReplacement
from gdpjax.training import CheckpointError, Plan, batch_source, make_plan, private_training, resume_run, start_run
from tests.training.interrupted import committed, finished, interrupted, stopped

N, D = 60, 3
PARAMS = {"w": jnp.zeros(D)}
KEY = jax.random.key(7071)
COMMON = {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 2.0}
FIXED = Shuffled(N, 6, epochs=3, order="fixed")
FRESH = Shuffled(N, 6, epochs=3)
CYCLIC = CyclicPoisson(N, 6, epochs=3, num_groups=5)
BANDED = correlated.BandedToeplitz([1.0, 0.5, 0.3])
PLANS = {
    "fixed": (FIXED, correlated.bisr(3)),
    "banded": (FIXED, BANDED),
    "fresh": (FRESH, correlated.lambda_cgd(0.5)),
    "buffered": (FIXED, correlated.BufferedToeplitz([0.9], [0.3])),
    "cyclic": (CYCLIC, BANDED),
}
"""Batches and noise."""


ROWS = np.outer(np.arange(1, N + 1), [1, 0, 0]).astype(np.float32)
"""The norm of a gradient is the number of its row, from 1."""


def loss(params, x, y):
    """The gradient is x itself."""
    return params["w"] @ x


@functools.cache
def built(name):
    """Return the training of a plan, which is compiled once for all tests."""
    batches, noise = PLANS[name]
    return private_training(make_plan(batches, **COMMON, noise=noise), loss, optax.sgd(0.1))


def placed(training):
    return training.place(ROWS, np.zeros(N))


def trained(training, key=KEY):
    return training.run_steps(training.init(PARAMS, key), placed(training), training.plan.num_steps)


def begun(folder, training, key):
    """Start a run whose steps are taken one by one."""
    return committed(start_run(folder, training, PARAMS, placed(training), key=key, scan=False))


def resumed(folder, training):
    return resume_run(folder, training, PARAMS, placed(training), scan=False)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_and_its_json_are_the_same(name):
    plan = built(name).plan
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan, plan.event)


def test_the_events():
    """The event of a plan holds its noise, its steps and what its participation promises."""
    assert built("fixed").plan.event == CorrelatedGaussianEvent(2.0, 30, 30, 3, 10)
    assert built("fresh").plan.event == CorrelatedGaussianEvent(2.0, 30, 30, 3, 1)
    plan = built("cyclic").plan
    assert plan.event == CyclicPoissonEvent(2.0, plan.sampling_prob, 30, 5, overflow=plan.overflow, announced=True)
    assert plan.sampling_prob == pytest.approx(6 / 12, abs=1e-9)


def test_a_target_is_met_by_the_noise_of_one_gaussian():
    """The noise that is found for an epsilon is that of one Gaussian release."""
    plan = make_plan(FIXED, clip=1.0, delta=1e-5, epsilon=2.0, noise=correlated.bisr(3))
    assert gdp_epsilon(1e-5, 1 / plan.noise_multiplier) == pytest.approx(2.0, rel=1e-3)
    assert plan.epsilon_bounds().upper <= 2.0


@pytest.mark.parametrize("noise_multiplier", [0.02, 0.7, 5.0, 300.0])
def test_brackets_in_closed_form_agree_with_the_contour_and_hold_mu(noise_multiplier):
    """A run of correlated noise is one Gaussian release, which the accountant of any ledger brackets too."""
    event = CorrelatedGaussianEvent(noise_multiplier, 30, 30, 3, 10)
    release = event.from_above
    closed = certified(event)
    contour = certified(Ledger([release]))
    questions = {"epsilon": (1e-9, 1e-5, 0.2), "delta": (0.0, 0.5, 8.0), "tradeoff": (1e-3, 0.5)}
    for question, places in questions.items():
        for place in places:
            ours = getattr(closed, question)(place)
            theirs = getattr(contour, question)(place)
            assert ours.lower <= theirs.upper, (question, place)
            assert theirs.lower <= ours.upper, (question, place)
    lower, upper = closed.mu()
    assert lower <= 1 / noise_multiplier <= upper <= 1.0000001 / noise_multiplier
    assert lower >= 0.999998 / noise_multiplier
    assert np.shape(closed.mu([1e-10, 1e-6]).upper) == (2,)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fixed", "takes part once in each of 3 epochs of 10 steps (30 steps in all), always at the same position"),
        ("fresh", "in at most 3 steps, at least 1 apart"),
        ("fresh", "the rows are shuffled anew in every epoch"),
        ("cyclic", "the examples are dealt at random into 5 groups"),
    ],
)
def test_the_statement_says_what_is_promised(name, sentence):
    """It names the participation, and the sensitivity of the strategy under it."""
    plan = built(name).plan
    text = plan.statement()
    schema = plan.batches.limits() or correlated.SingleParticipation()
    sensitivity = plan.noise.sensitivity(plan.num_steps, schema)
    assert sentence in text
    assert "correlated over the steps" in text
    assert f"times {sensitivity:.6g}, the sensitivity of the strategy C" in text


@pytest.mark.parametrize(
    "name", ["fixed", "banded", "fresh", "cyclic", pytest.param("buffered", marks=pytest.mark.slow)]
)
def test_the_loop_records_the_plan_and_its_batches_keep_the_promise(name):
    """The ledger says what was planned, and every row takes part as often, and as far apart, as is promised."""
    training = built(name)
    plan = training.plan
    state, info = trained(training)
    assert state.finished
    event = ledger_of(state.opt_state)[0]
    assert type(event) is type(plan.event)
    assert event.num_steps == plan.num_steps
    assert np.all(np.isfinite(state.params["w"]))

    # The rows of every step, from the norms of their gradients: as the host draws them.
    source = batch_source(plan, state, N)
    steps_of_row = {row: [] for row in range(N)}
    for step in range(plan.num_steps):
        on_device = np.rint(info.norms[step][~np.asarray(info.is_padding[step])]).astype(int) - 1
        indices, is_padding = source[step]
        np.testing.assert_array_equal(on_device, indices[~is_padding])
        for row in on_device:
            steps_of_row[row].append(step)
    for steps in steps_of_row.values():
        if name == "cyclic":
            # Only the steps of its group.
            assert len({step % 5 for step in steps}) <= 1
        else:
            most, separation = plan.batches.limits().limits(plan.num_steps)
            assert len(steps) == 3 <= most
            assert np.all(np.diff(steps) >= separation)


@pytest.mark.parametrize(
    ("batches", "changes", "message"),
    [
        (Poisson(N, 6, epochs=3), {}, "correlated noise goes with"),
        (WithoutReplacement(N, 6, epochs=3), {}, "correlated noise goes with"),
        (CYCLIC, {}, "BandedToeplitz of at most"),
        (CYCLIC.replace(num_groups=2), {"noise": BANDED}, "of at most 2 bands, got one of 3"),
        (FIXED, {"noise": "bisr"}, "noise must be"),
        (FIXED, {"noise": None}, "noise must be"),
        (FIXED, {"group_size": 2}, "group_size"),
    ],
)
def test_what_does_not_go_together_is_refused(batches, changes, message):
    """A plan whose noise and batches do not go together is refused."""
    with pytest.raises(ValueError, match=message):
        make_plan(batches, **COMMON | {"noise": correlated.bisr(3)} | changes)


@pytest.mark.parametrize(
    "name",
    ["banded", pytest.param("fixed", marks=pytest.mark.slow), pytest.param("cyclic", marks=pytest.mark.slow)],
)
def test_a_killed_run_goes_on_with_the_same_noise(name, tmp_path):
    """Noise that is kept in the state is resumed, and so is noise that is drawn again from keys of earlier steps."""
    training = built(name)
    key = jax.random.fold_in(KEY, list(PLANS).index(name))
    whole = begun(tmp_path / "whole", training, key)
    finished(whole)
    parts = (training, PARAMS, placed(training))
    interrupted(parts, tmp_path / "killed", at=17, chunk=5, key=key)
    again = resumed(tmp_path / "killed", training)
    finished(again)
    np.testing.assert_array_equal(again.state.params["w"], whole.state.params["w"])
    assert again.ledger == whole.ledger


def test_a_chunk_whose_bits_are_not_sure_is_refused(tmp_path, moved_to):
    """It can neither be repeated nor left out."""
    training = built("banded")
    parts = (training, PARAMS, placed(training))
    moved_to(platform="gpu", xla_flags="")
    interrupted(parts, tmp_path / "killed", at=7, chunk=5, key=jax.random.key(9301))
    with pytest.raises(CheckpointError, match="correlated noise"):
        resumed(tmp_path / "killed", training)


def test_a_run_that_lost_nothing_goes_on_only_as_it_began(tmp_path, moved_to):
    """It may be a backup: steps that were taken after it would meet the same noise again."""
    training = built("banded")
    begun(tmp_path / "run", training, jax.random.key(9306)).advance(5)
    # A later version may describe the environment with a setting more.
    for name in ("jax", "another setting"):
        moved_to(**{name: "another"})
        with pytest.raises(CheckpointError, match=rf"{name} of .* differ here"):
            resumed(tmp_path / "run", training)
    moved_to()
    assert resumed(tmp_path / "run", training).step == 5


def test_a_state_that_was_changed_after_an_interruption_is_refused(tmp_path):
    """The lost chunk cannot be repeated on other parameters, nor be left out under new keys."""
    run = begun(tmp_path / "run", built("banded"), jax.random.key(9305))
    stopped(run, 3, by=KeyboardInterrupt)
    kept = run.state
    run.state = kept._replace(params={"w": kept.params["w"] + 1})
    with pytest.raises(ValueError, match="with correlated noise cannot go on"):
        run.advance(3)
    run.state = kept
    run.advance(3)
    assert run.step == 3


def test_a_state_that_was_put_back_is_refused(tmp_path):
    """Its steps would be taken on other parameters, and the noise of later ones takes back that of earlier ones."""
    run = begun(tmp_path / "run", built("banded"), KEY)
    early = run.state
    run.advance(5)
    run.state = early
    with pytest.raises(ValueError, match="earlier state"):
        run.advance(5)


def test_other_data_are_refused(tmp_path):
    """The group of an example belongs to its row."""
    training = built("cyclic")
    begun(tmp_path / "run", training, jax.random.key(7074))
    moved = training.place(ROWS[::-1], np.zeros(N))
    with pytest.raises(ValueError, match="row for row"):
        resume_run(tmp_path / "run", training, PARAMS, moved, scan=False)


def test_a_batch_above_its_capacity_ends_the_run_and_its_steps_are_kept(tmp_path):
    """The chunk is charged for as a whole, and what was done before that batch is the checkpoint."""
    batches = CyclicPoisson(N, 6, epochs=3, num_groups=5, capacity=10)
    training = private_training(make_plan(batches, **COMMON | {"delta": 0.9}, noise=BANDED), loss, optax.sgd(0.1))
    data = training.place(ROWS, np.zeros(N))
    run = start_run(tmp_path / "run", training, PARAMS, data, key=jax.random.key(7))
    with pytest.raises(BatchOverflowError):
        run.advance(30)
    kept = resume_run(run.folder, training, PARAMS, data)
    assert kept.state.overflowed
    assert kept.step == 30
    assert any(kept.state.params["w"])
