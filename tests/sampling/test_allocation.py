"""Random allocation: every row in exactly one step of each block, all equally likely, on the device and on the host."""

import itertools
import pickle

import jax
import numpy as np
import pytest
from scipy import stats

from gdpjax import sampling
from tests.sampling.frequencies import check_distribution, included

KEY = jax.random.key(7)
N = 60


def blocks_of(steps_per_epoch, num_selected):
    """The steps of each block: the longer blocks first."""
    lengths = [len(part) for part in np.array_split(np.arange(steps_per_epoch), num_selected)]
    ends = np.cumsum(lengths)
    return [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def epochs_of(key, num_epochs, steps_per_epoch, num_valid=None, n=N, **options):
    """bool[num_epochs, steps_per_epoch, n]: which rows are in which step."""
    step = np.arange(num_epochs * steps_per_epoch)

    def draw(step):
        return sampling.allocation_sample(key, step, n, steps_per_epoch, n, num_valid=num_valid, **options)

    drawn = jax.jit(jax.vmap(draw))(step)
    chosen = included(np.asarray(drawn.indices), np.asarray(drawn.is_padding), n)
    np.testing.assert_array_equal(chosen.sum(axis=1), drawn.count)
    return chosen.reshape(num_epochs, steps_per_epoch, n)


BY_DEFAULT = [
    *[("fresh", *sizes) for sizes in [(1, 1), (7, 2), (7, 3), (7, 7), (300, 1)]],
    *[("fixed", *sizes) for sizes in [(2, 1), (7, 3)]],
]
STEPS_AND_SELECTED = [
    (1, 1),
    (2, 1),
    (7, 1),
    (7, 2),
    (7, 3),
    (6, 3),
    (7, 7),
    (5, 4),
    (300, 1),
]
BINS_AND_SIZES = [
    pytest.param(bins, *sizes, marks=() if (bins, *sizes) in BY_DEFAULT else pytest.mark.slow)
    for bins, sizes in itertools.product(["fresh", "fixed"], STEPS_AND_SELECTED)
]


@pytest.mark.parametrize(("bins", "steps", "selected"), BINS_AND_SIZES)
def test_every_row_is_in_one_step_of_each_block(bins, steps, selected):
    chosen = epochs_of(KEY, 3, steps, num_selected=selected, bins=bins)
    for block in blocks_of(steps, selected):
        assert (chosen[:, list(block)].sum(axis=1) == 1).all()
    assert (chosen.sum(axis=1) == selected).all()
    if bins == "fixed":
        assert (chosen == chosen[0]).all()
    elif steps > selected:
        assert (chosen[0] != chosen[1]).any()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("steps", "selected"),
    [pytest.param(2, 1, marks=SLOW), (5, 1), pytest.param(7, 2, marks=SLOW), (8, 3)],
)
def test_all_steps_of_a_block_are_equally_likely(steps, selected):
    """And independent over rows, blocks and epochs: every pair of places is as likely as another."""
    chosen = epochs_of(KEY, 4000, steps, num_selected=selected, n=6)
    for block in blocks_of(steps, selected):
        place = chosen[:, list(block)].argmax(axis=1)  # [epochs, rows]
        length = len(block)
        for row in range(6):
            check_distribution(
                np.bincount(place[:, row], minlength=length),
                np.full(length, 1 / length),
            )
        uniform = np.full(length**2, 1 / length**2)
        for one, other in itertools.combinations(range(6), 2):
            both = place[:, one] * length + place[:, other]
            check_distribution(np.bincount(both, minlength=length**2), uniform)
        following = place[:-1] * length + place[1:]
        check_distribution(np.bincount(following[::2].reshape(-1), minlength=length**2), uniform)
    first, last = (chosen[:, list(block)].argmax(axis=1) for block in (blocks_of(steps, selected)[i] for i in (0, -1)))
    if selected > 1:
        sizes = len(blocks_of(steps, selected)[0]), len(blocks_of(steps, selected)[-1])
        both = (first * sizes[1] + last).reshape(-1)
        uniform = np.full(sizes[0] * sizes[1], 1 / (sizes[0] * sizes[1]))
        check_distribution(np.bincount(both, minlength=len(uniform)), uniform)


def test_poisson_batches_would_be_noticed():
    """The counting above tells allocation from independent draws with the same probability."""
    keys = jax.random.split(KEY, 7)
    drawn = jax.jit(jax.vmap(lambda key: sampling.poisson_sample(key, N, 1 / 7, N)))(keys)
    chosen = included(np.asarray(drawn.indices), np.asarray(drawn.is_padding), N)
    assert (chosen.sum(axis=0) != 1).any()


def test_batch_sizes_are_binomial():
    chosen = epochs_of(KEY, 3000, 5)
    counts = np.bincount(chosen[:, 2].sum(axis=1), minlength=N + 1)
    check_distribution(counts, stats.binom.pmf(np.arange(N + 1), N, 1 / 5))


def test_the_step_of_a_row_does_not_depend_on_how_many_there_are():
    """Adding an example moves no other one, whichever step is drawn, as the accounting supposes."""
    more = epochs_of(KEY, 3, 7, num_selected=2)
    fewer = epochs_of(KEY, 3, 7, num_selected=2, num_valid=40)
    np.testing.assert_array_equal(more[..., :40], fewer[..., :40])
    assert not fewer[..., 40:].any()
    assert not epochs_of(KEY, 3, 7, num_valid=0).any()


remainder = jax.jit(sampling._allocation._modulo)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 255, 256, 65521, 65536])
def test_the_remainder_of_128_bits(length):
    words = np.random.default_rng(length).integers(0, 2**32, (4, 50), dtype=np.uint32)
    words[:, 0] = 2**32 - 1
    whole = [sum(int(word) << 32 * (3 - i) for i, word in enumerate(column)) % length for column in words.T]
    found = remainder(words, np.uint32(length))
    assert np.asarray(found).tolist() == whole


@pytest.mark.parametrize("bins", ["fresh", "fixed"])
def test_host_and_device_draw_the_same_batches(bins):
    batches = sampling.AllocationBatches(KEY, N, 7, num_epochs=2, capacity=50, num_selected=2, bins=bins, num_valid=45)
    assert len(batches) == 14

    @jax.jit
    def draw(step):
        return sampling.allocation_sample(KEY, step, N, 7, 50, num_selected=2, bins=bins, num_valid=45)

    for step in (3, 0, 13, 3):
        batch = batches[step]
        sample = draw(step)
        np.testing.assert_array_equal(batch.indices, sample.indices)
        np.testing.assert_array_equal(batch.is_padding, sample.is_padding)
    again = pickle.loads(pickle.dumps(batches))
    np.testing.assert_array_equal(again[5].indices, batches[5].indices)


def test_one_program_for_all_steps():
    traces = []

    @jax.jit
    def draw(key, step, num_valid):
        traces.append(step)
        return sampling.allocation_sample(key, step, N, 7, 30, num_selected=3, num_valid=num_valid)

    shapes = {(draw(KEY, step, step).indices.shape, draw(KEY, step, 5).count.shape) for step in range(21)}
    assert (len(traces), shapes) == (1, {((30,), ())})


def test_a_batch_above_the_capacity_is_padding_and_says_so():
    sample = jax.jit(lambda step: sampling.allocation_sample(KEY, step, N, 2, 5))(0)
    assert int(sample.count) > 5
    assert sample.is_padding.all()
    with pytest.raises(
        sampling.BatchOverflowError,
        match=r"step 1 has .* neither truncated nor redrawn",
    ):
        sampling.AllocationBatches(KEY, N, 2, num_epochs=1, capacity=5)[1]


@pytest.mark.parametrize(("steps", "selected"), [(4, 1), (7, 2), (3, 3)])
def test_the_probability_of_overflow(steps, selected):
    """A union bound over steps: at least what is counted with one more row, and about that of the shortest block."""
    capacity, n = 12, 40
    bound = sampling.allocation_overflow(n, steps, steps, capacity, selected)
    shortest = steps // selected
    exact = steps * stats.binom.sf(capacity - 1, n, 1 / shortest)  # others alone fill the batch
    assert min(1.0, exact) <= bound <= min(1.0, exact * (1 + 1e-6) + 1e-30)
    if steps == 4:
        chosen = epochs_of(KEY, 2000, steps, n=n)
        share = (chosen.sum(axis=2) >= capacity).any(axis=1).mean()
        assert share < bound + 5 * np.sqrt(bound / 2000)


def test_the_error_of_the_remainder():
    assert sampling.allocation_error(10) >= 10 * 2.0**-128
    assert sampling.allocation_overflow(10, 5, 100, 11) >= sampling.allocation_error(100) > 0


def test_traced_values_out_of_range_never_fit():
    draw = jax.jit(lambda step, valid: sampling.allocation_sample(KEY, step, N, 5, N, num_valid=valid))
    for step, valid in [(-1, 5), (0, N + 1), (0, -1)]:
        sample = draw(step, valid)
        assert int(sample.count) > N
        assert sample.is_padding.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_selected": 6}, "num_selected must be at most steps_per_epoch=5"),
        ({"num_selected": 0}, "num_selected"),
        ({"bins": "poisson"}, "bins"),
        ({"steps_per_epoch": 2**17}, "at most 65536 times"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"capacity": 0}, "capacity"),
        ({"num_valid": N + 1}, "num_valid"),
        ({"num_examples": 0}, "num_examples"),
    ],
)
def test_refusals(change, message):
    sizes = {"num_examples": N, "steps_per_epoch": 5, "capacity": N} | change
    with pytest.raises(ValueError, match=message):
        sampling.allocation_sample(KEY, 0, **sizes)
    with pytest.raises(ValueError, match=message):
        sampling.AllocationBatches(KEY, **sizes, num_epochs=2)


def test_steps_outside_the_run():
    with pytest.raises(ValueError, match="step"):
        sampling.allocation_sample(KEY, -1, N, 5, N)
    batches = sampling.AllocationBatches(KEY, N, 5, num_epochs=2, capacity=N)
    with pytest.raises(IndexError, match="from 0 to 9"):
        batches[10]
