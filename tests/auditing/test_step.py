"""The audit of a step: coverage under the null and at the truth, each attack on what it is for, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.auditing import audit_step
from gdpjax.auditing._statistics import STATISTICS
from gdpjax.auditing._step import _CHUNK, _rows
from gdpjax.tradeoff import ApproximateDP, Gaussian, Identity, subsample


def shifted(shift, key, included):
    """A Gaussian mechanism with mu = shift in three coordinates."""
    return {"a": jax.random.normal(key, (3,)) + included * shift * jnp.array([0.6, 0.8, 0.0])}


def partial(shift):
    return jax.tree_util.Partial(shifted, jnp.float32(shift))


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_a_sound_release_is_refuted_no_more_often_than_stated(mu):
    repeats, confidence = 150, 0.8
    audits = [
        audit_step(
            partial(mu), jax.random.key(seed), delta=1e-3, claimed=Gaussian(mu), num_releases=128, confidence=confidence
        )
        for seed in range(repeats)
    ]
    slack = 3 * np.sqrt(0.2 * 0.8 / repeats)
    assert np.mean([audit.refuted for audit in audits]) <= 1 - confidence + slack
    assert np.mean([audit.mu > mu for audit in audits]) <= 1 - confidence + slack
    assert all(audit.refuted == (audit.mu > mu) for audit in audits)


def test_it_finds_most_of_mu_and_refutes_what_is_false():
    audit = audit_step(partial(1.0), jax.random.key(0), delta=1e-5, claimed=Gaussian(0.8), num_releases=20_000)
    assert audit.refuted
    assert 0.9 < audit.mu <= 1
    assert audit.statistic == "linear"
    assert audit.num_releases == 20_000
    assert audit.claimed_beta == Gaussian(0.8)(audit.alpha) > audit.beta
    unclaimed = audit_step(partial(1.0), jax.random.key(0), delta=1e-5, num_releases=20_000)
    assert unclaimed == audit._replace(refuted=None, claimed_beta=None)
    assert audit_step(partial(1.0), jax.random.key(1), delta=1e-5, claimed=ApproximateDP(0.1, 1e-5)).refuted
    assert not audit_step(partial(1.0), jax.random.key(1), delta=1e-5, claimed=ApproximateDP(5.0, 1e-5)).refuted


def twice(key, included):
    noise = jax.random.normal(key)
    return noise, noise + 0.001 * included


def wider(key, included):
    return (1 + included) * jax.random.normal(key, (8,))


def poisoned(key, included):
    return jnp.where(included & (jnp.arange(5) == 2), jnp.nan, jax.random.normal(key, (5,)))


def coarse(key, included):
    return jax.random.normal(key, (6,), jnp.bfloat16).astype(jnp.float32) + 1e-3 * included


@pytest.mark.parametrize(
    ("release", "statistic"), [(twice, "linear"), (wider, "quadratic"), (poisoned, "missing"), (coarse, "exact")]
)
def test_each_attack_sees_what_it_is_for(release, statistic, monkeypatch):
    monkeypatch.setattr("gdpjax.auditing._step.STATISTICS", {statistic: STATISTICS[statistic]})
    assert audit_step(release, jax.random.key(0), delta=0.0, claimed=Gaussian(1.5), num_releases=1024).refuted
    others = {name: attack for name, attack in STATISTICS.items() if name != statistic}
    if statistic in ("linear", "exact"):  # and some see only that
        monkeypatch.setattr("gdpjax.auditing._step.STATISTICS", {"missing": others["missing"]})
        assert not audit_step(release, jax.random.key(0), delta=0.0, claimed=Identity(), num_releases=1024).refuted


@pytest.mark.parametrize("attack", STATISTICS.values(), ids=STATISTICS)
def test_attacks_give_finite_scores_whatever_they_see(attack):
    rng = np.random.default_rng(0)
    usual = rng.normal(size=(64, 4))
    strange = np.array([[np.nan, np.inf, -np.inf, 0.0], [1e308, -1e308, 5e-324, 0.0], [1e30, 0.0, 0.0, np.nan]])
    for out, inside in (
        (usual, usual + 1), (np.zeros((64, 4)), np.ones((64, 4))), (np.zeros((64, 4)), np.zeros((64, 4))),
        (usual, np.full((64, 4), np.nan)), (usual * 1e300, usual * 1e-300), (usual, np.full((64, 4), 1e308)),
    ):  # fmt: skip
        with np.errstate(all="raise", under="ignore"):
            scores = attack(out, inside)(np.concatenate([usual, strange]))
        assert scores.shape == (67,)
        assert np.isfinite(scores).all()


def test_releases_are_what_a_loop_gives_and_are_compiled_once():
    traces = []

    def release(scale, key, included):
        traces.append(1)
        return {"x": scale * jax.random.normal(key, (2,)) + included, "flag": included, "count": jnp.int32(3)}

    runs = _CHUNK // 2 + 40  # not a whole number of chunks
    rows = _rows(jax.tree_util.Partial(release, jnp.float32(2.0)), jax.random.key(3), runs)
    keys = jax.random.split(jax.random.key(3), 2 * runs)
    assert rows.shape == (2, runs, 4)
    for which, place in ((0, 0), (0, runs - 1), (1, 0), (1, runs - 1)):
        expected = release(jnp.float32(2.0), keys[which * runs + place], jnp.bool_(which))
        np.testing.assert_allclose(rows[which, place, 2:], expected["x"], rtol=1e-6)
        assert rows[which, place, :2].tolist() == [3, which]  # leaves in the order of the tree: count, flag, x
    before = len(traces)
    _rows(jax.tree_util.Partial(release, jnp.float32(7.0)), jax.random.key(4), runs)
    assert len(traces) == before


def test_a_certain_leak_and_a_constant():
    leak = audit_step(lambda key, included: included, jax.random.key(0), delta=1e-5, claimed=Gaussian(1.0))
    assert leak.refuted
    assert 4 < leak.mu < np.inf
    nothing = audit_step(lambda key, included: jnp.zeros(3), jax.random.key(0), delta=1e-5, claimed=Identity())
    assert not nothing.refuted
    assert nothing.mu == nothing.epsilon == 0


@pytest.mark.parametrize("prob", [1.0, 0.25])
def test_a_step_without_noise_is_shown_to_leak(prob):
    """The clipping ablation: the claim is no privacy at all, and the attack finds as much as its runs can show."""

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
        (twice, {"num_releases": 99.5}, "num_releases"),
        (lambda key, included: (), {}, "of 0 >= 1 numbers"),
        (lambda key, included: key, {}, "real arrays"),
        (lambda key, included: included * 1j, {}, "real arrays"),
        (twice, {"delta": np.nan}, "delta"),
        (twice, {"confidence": 1}, "confidence"),
        (twice, {"claimed": 1.0}, "trade-off curve"),
        (twice, {"claimed": lambda alpha: 0.5}, "claimed must map"),
        (twice, {"claimed": lambda alpha: alpha + np.nan}, "claimed must map"),
    ],
)
def test_bad_input(release, options, message):
    with pytest.raises(ValueError, match=message):
        audit_step(release, jax.random.key(0), **{"delta": 1e-5, "num_releases": 256, **options})
