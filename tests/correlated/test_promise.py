"""Batches that are checked against the promise about participation."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpjax import sampling
from gdpjax.correlated import FixedEpochs, MinSep, ParticipationError, SingleParticipation
from gdpjax.sampling import Promised


def used(batches, participation, num_steps):
    """The batches that were given out before the promise was broken, and whether it was."""
    out = []
    try:
        for batch in Promised(1, num_steps, participation).checked(batches):
            out.append(batch)
    except ParticipationError:
        return out, True
    return out, False


@pytest.mark.parametrize(
    ("batches", "participation", "num_good"),
    [
        ([[0], [1], [2], [0]], SingleParticipation(), 3),
        ([[0], [1], [0], [1]], MinSep(2, 2), 4),
        ([[0], [1], [0], [0]], MinSep(2, 2), 3),
        ([[0], [1], [1], [0]], MinSep(2, 2), 2),
        ([[0], [1], [0], [1]], FixedEpochs(2), 4),
        ([[0], [1], [1], [0]], FixedEpochs(2), 2),
        ([[0], [], [], [0]], MinSep(1, 1), 3),
        ([[0, 0]], MinSep(2, 1), 0),
        ([[0], [1], [2], [3], [4]], MinSep(1, 1), 4),
    ],
)
def test_the_batch_that_breaks_the_promise_is_not_given_out(batches, participation, num_good):
    good, broken = used(batches, participation, 4)
    assert len(good) == num_good
    assert broken is (num_good < len(batches))


def test_padding_is_no_example():
    batch = np.array([3, 0, 0]), np.array([False, True, True])
    assert used([batch, batch], MinSep(2, 1), 2) == ([batch, batch], False)


def test_batches_of_either_side_are_checked():
    """A batch of the device and one of the host give the same examples, without those that are padding."""
    scheme = sampling.Poisson(100, 10, 5)
    of_host = scheme.on_host(jax.random.key(0))[2]
    of_device = jax.jit(scheme.sample)(jax.random.key(0), 2)
    good, broken = used([of_host, of_device], MinSep(2, 2), 2)
    assert len(good) == 1
    assert broken


@pytest.mark.parametrize(
    "batch",
    [
        (np.array([3, 4, 5]), np.array([1, 0, 1])),
        (np.array([3, 4, 5]), [False, False]),
        (np.array([3, 4, 5]), np.array([True, False, True])),
        (np.array([3, 4, 5]), np.zeros((3, 3), bool)),
        np.array([3, -1]),
    ],
    ids=["labels", "another length", "labels of two kinds", "images", "rows from the end"],
)
def test_a_pair_without_a_mask_of_padding_is_refused(batch):
    """With (numbers, labels) every example whose label is not zero would stay unchecked."""
    with pytest.raises(ValueError, match="the batch of step 0 must be whole numbers >= 0, or"):
        list(Promised(1, 2, MinSep(1, 1)).checked([batch, batch]))


@given(
    st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4), max_size=12), st.integers(1, 4), st.integers(1, 5)
)
def test_it_is_the_definition(batches, most, separation):
    good, broken = used(batches, MinSep(most, separation), 12)

    def keeps(batches):
        for example in range(6):
            steps = [step for step, batch in enumerate(batches) if example in batch]
            limit = min(most, 1 + 11 // separation)
            if len(steps) > limit or any(np.diff(steps) < separation):
                return False
        return True

    assert keeps(good)
    assert broken is not keeps(batches)
