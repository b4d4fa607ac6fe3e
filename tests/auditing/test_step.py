"""The audit of a step: coverage under the null and at the truth, each attack on what it is for, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.auditing import audit_step
from gdpjax.tradeoff import ApproximateDP, Gaussian, Identity, subsample


def shifted(shift, key, included):
    """Release three coordinates by a Gaussian mechanism with mu = shift."""
    direction = jnp.array([0.6, 0.8, 0.0])
    noise = jax.random.normal(key, (3,))
    return {"a": noise + included * shift * direction}


def gaussian_release(mu):
    """Return the release of a Gaussian mechanism; all of them share a compiled program."""
    return jax.tree_util.Partial(shifted, jnp.float32(mu))


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_a_sound_release_is_refuted_no_more_often_than_stated(mu):
    """A true claim is refuted, and mu overstated, with probability 1 - confidence at most."""
    repeats = 150
    confidence = 0.8
    release = gaussian_release(mu)
    is_refuted = []
    is_overstated = []
    for seed in range(repeats):
        audit = audit_step(
            release,
            jax.random.key(seed),
            delta=1e-3,
            claimed=Gaussian(mu),
            num_releases=128,
            confidence=confidence,
        )
        is_refuted.append(audit.refuted)
        is_overstated.append(audit.mu > mu)
    slack = 3 * np.sqrt(0.2 * 0.8 / repeats)
    assert np.mean(is_refuted) <= 1 - confidence + slack
    assert np.mean(is_overstated) <= 1 - confidence + slack
    assert is_refuted == is_overstated


def test_it_finds_most_of_mu_and_refutes_what_is_false():
    """The bound is 90 % of the true mu, and claims are refuted exactly where they are false."""
    release = gaussian_release(1.0)
    key = jax.random.key(0)
    audit = audit_step(release, key, delta=1e-5, claimed=Gaussian(0.8), num_releases=20_000)
    assert audit.refuted
    assert 0.9 < audit.mu <= 1
    assert audit.statistic == "linear"
    assert audit.num_releases == 20_000
    assert audit.claimed_beta == Gaussian(0.8)(audit.alpha) > audit.beta
    unclaimed = audit_step(release, key, delta=1e-5, num_releases=20_000)
    assert unclaimed == audit._replace(refuted=None, claimed_beta=None)

    key = jax.random.key(1)
    assert audit_step(release, key, delta=1e-5, claimed=ApproximateDP(0.1, 1e-5)).refuted
    assert not audit_step(release, key, delta=1e-5, claimed=ApproximateDP(5.0, 1e-5)).refuted


def twice(key, included):
    """Release the same noise twice, so that the difference is without noise."""
    noise = jax.random.normal(key)
    return noise, noise + 0.001 * included


def wider(key, included):
    """Release noise of twice the standard deviation for an example that is included."""
    return (1 + included) * jax.random.normal(key, (8,))


def poisoned(key, included):
    """Release NaN in one coordinate for an example that is included, and nothing else that could tell."""
    is_poisoned = included & (jnp.arange(5) == 2)
    return jnp.where(is_poisoned, jnp.nan, 0.0)


def coarse(key, included):
    """Release noise on a coarse grid, which the values of an included example leave."""
    noise = jax.random.normal(key, (6,), jnp.bfloat16).astype(jnp.float32)
    return noise + 1e-3 * included


@pytest.mark.parametrize(
    ("release", "statistic"), [(twice, "linear"), (wider, "quadratic"), (poisoned, "missing"), (coarse, "exact")]
)
def test_each_attack_sees_what_it_is_for(release, statistic):
    """The attack that a leak is for refutes the claim."""
    audit = audit_step(release, jax.random.key(0), delta=0.0, claimed=Gaussian(1.5), num_releases=1024)
    assert audit.refuted
    assert audit.statistic == statistic


def test_a_certain_leak_and_a_constant():
    """A release of the coin itself is refuted with a finite mu, and a constant shows nothing."""
    key = jax.random.key(0)
    leak = audit_step(lambda key, included: included, key, delta=1e-5, claimed=Gaussian(1.0))
    assert leak.refuted
    assert 4 < leak.mu < np.inf
    constant = audit_step(lambda key, included: jnp.zeros(3), key, delta=1e-5, claimed=Identity())
    assert not constant.refuted
    assert constant.mu == constant.epsilon == 0


@pytest.mark.parametrize("prob", [1.0, 0.25])
def test_a_step_without_noise_is_shown_to_leak(prob):
    """A claim of no privacy at all, as without noise, is not refuted, and the attack shows what its runs can show."""

    def release(key, included):
        is_drawn = jax.random.uniform(key) < prob
        return jnp.full(3, 0.5) + (included & is_drawn)

    claim = subsample(Gaussian(np.inf), prob)
    audit = audit_step(release, jax.random.key(0), delta=1e-5, claimed=claim)
    assert not audit.refuted
    assert audit.epsilon > 4.5
    assert audit_step(release, jax.random.key(0), delta=1e-5, claimed=Gaussian(2.0)).refuted


@pytest.mark.parametrize(
    ("release", "options", "message"),
    [
        (twice, {"num_releases": 63}, "at least 64 for releases of 2"),
        (lambda key, included: jnp.zeros(1000), {"num_releases": 4096}, "at least 8000 for releases of 1000"),
        (lambda key, included: key, {}, "real arrays"),
        (twice, {"claimed": 1.0}, "trade-off curve"),
        (twice, {"claimed": lambda alpha: 0.5}, "claimed must map"),
        (twice, {"claimed": lambda alpha: alpha + np.nan}, "claimed must map"),
    ],
)
def test_bad_input(release, options, message):
    """Releases, claims and options that cannot be audited are refused with a message."""
    all_options = {"delta": 1e-5, "num_releases": 256, **options}
    with pytest.raises(ValueError, match=message):
        audit_step(release, jax.random.key(0), **all_options)
