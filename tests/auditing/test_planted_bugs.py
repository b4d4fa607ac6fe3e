"""The audit of our own step: a sound one passes, and every planted bug is seen.

The first sixteen bugs are large ones, which an attacker would use: the worst cases see each of them. The others are
smaller, or do not help an attacker on one pair of data sets, and are for the checks of what is known exactly.
"""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

from gdpjax import per_example_grad
from gdpjax._core.noise import standard_normal
from gdpjax.auditing import audit_step
from gdpjax.cli import _step_checks, _worst_cases
from gdpjax.transforms import _noise

NUM_RELEASES = 1024
CONFIDENCE = 0.9999
SOUND_NORMAL = standard_normal
SOUND_CLIPPED_GRAD, SOUND_PRIVATIZE = _worst_cases.clipped_grad, _worst_cases.privatize
SOUND_SAMPLE = _worst_cases.poisson_sample
FALSE_ALARM = 1e-6


def audits(seed=0, num_releases=NUM_RELEASES, without=("mislabeled",), confidence=CONFIDENCE):
    """Yield the audit of every worst case, valid together at the confidence, as ``gdpjax audit --step`` runs it."""
    cases = {name: case for name, case in _worst_cases.worst_cases().items() if name not in without}
    keys = jax.random.split(jax.random.key(seed), len(cases))
    share = 1 - (1 - confidence) / 2 / len(cases)
    for key, (name, case) in zip(keys, cases.items(), strict=True):
        audit = audit_step(
            case.release, key, delta=1e-5, claimed=case.claimed(), num_releases=num_releases, confidence=share
        )
        yield name, audit


def test_the_sound_step_passes_and_its_bounds_say_something():
    found = dict(audits(num_releases=4096, without=(), confidence=0.95))
    assert not any(audit.refuted for audit in found.values())
    for name in ("steady", "opposed", "turning", "huge", "overflowing"):  # tight worst cases: mu is all of sqrt(2)
        assert 0.75 * 2**0.5 < found[name].mu <= 2**0.5, name
    assert 0.6 < found["mislabeled"].mu <= 1
    assert found["missing"].mu == found["silent"].mu == 0  # such an example leaves no trace at all


class Rows:
    """Stands in for `clipped_grad`: sums a function of per-example gradients, states the usual sensitivity."""

    def __init__(self, bound):
        self.bound = bound

    def __call__(self, loss, clip, **options):
        sound, rows_of = SOUND_CLIPPED_GRAD(loss, clip, **options), per_example_grad(loss, **options)

        def total(*args, is_padding):
            rows = rows_of(*args)  # unmasked: padding is left out after bounding, so that NaN times 0 shows, too
            kept = jax.tree.map(lambda leaf: jnp.where(expand(is_padding, leaf), 0.0, leaf), rows)
            return jax.tree.map(lambda leaf: leaf.sum(0), self.bound(kept, clip))

        total.sensitivity = sound.sensitivity
        return total


def expand(vector, leaf):
    return vector.reshape(-1, *[1] * (leaf.ndim - 1))


def norms(rows):
    return jnp.sqrt(sum(jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(rows)))


def scaled(rows, factor):
    return jax.tree.map(lambda leaf: leaf * expand(factor, leaf), rows)


def naive_clip(rows, clip):
    """The usual formula; a NaN goes through it."""
    return scaled(rows, jnp.minimum(1.0, clip / jnp.maximum(norms(rows), 1e-12)))


def one_leaf_clipped(rows, clip):
    return {"first": naive_clip({"a": rows["first"]}, clip)["a"], "second": rows["second"]}


def skipped_where_not_finite(rows, clip):
    size = norms(rows)
    return scaled(jax.tree.map(jnp.nan_to_num, rows), jnp.where(size < jnp.inf, jnp.minimum(1.0, clip / size), 1.0))


def changed_privatize(change):
    """`privatize` with ``change(update) -> update``."""

    def privatize(clip, **options):
        sound = SOUND_PRIVATIZE(clip, **options)
        return optax.GradientTransformation(sound.init, change(sound.update))

    return privatize


def state_rolled_back(update):
    return lambda total, state, params: (update(total, state, params)[0], state)


def one_leaf_without_noise(update):
    def changed(total, state, params):
        released, state = update(total, state, params)
        return {**released, "second": total["second"] / 2}, state

    return changed


def divided_by_the_realised_batch(monkeypatch):
    seen = []

    def clipped(loss, clip, **options):
        sound = SOUND_CLIPPED_GRAD(loss, clip, **options)

        def total(*args, is_padding):
            seen.append((~is_padding).sum())
            return sound(*args, is_padding=is_padding)

        total.sensitivity = sound.sensitivity
        return total

    def change(update):
        def changed(total, state, params):
            released, state = update(total, state, params)
            return jax.tree.map(lambda leaf: leaf * 2 / jnp.maximum(seen[-1], 1), released), state

        return changed

    monkeypatch.setattr(_worst_cases, "clipped_grad", clipped)
    monkeypatch.setattr(_worst_cases, "privatize", changed_privatize(change))


def normal(change):
    """Plant ``change(key, shape)`` for the noise itself."""

    def changed_normals(keys, shapes, dtypes):
        return [change(key, shape) for key, shape in zip(keys, shapes, strict=True)]

    return planted(_noise, "standard_normals", changed_normals)


def leaf_by_leaf(noisy):
    """Plant ``noisy(leaf, key, stddev)`` for the addition of noise."""

    def noisy_tree(tree, keys, stddev, trainable):
        return jax.tree.map(lambda leaf, key: noisy(leaf, key, stddev), tree, keys)

    return planted(_noise, "noisy_tree", noisy_tree)


def per_device(key, shape):
    """Four devices with noise of a quarter each: half the standard deviation."""
    return sum(SOUND_NORMAL(jax.random.fold_in(key, device), shape, jnp.float32) / 4 for device in range(4))


def in_bfloat16(leaf, key, stddev):
    noise = jnp.asarray(stddev, jnp.bfloat16) * jax.random.normal(key, leaf.shape, jnp.bfloat16)
    return leaf + noise.astype(jnp.float32)


def all_in_bfloat16(leaf, key, stddev):
    noise = jnp.asarray(stddev, jnp.bfloat16) * jax.random.normal(key, leaf.shape, jnp.bfloat16)
    return (leaf.astype(jnp.bfloat16) + noise).astype(jnp.float32)


def the_sum_is_clipped(loss, clip, **options):
    sound = SOUND_CLIPPED_GRAD(loss, clip, **options)
    rows_of = per_example_grad(loss, **options)

    def total(*args, is_padding):
        rows = rows_of(*args)
        kept = jax.tree.map(lambda leaf: jnp.where(expand(is_padding, leaf), 0.0, jnp.nan_to_num(leaf)), rows)
        whole = jax.tree.map(lambda leaf: leaf.sum(0, keepdims=True), kept)
        return jax.tree.map(lambda leaf: leaf[0], naive_clip(whole, clip))

    total.sensitivity = sound.sensitivity
    return total


def nothing_is_padding(loss, clip, **options):
    sound = SOUND_CLIPPED_GRAD(loss, clip, **options)

    def total(*args, is_padding):
        return sound(*args, is_padding=jnp.zeros_like(is_padding))

    total.sensitivity = sound.sensitivity
    return total


def a_larger_clip_norm(loss, clip, **options):
    sound, larger = SOUND_CLIPPED_GRAD(loss, clip, **options), SOUND_CLIPPED_GRAD(loss, 1.01 * clip, **options)

    def total(*args, is_padding):
        return larger(*args, is_padding=is_padding)

    total.sensitivity = sound.sensitivity
    return total


def every_other_step_is_recorded(update):
    def changed(total, state, params):
        released, after = update(total, state, params)
        ledger = jax.tree.map(lambda old, new: jnp.where(state.count % 2 == 1, old, new), state.ledger, after.ledger)
        return released, after._replace(ledger=ledger)

    return changed


def halved_on_one_step_in_ten(update):
    def changed(total, state, params):
        released, after = update(total, state, params)
        mean = jax.tree.map(lambda leaf: leaf / 3, total)
        factor = jnp.where(state.count % 10 == 9, 0.5, 1.0)
        return jax.tree.map(lambda m, r: m + factor * (r - m), mean, released), after

    return changed


def planted(module, name, value):
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


BUGS = {
    "no noise": normal(lambda key, shape: jnp.zeros(shape)),
    "half the noise": normal(lambda key, shape: SOUND_NORMAL(key, shape, jnp.float32) / 2),
    "noise in parts per device": normal(per_device),
    "a default key": normal(lambda key, shape: SOUND_NORMAL(jax.random.key(0), shape, jnp.float32)),
    "one key for all leaves": planted(_noise, "leaf_keys", lambda key, tree: jax.tree.map(lambda _: key, tree)),
    "one key for all steps": planted(_worst_cases, "privatize", changed_privatize(state_rolled_back)),
    "noise in bfloat16": leaf_by_leaf(in_bfloat16),
    "noise and sum in bfloat16": leaf_by_leaf(all_in_bfloat16),
    "clipping off": planted(_worst_cases, "clipped_grad", Rows(lambda rows, clip: rows)),
    "one leaf not clipped": planted(_worst_cases, "clipped_grad", Rows(one_leaf_clipped)),
    "NaN around clipping": planted(_worst_cases, "clipped_grad", Rows(naive_clip)),
    "no clipping where the norm overflows": planted(_worst_cases, "clipped_grad", Rows(skipped_where_not_finite)),
    "one leaf without noise": planted(_worst_cases, "privatize", changed_privatize(one_leaf_without_noise)),
    "divided by the realised batch": divided_by_the_realised_batch,
    "sampled twice as often": planted(_worst_cases, "poisson_sample", lambda k, n, p, c: SOUND_SAMPLE(k, n, 2 * p, c)),
    "batches not sampled at all": planted(
        _worst_cases, "poisson_sample", lambda k, n, p, c: SOUND_SAMPLE(k, n, 1.0 + 0 * p, c)
    ),
}


MORE = [
    "no noise",
    "noise in parts per device",
    "a default key",
    "one key for all leaves",
    "noise and sum in bfloat16",
    "clipping off",
    "no clipping where the norm overflows",
    "one leaf without noise",
    "batches not sampled at all",
]


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.slow] if bug in MORE else []) for bug in BUGS])
def test_a_planted_bug_is_seen(bug, monkeypatch):
    """The audits behind the first one that is refuted are not made."""
    BUGS[bug](monkeypatch)
    assert any(audit.refuted for _, audit in audits())


def sound_noise(key, shape):
    return SOUND_NORMAL(key, shape, jnp.float32)


SMALL_BUGS = {
    "clip after the sum": (planted(_worst_cases, "clipped_grad", the_sum_is_clipped), "sum: opposed"),
    "padding not masked": (planted(_worst_cases, "clipped_grad", nothing_is_padding), "sum: masked"),
    "half of the steps in the ledger": (
        planted(_worst_cases, "privatize", changed_privatize(every_other_step_is_recorded)), "ledger",
    ),
    "noise halved on one step in ten": (
        planted(_worst_cases, "privatize", changed_privatize(halved_on_one_step_in_ten)), "noise size",
    ),
    "noise cut at 3": (normal(lambda key, shape: jnp.clip(sound_noise(key, shape), -3, 3)), "noise range"),
    "noise cut at 5.4": (normal(lambda key, shape: jnp.clip(sound_noise(key, shape), -5.4, 5.4)), "noise tail"),
    "noise of 24 bits": (normal(lambda key, shape: jax.random.normal(key, shape, jnp.float32)), "noise tail"),
    "uniform noise of variance 1": (
        normal(lambda key, shape: jax.random.uniform(key, shape, minval=-(3**0.5), maxval=3**0.5)), "noise shape",
    ),
    "clip norm 1.01": (planted(_worst_cases, "clipped_grad", a_larger_clip_norm), "sum: large"),
    "noise 0.95": (normal(lambda key, shape: 0.95 * sound_noise(key, shape)), "noise size"),
    "probability 1.2 times": (
        planted(_worst_cases, "poisson_sample", lambda k, n, p, c: SOUND_SAMPLE(k, n, jnp.minimum(1.2 * p, 1.0), c)),
        "sampling",
    ),
}  # fmt: skip
QUICK = ["half of the steps in the ledger"]


@pytest.fixture
def few_draws(monkeypatch):
    """A smaller sample for the far tail, which only two bugs need."""
    monkeypatch.setattr(_step_checks, "_LEAF", 2**14)
    monkeypatch.setattr(_step_checks, "_DRAWS_PER_RELEASE", 2**6)


def failed_checks(seed=0, num_releases=_step_checks._CHUNK):
    found = _step_checks.step_checks(jax.random.key(seed), num_releases)
    return [name for name, check in found.items() if check.p_value <= FALSE_ALARM]


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[] if bug in QUICK else [pytest.mark.slow]) for bug in SMALL_BUGS]
)
def test_a_small_planted_bug_fails_its_check(bug, monkeypatch, request):
    plant, check = SMALL_BUGS[bug]
    in_the_far_tail = check == "noise tail"
    if not in_the_far_tail:
        request.getfixturevalue("few_draws")
    plant(monkeypatch)
    assert check in failed_checks(num_releases=4096 if in_the_far_tail else _step_checks._CHUNK)


@pytest.mark.slow
def test_checks_say_which_part_is_wrong(few_draws, monkeypatch):
    """Without noise the checks of the noise fail, none crashes, and what is clipped is as it should be."""
    BUGS["no noise"](monkeypatch)
    assert failed_checks() == ["noise size", "noise shape", "noise range", "noise tail"]


@pytest.mark.slow
def test_the_stand_in_for_clipping_is_sound_by_itself(monkeypatch):
    """What is seen above is the bug, not the harness around it."""

    def finite_clip(rows, clip):
        bad = ~(norms(rows) < jnp.inf)
        return naive_clip(jax.tree.map(lambda leaf: jnp.where(expand(bad, leaf), 0.0, leaf), rows), clip)

    monkeypatch.setattr(_worst_cases, "clipped_grad", Rows(finite_clip))
    assert not any(audit.refuted for _, audit in audits())


@pytest.mark.slow
def test_no_false_alarm_in_twenty_seeds(monkeypatch):
    monkeypatch.setattr(_step_checks, "_compiled_runs", functools.cache(_step_checks._compiled_runs))
    for seed in range(20):
        assert failed_checks(seed, num_releases=1024) == []
