"""`accumulate_clipped`: one private step for each logical batch, whatever it is cut into."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from gdpjax.clipping import charge_of_sum
from gdpjax.sampling import PoissonNumbers

pytestmark = pytest.mark.usefixtures("cheap_noise")
PRIVATE = {"noise_multiplier": 1.3, "batches": PoissonNumbers(0.01, 24.0), "key": jax.random.key(0)}
ROWS = np.random.default_rng(1).normal(size=(24, 3)).astype(np.float32) * 2
PARAMS = {"w": jnp.ones(3), "frozen": jnp.ones(2)}
TRAINABLE = {"w": True, "frozen": False}


def loss(params, row):
    return (jnp.vdot(params["w"], row) + params["frozen"].sum()) ** 2


def clipped(**options):
    return gdpjax.clipped_grad(loss, 1.0, trainable=TRAINABLE, **options)


def run(tx, grad_fn, parts, num_logical=1):
    """Updates of every call, the parameters, and the state; the logical batch cut into ``parts``."""

    def one(carry, rows):
        params, state = carry
        updates, state = tx.update(grad_fn(params, rows), state, params)
        return (optax.apply_updates(params, updates), state), updates

    cut = ROWS.reshape(parts, -1, 3)
    stacked = np.concatenate([cut] * num_logical)
    scan = jax.jit(functools.partial(jax.lax.scan, one))
    (params, state), updates = scan((PARAMS, tx.init(PARAMS)), stacked)
    return updates, params, state


@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_any_number_of_microbatches_gives_the_step_of_one_big_batch(parts):
    """Trap 20; and that the inner optimizer, its schedule and its moments see logical batches only."""
    rate = optax.exponential_decay(0.1, 1, 0.5)
    grad_fn = clipped(max_batch_size=24)
    private = gdpjax.dpadam(rate, clip=grad_fn, **PRIVATE)
    _, expected, plain = run(private, grad_fn, 1, num_logical=3)
    _, params, state = run(gdpjax.accumulate_clipped(private, parts), grad_fn, parts, num_logical=3)
    np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(params["frozen"], PARAMS["frozen"])
    assert gdpjax.ledger_of(state) == gdpjax.ledger_of(plain)


def test_in_between_nothing_moves_and_nothing_is_recorded():
    grad_fn = clipped()
    tx = gdpjax.accumulate_clipped(gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE), 3)
    step = jax.jit(lambda rows, state: tx.update(grad_fn(PARAMS, rows), state, PARAMS))
    state = tx.init(PARAMS)
    for call in range(1, 8):
        updates, state = step(ROWS[call : call + 8], state)
        updates = jax.tree.map(np.asarray, updates)
        assert updates["w"].all() == updates["w"].any() == (call % 3 == 0)
        events = gdpjax.ledger_of(state).events
        assert sum(event.num_steps for event in events) == call // 3
        assert all(0.01 <= event.sampling_prob < 0.01 + 1e-9 for event in events)
        held = [bool(np.any(state.total["w"])), bool(np.any(state.error["w"]))]
        assert held == ([False, False] if call % 3 == 0 else [True, call % 3 == 2])  # nothing is left for the next one
    assert len(events) == 1
    assert int(state.microstep) == 1


def test_the_sum_of_many_is_rounded_once():
    """Trap 41: added plainly in float32, a thousand sums are off by many roundings, and the bound does not hold."""
    sums = np.random.default_rng(0).uniform(0.5, 1.5, (1000, 4)).astype(np.float32) * 777
    exact = sums.astype(np.float64).sum(0)
    clip = gdpjax.Sensitivity(1.0)
    tiny = {**PRIVATE, "noise_multiplier": 1e-20, "batches": PoissonNumbers(0.01, 1.0)}  # what is released is the sum
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(clip, **tiny), 1000)
    params = jnp.zeros(4)

    def one(state, total):
        released, state = tx.update(total, state, params)
        return state, released

    scan = jax.jit(functools.partial(jax.lax.scan, one))
    _, released = scan(tx.init(params), sums)
    unit = 2.0**-24
    plain = functools.reduce(np.add, sums, np.zeros(4, np.float32))
    assert (np.abs(plain.astype(np.float64) - exact) > 2 * unit * exact).any()
    released = np.asarray(released)
    assert (np.abs(released[-1].astype(np.float64) - exact) <= unit * exact).all()
    assert not released[:-1].any()


def factor_of(rows, parts, size, **options):
    """Return the factor of the sensitivity where ``parts`` sums of ``rows`` rows are added."""
    grad_fn = gdpjax.clipped_grad(lambda w, row: jnp.vdot(w, row), 1.0, **options)
    charge = charge_of_sum(grad_fn, jnp.zeros(size), None, rows, parts)
    return max(1.0, charge.row + parts * charge.rounding)


def nothing(num_rows):
    """Rows whose sum is zero, so that what is released is the noise."""
    return np.zeros((num_rows, 3), np.float32)


def zero_loss(w, row):
    return 0 * jnp.vdot(w, row)


@functools.cache
def noise_of_one_sum():
    """Return the release of a step on one sum: the same noise whatever its clip, because of the same key."""
    grad_fn = gdpjax.clipped_grad(zero_loss, 1.0)
    private, params = gdpjax.privatize(grad_fn, **PRIVATE), jnp.zeros(3)
    step = jax.jit(lambda state: private.update(grad_fn(params, nothing(8)), state, params)[0])
    return np.asarray(step(private.init(params)), np.float64)


def accumulated_step(grad_fn, num_sums):
    """A compiled step on rows, and its first state."""
    params = jnp.zeros(3)
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(grad_fn, **PRIVATE), num_sums)
    step = jax.jit(lambda rows, state: tx.update(grad_fn(params, rows), state, params))
    return step, tx.init(params)


def added_up(step, state, sizes):
    """Return the release, relative to the same noise on one sum, where sums of these numbers of rows are added up."""
    for size in sizes:
        released, state = step(nothing(size), state)
    return np.asarray(released, np.float64) / noise_of_one_sum()


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 4096}], ids=["own slack", "logical slack"])
def test_the_noise_is_enlarged_by_the_factor(options):
    """The same key and step give the same noise, with and without accumulation."""
    grad_fn = gdpjax.clipped_grad(zero_loss, 1.0, **options)
    ratio = added_up(*accumulated_step(grad_fn, 16), [256] * 16)
    np.testing.assert_allclose(ratio, factor_of(256, 16, 3, **options), rtol=1e-6)
    assert (ratio.min() > 1.001) is not bool(options)


def threshold(num_rows):
    """Return the norm to which a large row is clipped among so many."""
    rows = np.zeros((num_rows, 3), np.float32)
    rows[0] = 1e3
    return np.linalg.norm(np.float64(gdpjax.clipped_grad(lambda w, row: jnp.vdot(w, row), 1.0)(jnp.zeros(3), rows)))


def test_the_factor_is_that_of_the_sums_that_were_added():
    """Sums of few rows before, or in other programs, say nothing about those of many rows that follow."""
    grad_fn = gdpjax.clipped_grad(zero_loss, 1.0)
    step, state = accumulated_step(grad_fn, 4)
    small = added_up(step, state, [8] * 4)
    large = added_up(step, state, [1024] * 4)
    np.testing.assert_allclose(small, factor_of(8, 4, 3), rtol=1e-6)
    np.testing.assert_allclose(large, factor_of(1024, 4, 3), rtol=1e-6)
    again = added_up(*accumulated_step(grad_fn, 4), [8] * 4)
    np.testing.assert_allclose(again, small, rtol=1e-6)

    # A row that moves between sums of 8 and of 1024 rows is clipped to other thresholds.
    mixed = added_up(step, state, [8, 1024, 8, 1024])
    assert (mixed > 1 + 3 * (threshold(8) - threshold(1024))).all()


def test_a_compiled_update_does_not_guess_how_many_rows_it_will_be_given():
    """Compiled after sums of 8 rows, and then given one of 64, it used the factor of 8."""
    grad_fn = gdpjax.clipped_grad(lambda w, row: jnp.vdot(w, row), 1.0)
    params = jnp.zeros(3)
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(grad_fn, **PRIVATE), 4)
    update = jax.jit(tx.update)
    with pytest.raises(ValueError, match="of how many rows the accumulated sum is cannot be seen"):
        update(jax.jit(grad_fn)(params, nothing(8)), tx.init(params), params)


@pytest.mark.parametrize(
    ("of_the_clip", "of_the_sum", "sizes"),
    [({"max_batch_size": 1024}, {}, (8, 64)), ({}, {"microbatch_rows": 1024}, (1024, 1024))],
    ids=["told the clip", "told the sum"],
)
def test_sums_that_another_program_made_are_charged_for_the_rows_that_were_told(of_the_clip, of_the_sum, sizes):
    grad_fn = gdpjax.clipped_grad(zero_loss, 1.0, **of_the_clip)
    params = jnp.zeros(3)
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(grad_fn, **PRIVATE), 2, **of_the_sum)
    update, clipped_sum, state = jax.jit(tx.update), jax.jit(grad_fn), tx.init(params)
    for size in sizes:
        released, state = update(clipped_sum(params, nothing(size)), state, params)
    ratio = np.asarray(released, np.float64) / noise_of_one_sum()
    np.testing.assert_allclose(ratio, factor_of(1024, 2, 3, **of_the_clip), rtol=1e-6)


def test_a_sum_from_elsewhere_is_charged_for_any_number_of_devices(monkeypatch):
    """Nothing says over how many of them its rows were spread, and their sums are rounded differently."""
    grad_fn = gdpjax.clipped_grad(lambda w, row: jnp.vdot(w, row), 1.0)
    charges = []
    for num_devices in (1, 8):
        monkeypatch.setattr(jax, "device_count", lambda num_devices=num_devices: num_devices)
        charges.append(charge_of_sum(grad_fn, jnp.zeros(3), None, 64, 4))
    of_one, of_any = charges
    assert of_one.rounding < of_any.rounding
    assert of_one.row <= of_any.row


def test_a_sum_of_more_rows_than_were_told_is_refused():
    grad_fn = clipped()
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(grad_fn, **PRIVATE), 2, microbatch_rows=8)
    step = jax.jit(lambda rows, state: tx.update(grad_fn(PARAMS, rows), state, PARAMS))
    with pytest.raises(ValueError, match="a sum of 24 rows, more than microbatch_rows=8"):
        step(ROWS, tx.init(PARAMS))
    for fewer in (6, 0):
        jax.eval_shape(step, ROWS[:fewer], tx.init(PARAMS))


def test_a_change_of_the_accumulated_sum_is_refused():
    grad_fn = clipped()
    unchanged, doubled = optax.identity(), optax.scale(2.0)
    for before, inside in [(unchanged, doubled), (doubled, unchanged)]:
        private = optax.chain(inside, gdpjax.privatize(grad_fn, **PRIVATE))
        tx = optax.chain(before, gdpjax.accumulate_clipped(private, 2))
        step = jax.jit(lambda rows, state, tx=tx: tx.update(grad_fn(PARAMS, rows), state, PARAMS))
        with pytest.raises(ValueError, match=r"changes the accumulated sum|Something changed it before the noise"):
            step(ROWS, tx.init(PARAMS))


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 4096}], ids=["own slack", "logical slack"])
def test_an_added_row_that_moves_all_others_keeps_the_bound(options):
    """64 sums of 64 rows, each of other rows than the neighbour's: the exact totals differ by one clipped row."""
    normal = np.random.default_rng(1).normal(size=(4096, 3))
    rows = np.float32(np.abs(normal) + np.array([8.0, 0.0, 0.0]))
    grad_fn = gdpjax.clipped_grad(lambda w, row: jnp.vdot(w, row), 1.0, **options)
    tiny = {**PRIVATE, "noise_multiplier": 1e-20, "batches": PoissonNumbers(0.01, 1.0)}
    tx = gdpjax.accumulate_clipped(gdpjax.privatize(grad_fn, **tiny), 64)
    params = jnp.zeros(3)

    @jax.jit
    def total(rows, is_padding):
        def one(state, part):
            released, state = tx.update(grad_fn(params, part[0], is_padding=part[1]), state, params)
            return state, released

        parts = (rows.reshape(64, 64, 3), is_padding.reshape(64, 64))
        _, released = jax.lax.scan(one, tx.init(params), parts)
        return released[-1]

    padding = np.arange(4096) >= 4095
    larger = np.asarray(total(rows, np.zeros(4096, bool)), np.float64)
    for removed in (0, 100, 4095):
        fewer = np.concatenate([np.delete(rows, removed, axis=0), rows[:1]])  # the others move up; a row of padding
        smaller = np.asarray(total(fewer, padding), np.float64)
        assert np.linalg.norm(larger - smaller) <= factor_of(64, 64, 3, **options)


def test_behind_clip_and_sum_in_a_chain():
    clip = gdpjax.clip_and_sum(1.0)
    tx = optax.chain(clip, gdpjax.accumulate_clipped(gdpjax.privatize(clip, **PRIVATE), 2))
    params = jnp.ones(3)
    rows_of = jax.jit(gdpjax.per_example_grad(lambda w, x: jnp.vdot(w, x)))
    rows = np.asarray(rows_of(params, ROWS))
    update = jax.jit(tx.update)
    first, state = update(rows[:12], tx.init(params), params)
    second, state = update(rows[12:], state, params)
    assert not np.any(first)
    assert np.all(second)
    assert gdpjax.ledger_of(state).num_steps == 1


def called(rows=8, **options):
    grad_fn = clipped(**options)
    jax.eval_shape(grad_fn, PARAMS, jnp.zeros((rows, 3)))
    return grad_fn


def update_once(tx, sums=PARAMS, params=PARAMS):
    tx = gdpjax.accumulate_clipped(tx, 4)
    return tx.update(sums, tx.init(PARAMS), params)


ADAPTIVE = {"initial_l2_clip_norm": 1.0, "count_stddev": 1.0}
REFUSALS = {
    "no privatize": (lambda: update_once(optax.sgd(0.1)), "exactly one .*, and 0 took part"),
    "two of them": (
        lambda: update_once(optax.chain(*[gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE)] * 2)),
        "and 2 took part",
    ),
    "adaptive": (lambda: update_once(gdpjax.privatize_adaptive(**ADAPTIVE, **PRIVATE)), "accumulate_clipped"),
    "no sum yet": (lambda: update_once(gdpjax.privatize(clipped(), **PRIVATE)), "has made none"),
    "unknown rows": (lambda: update_once(gdpjax.privatize(called(), **PRIVATE)), "give max_batch_size to the clip"),
    "rounding above 1%": (
        lambda: update_once(gdpjax.privatize(called(max_batch_size=8192), **PRIVATE)),
        "more than 1%; give the rows of the logical batch, such as max_batch_size=32768",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(case):
    make, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_sum_wider_than_the_accumulator_is_refused():
    with jax.enable_x64(True):
        tx, params = gdpjax.privatize(gdpjax.Sensitivity(1.0), **PRIVATE), jnp.ones(2, jnp.float32)
        tx = gdpjax.accumulate_clipped(tx, 2)
        with pytest.raises(ValueError, match="is float64 and would be rounded to float32"):
            tx.update(jnp.ones(2, jnp.float64), tx.init(params), params)


def test_optax_multisteps_is_refused_with_advice():
    """Trap 43: around the private transform it averages sums, and takes the noise's divisor for its own."""
    grad_fn = called()
    state = optax.MultiSteps(gdpjax.dpsgd(0.1, clip=grad_fn, **PRIVATE), 2).init(PARAMS)
    with pytest.raises(ValueError, match=r"gdpjax\.accumulate_clipped"):
        gdpjax.ledger_of(state)
