"""Adaptive clipping: the clip norm finds its quantile, both releases are noised, and what they cost is recorded."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import gdpjax
from gdpjax.ledger import Event, UniformEvent
from gdpjax.sampling import PoissonNumbers
from tests.transforms.recorded import recorded

pytestmark = pytest.mark.usefixtures("cheap_noise")
PRIVATE = {
    "initial_l2_clip_norm": 1.5,
    "noise_multiplier": 1.0,
    "count_stddev": 0.5,
    "key": jax.random.key(0),
    "learning_rate": 1.0,
}
NUMBERS = {"sampling_prob": 0.01, "expected_batch_size": 8.0, "overflow_per_step": 0.0}
PARAMS = jnp.zeros(2)
ROWS = np.array([[3.0, 4.0], [0.1, 0.1], [1.0, 1.0], [0.0, 0.0]], np.float32)
"""Most tests take four rows of two numbers, so that what was compiled for one of them serves the others."""
REPLACE = gdpjax.NeighboringRelation.REPLACE_ONE
RELATIONS = list(gdpjax.NeighboringRelation)


def make(**changes):
    numbers = {name: changes.pop(name, number) for name, number in NUMBERS.items()}
    return gdpjax.privatize_adaptive(**{**PRIVATE, "batches": PoissonNumbers(**numbers), **changes})


@dataclasses.dataclass(frozen=True)
class FixedSize(PoissonNumbers, static=False):
    """Batches without replacement that are drawn elsewhere, of any number of rows."""

    def step_event(self, neighboring_relation=None):
        return UniformEvent(1.0, 1.0, 1, neighboring_relation)


def under(relation):
    """The options under which a relation has a bound."""
    if relation is REPLACE:
        return {"neighboring_relation": relation, "batches": FixedSize(**NUMBERS)}
    return {"neighboring_relation": relation}


def joint_event(relation, noise_multiplier, count_stddev):
    """The event of one step of both releases."""
    event_type = UniformEvent if relation is REPLACE else Event
    options = {"sampling_prob": 0.01, "num_steps": 1, "neighboring_relation": relation}
    return event_type.quantile_clipping(noise_multiplier, count_stddev, **options)


def dot(w, x):
    """Its gradient at example x is x itself."""
    return jnp.vdot(w, x)


def by_rows(tx, rows, state, params):
    return tx.update(rows, state, params)


def by_sum(tx, rows, state, params):
    grad_fn = gdpjax.clipped_grad(dot, gdpjax.clip_norm_of(state), return_info=True)
    total, info = grad_fn(params, rows)
    return tx.update(total, state, params, clipped_by=grad_fn, norms=info.norms)


WAYS = {"rows": by_rows, "sum": by_sum}


def one_step(rows, state, way="rows", relation=RELATIONS[0]):
    """Return the release and the next state: compiled once for each way, relation and number of rows."""
    # JAX may read the rows where they are, and the caller may change them afterwards.
    return jax.block_until_ready(compiled_step(rows, state, way, relation))


@functools.partial(jax.jit, static_argnums=(2, 3))
def compiled_step(rows, state, way, relation):
    return WAYS[way](make(**under(relation)), rows, state, jnp.zeros(2, rows.dtype))


def first_state():
    return make().init(PARAMS)


def noisy_count(old, new, options=PRIVATE):
    """The count that led from one clip norm to the next."""
    growth = np.log(np.float64(new) / np.float64(old))
    fraction = options.get("target_quantile", 0.5) - growth / options["learning_rate"]
    return (fraction - 0.5) * NUMBERS["expected_batch_size"]


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_ledger_holds_the_joint_event(relation):
    (event,) = recorded(make(**under(relation)), jnp.zeros(3), 4, updates=jnp.ones((5, 3))).events
    expected = joint_event(relation, 1.0, 0.5)
    assert (event.num_steps, type(event)) == (4, type(expected))
    assert event.neighboring_relation is relation
    assert 0 <= expected.noise_multiplier - event.noise_multiplier < 1e-7
    assert 0 <= event.sampling_prob - 0.01 < 1e-9
    assert event.noise_multiplier < 0.72  # not the sum's own 1.0


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_traced_noise_multiplier_is_recorded_from_below(relation):
    params = jnp.zeros(3)

    def once(noise_multiplier, count_stddev):
        tx = make(noise_multiplier=noise_multiplier, count_stddev=count_stddev, **under(relation))
        return tx.update(jnp.ones((5, 3)), tx.init(params), params)[1].ledger

    compiled = jax.jit(once)
    rng = np.random.default_rng(0)
    for z, s in np.exp(rng.uniform(-3, 6, size=(40, 2))).astype(np.float32):
        (event,) = gdpjax.ledger_of(compiled(z, s)).events
        exact = joint_event(relation, float(z), float(s))
        assert 0 <= 1 - event.noise_multiplier / exact.noise_multiplier < 4e-6


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_relation_has_the_same_draws_times_its_factor(relation):
    """The distribution of the draws themselves is tested below, for one relation."""
    nothing, state = np.zeros((4, 2), np.float32), make(**under(relation)).init(PARAMS)
    noise, after = one_step(nothing, state, relation=relation)
    draws, expected = one_step(nothing, first_state())
    np.testing.assert_allclose(noise, draws * relation.sensitivity_factor, rtol=1e-6)
    assert after.l2_clip_norm == expected.l2_clip_norm


def test_noise_of_the_sum_and_of_the_count(monkeypatch):
    """Standard deviations noise_multiplier * Delta * C and count_stddev, normal, independent, fresh in each step."""
    monkeypatch.undo()  # not the cheap noise of the other tests
    num_keys, params = 8_000, jnp.zeros(2)
    rows = np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0], [0.3, 0.4]], np.float32)

    def two_steps(key):
        tx = make(key=key)

        def step(state, _):
            released, state = tx.update(rows, state, params)
            return state, (released, state.l2_clip_norm)

        return jax.lax.scan(step, tx.init(params), length=2)[1]

    keys = jax.random.split(jax.random.key(1), num_keys)
    releases, norms = jax.jit(jax.vmap(two_steps))(keys)
    first, second = np.moveaxis(releases, 1, 0)
    middle, last = np.moveaxis(norms, 1, 0)
    total = np.array([0.9 + 0.3, 1.2 + 1.0 + 0.4])
    of_sum = (first * 8 - total) / 1.5
    of_count = (noisy_count(1.5, middle) - (2 - 1) / 2) / 0.5
    # The second step clips, counts and scales its noise at the clip norm that the first one released.
    clip_norms, lengths = middle[:, None], np.linalg.norm(rows, axis=1)
    bounded = np.minimum(1, clip_norms / lengths.clip(1e-9))
    of_second = (second * 8 - bounded @ rows) / clip_norms
    below = (lengths[[0, 1, 3]] <= clip_norms).sum(1)
    of_second_count = (noisy_count(middle, last) - (below - 1.5)) / 0.5
    draws = np.stack([*of_sum.T, of_count, *of_second.T, of_second_count])
    for draw in draws:
        assert stats.kstest(draw, "norm").pvalue > 1e-4
        assert abs(draw.std() - 1) < 0.02
    assert np.abs(np.corrcoef(draws) - np.eye(6)).max() < 5 / np.sqrt(num_keys)


def test_the_clip_norm_finds_its_quantile():
    """Stationary norms, lognormal: C settles at their quantile from far off on both sides."""
    norms = np.exp(np.random.default_rng(0).normal(1.0, 1.0, 400)).astype(np.float32)
    rows = norms[:, None] * np.array([[0.6, 0.8]], np.float32)
    starts, targets = np.float32([0.05, 100.0]), np.float32([0.2, 0.5, 0.9])

    def final(key, initial, target):
        tx = make(
            initial_l2_clip_norm=initial,
            target_quantile=target,
            learning_rate=0.5,
            count_stddev=20.0,
            expected_batch_size=400.0,
            key=key,
        )

        def step(state, _):
            state = tx.update(rows, state, PARAMS)[1]
            return state, state.l2_clip_norm

        return jnp.log(jax.lax.scan(step, tx.init(PARAMS), None, length=300)[1][150:]).mean()

    every_start = jax.vmap(final, in_axes=(0, 0, None))
    every_target = jax.jit(jax.vmap(every_start, in_axes=(0, None, 0)))
    keys = jax.random.split(jax.random.key(2), (len(targets), len(starts)))
    settled = every_target(keys, starts, targets)
    quantiles = np.log(np.quantile(norms, targets))
    assert np.abs(np.asarray(settled) - quantiles[:, None]).max() < 0.1


SPECIAL = np.array(
    [
        [0.0, 0.0],
        [1e-38, 0.0],
        [1e-20, 0.0],
        [0.9, -1.2],
        [0.0, 1.5],
        [1.4999, 0.0],
        [1.5001, 0.0],
        [-3.0, 4.0],
        [1e30, -1e30],
        [3e38, 3e38],
        [np.nan, 1.0],
        [np.inf, 0.0],
    ],
    np.float32,
)


def movements(way, relation, step=one_step):
    """Return how far sum, count and both move, in units of their noise, for neighbours that differ in a special row."""
    others = np.array([[2.0, 2.0], [0.3, 0.1], [0.0, 0.0]], np.float32)
    start = make(**under(relation)).init(PARAMS)

    # One key: the noise is the same everywhere, and cancels.
    outputs = []
    for row in SPECIAL:
        mean, state = step(np.concatenate([others, row[None]]), start, way=way, relation=relation)
        outputs.append((np.asarray(mean, np.float64) * 8 / 1.5, noisy_count(1.5, state.l2_clip_norm)))
    # Every row may replace every other; otherwise the first is the padding that another takes the place of.
    if relation is REPLACE:
        pairs = itertools.combinations(outputs, 2)
    else:
        pairs = [(outputs[0], output) for output in outputs[1:]]
    moves = []
    for (one_sum, one_count), (other_sum, other_count) in pairs:
        of_sum = np.linalg.norm(one_sum - other_sum) / relation.sensitivity_factor
        of_count = abs(one_count - other_count) / 0.5
        moves.append((of_sum, of_count, np.hypot(of_sum, of_count)))
    return np.array(moves)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("relation", RELATIONS)
def test_no_neighbour_moves_both_releases_by_more_than_is_recorded(way, relation):
    """In units of the noise; the row that comes or goes takes the place of a padding row, which is not marked."""
    joint = joint_event(relation, 1.0, 0.5).noise_multiplier
    moves = movements(way, relation)
    assert moves[:, 0].max() <= 1 + 1e-6
    assert moves[:, 1].max() <= relation.sensitivity_factor + 1e-5
    assert moves[:, 2].max() <= (1 + 1e-5) / joint
    assert moves[:, 2].max() >= 0.99 / joint


@pytest.mark.parametrize("way", WAYS)
def test_non_finite_rows_count_as_padding(way):
    rows = ROWS.copy()
    rows[1] = 0
    removed, expected = one_step(rows, first_state(), way=way)
    for bad in [np.nan, np.inf, -np.inf]:
        rows[1] = bad, 0.1
        released, state = one_step(rows, first_state(), way=way)
        np.testing.assert_array_equal(released, removed)
        assert state.l2_clip_norm == expected.l2_clip_norm


@pytest.mark.parametrize("way", WAYS)
def test_empty_batch_and_all_padding(way):
    released, state = one_step(np.zeros((0, 2), np.float32), first_state(), way=way)
    padded, same = one_step(np.zeros((4, 2), np.float32), first_state(), way=way)
    np.testing.assert_array_equal(released, padded)
    assert np.isfinite(released).all()
    assert state.l2_clip_norm == same.l2_clip_norm
    assert state.l2_clip_norm != 1.5  # the noise of the count alone
    assert abs(noisy_count(1.5, state.l2_clip_norm)) < 0.5 * 6


def test_the_clip_norm_stays_in_its_public_range():
    @jax.jit
    def next_norm(rows, learning_rate):
        tx = make(l2_clip_norm_range=(0.5, 2.0), learning_rate=learning_rate)
        return tx.update(rows, tx.init(PARAMS), PARAMS)[1].l2_clip_norm

    for size, end in [(100.0, 2.0), (1e-3, 0.5)]:
        for rate in [50.0, 1e30]:
            assert next_norm(np.full((4, 2), size, np.float32), rate) == end

    @jax.jit
    def from_an_end(initial):
        tx = make(l2_clip_norm_range=(1e-30, 1e30), initial_l2_clip_norm=initial)
        released, state = tx.update(np.ones((4, 2), np.float32), tx.init(PARAMS), PARAMS)
        return released, state.l2_clip_norm

    for end in [1e-30, 1e30]:
        released, norm = from_an_end(end)
        assert np.isfinite(released).all()
        assert 1e-30 <= float(norm) <= 1e30


def test_a_sum_clipped_at_another_norm_is_refused_or_nan():
    tx, params = make(), PARAMS
    stale = gdpjax.clipped_grad(dot, 1.5, return_info=True)
    total, info = jax.jit(stale)(params, ROWS)
    _, state = one_step(ROWS, first_state())

    def update(state):
        return tx.update(total, state, params, clipped_by=stale, norms=info.norms)

    with pytest.raises(ValueError, match="clip_norm_of"):
        update(state)
    released, after = jax.jit(update)(state)
    assert np.isnan(released).all()
    assert np.isnan(after.l2_clip_norm)
    with pytest.raises(ValueError, match="clip_norm_of"):
        tx.update(total, state, params, clipped_by=gdpjax.Sensitivity(1.0), norms=info.norms)


@pytest.mark.parametrize(("given", "message"), [({}, "without a batch axis"), ({"norms": jnp.ones(2)}, "together")])
def test_a_sum_without_what_clipped_it_is_refused(given, message):
    tx = make()
    with pytest.raises(ValueError, match=message):
        tx.update(PARAMS, tx.init(PARAMS), PARAMS, **given)


def test_masks_around_it_are_refused():
    params = {"a": jnp.zeros(3), "b": jnp.zeros(3)}
    tx = optax.masked(make(), {"a": True, "b": False})
    with pytest.raises(ValueError, match="trainable="):
        tx.update({"a": jnp.ones((4, 3)), "b": jnp.ones((4, 3))}, tx.init(params), params)


REFUSALS = {
    "clip norm": (dict(initial_l2_clip_norm=0.0), "initial_l2_clip_norm must be"),
    "clip norm out of range": (dict(l2_clip_norm_range=(2.0, 3.0)), r"within l2_clip_norm_range \[2.0, 3.0\]"),
    "zero noise": (dict(noise_multiplier=0.0), "noise_multiplier must be"),
    "zero count noise": (dict(count_stddev=0.0), "count_stddev must be"),
    "noise that float32 takes for 0": (dict(noise_multiplier=5e-324), "noise_multiplier must be"),
    "learning rate": (dict(learning_rate=-0.1), "learning_rate must be"),
    "traced rows": (dict(max_batch_size=jnp.int32(8)), "list max_batch_size in static_args"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_input_is_refused(case):
    options, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_traced_nonsense_gives_nan_not_a_number():
    @jax.jit
    def once(options):
        tx = make(**options)
        released, state = tx.update(ROWS, tx.init(PARAMS), PARAMS)
        return released, state.l2_clip_norm

    names = ["initial_l2_clip_norm", "noise_multiplier", "count_stddev", "learning_rate", "target_quantile"]
    good = {name: float((PRIVATE | NUMBERS).get(name, 0.5)) for name in [*names, "expected_batch_size"]}
    assert np.isfinite(once(good)[0]).all()
    for name in ["initial_l2_clip_norm", "noise_multiplier", "expected_batch_size"]:
        assert np.isnan(once({**good, name: -1.0})[0]).all(), name
    for name in ["initial_l2_clip_norm", "count_stddev", "learning_rate", "target_quantile", "expected_batch_size"]:
        assert np.isnan(once({**good, name: -1.0})[1]), name
    assert np.isnan(once({**good, "initial_l2_clip_norm": 1e9})[0]).all()


@pytest.mark.parametrize("way", WAYS)
def test_frozen_and_integer_leaves_leave_as_exact_zeros(way):
    params = {"w": jnp.zeros(2), "frozen": jnp.zeros(2), "n": jnp.arange(2)}
    trainable = {"w": True, "frozen": False, "n": True}
    x = np.array([[3.0, 4.0], [0.6, 0.8]], np.float32)
    tx = make(count_stddev=0.01, trainable=trainable if way == "rows" else None)

    def loss(p, x):
        return jnp.vdot(p["w"], x) + 100 * jnp.vdot(p["frozen"], x)

    @jax.jit
    def step(state):
        if way == "rows":
            rows = {"w": x, "frozen": 100 * x, "n": np.ones((2, 2), np.int32)}
            return tx.update(rows, state, params)
        grad_fn = gdpjax.clipped_grad(loss, gdpjax.clip_norm_of(state), trainable=trainable, return_info=True)
        total, info = grad_fn(params, x)
        return tx.update(total, state, params, clipped_by=grad_fn, norms=info.norms)

    released, state = step(tx.init(params))
    released = jax.tree.map(np.asarray, released)
    assert released["w"].all()
    assert not released["frozen"].any()
    assert not released["n"].any()
    # The frozen leaf stays out of the norms, so one of the two rows is below the clip norm.
    assert abs(noisy_count(1.5, state.l2_clip_norm)) < 0.1
