"""The number of bands that goes best with amplification by sampling."""

import pytest

from gdpjax.correlated import SingleParticipation, bisr
from gdpjax.sampling import Poisson
from gdpjax.training import choose_bands, make_plan

TARGET = {"clip": 1.0, "max_examples": 10_000, "expected_batch_size": 100, "epochs": 2, "delta": 1e-5}


def test_one_band_is_poisson_sampling():
    """One band has neither correlation nor groups."""
    plan, errors = choose_bands(**TARGET, epsilon=2.0, num_bands=[1])
    poisson = make_plan(**TARGET, epsilon=2.0)
    assert plan.noise_multiplier == pytest.approx(poisson.noise_multiplier, rel=1e-4)
    # The mean over n steps of the variance of a sum of t draws is (n + 1) / 2.
    assert errors[1] == pytest.approx(plan.noise_multiplier * ((plan.num_steps + 1) / 2) ** 0.5 / 100)


def test_the_best_of_the_candidates_meets_the_target():
    """The number of bands is the power of two with the smallest error."""
    plan, errors = choose_bands(**TARGET, epsilon=2.0)
    assert set(errors) == {1, 2, 4, 8, 16, 32, 64}
    assert plan.batches.num_groups == min(errors, key=errors.get)
    assert plan.epsilon_bounds().upper <= 2.0
    assert plan.noise.num_bands == plan.batches.num_groups
    sensitivity = plan.noise.sensitivity(plan.num_steps, SingleParticipation())
    assert sensitivity == pytest.approx(1.0)


@pytest.mark.slow
def test_little_noise_prefers_correlation_and_much_noise_sampling():
    """Sampling amplifies only where there is much noise."""
    much, _ = choose_bands(**TARGET, epsilon=0.3, num_bands=[1, 64])
    little, _ = choose_bands(**TARGET, epsilon=30.0, num_bands=[1, 64])
    assert (much.batches.num_groups, little.batches.num_groups) == (1, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": Poisson(10_000, 100, epochs=2)}, "batches follows from the number of bands"),
        ({"noise": bisr(4)}, "noise follows from the number of bands"),
        ({"num_bands": [0]}, "num_bands"),
        ({"num_bands": [200]}, "no number of bands"),
        ({"error": "median"}, "error"),
        ({"epsilon": None}, "no number of bands"),
        ({"epsilonn": 2.0}, "choose_bands has no argument 'epsilonn'; did you mean 'epsilon'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    """An argument out of range, and one that is searched for, are named."""
    with pytest.raises(ValueError, match=message):
        choose_bands(**{**TARGET, "epsilon": 2.0, **changes})
