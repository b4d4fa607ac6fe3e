"""The audit of our own step: a sound one passes, and every planted bug is seen.

The first sixteen bugs are large ones, which an attacker would use: the worst cases see each of them. The others are
smaller, or do not help an attacker on one pair of data sets, and are for the checks of what is known exactly.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from gdpjax import per_example_grad
from gdpjax.auditing import _step_checks, _worst_cases, audit_step, step_checks, worst_cases
from gdpjax.transforms import _noise

NUM_RELEASES = 1024
CONFIDENCE = 0.9999
SOUND_CLIPPED_GRAD = _worst_cases.clipped_grad
SOUND_PRIVATIZE = _worst_cases.privatize
SOUND_SAMPLE = _worst_cases.poisson_sample
SOUND_NORMALS = _noise.standard_normals
SOUND_KEYS = _noise.keys_of_leaves
SOUND_NOISY_TREE = _noise.noisy_tree
FALSE_ALARM = 1e-6


def audited(name, cases, num_releases=NUM_RELEASES, confidence=CONFIDENCE):
    """Return the audit of a worst case; all are valid together, as ``gdpjax audit --step`` runs them."""
    place = list(cases).index(name)
    return audit_step(
        cases[name].release,
        jax.random.split(jax.random.key(0), len(cases))[place],
        delta=1e-5,
        claimed=cases[name].claimed(),
        num_releases=num_releases,
        confidence=1 - (1 - confidence) / 2 / len(cases),
    )


def test_the_sound_step_passes_and_its_bounds_say_something():
    """No worst case refutes its claim, and those that are tight come near it."""
    cases = worst_cases()
    found = {name: audited(name, cases, num_releases=2048, confidence=0.95) for name in cases}
    assert not any(audit.refuted for audit in found.values())
    for name in ("steady", "opposed", "turning", "huge", "overflowing"):  # tight worst cases: mu is all of sqrt(2)
        assert 0.75 * 2**0.5 < found[name].mu <= 2**0.5, name
    assert 0.6 < found["mislabeled"].mu <= 1
    assert found["missing"].mu == found["silent"].mu == 0  # such an example leaves no trace at all


class Bug(NamedTuple):
    """A bug in one part of the step.

    Attributes:
      part: "normals", "keys", "noise", "sum", "release" or "probability".
      outcome: ``outcome(sound, *arguments)``, what the part gives in place of the sound outcome.
    """

    part: str
    outcome: Callable[..., Any]


class Batch(NamedTuple):
    """The parts of a clipped sum.

    Attributes:
      gradients: those of the examples, not clipped.
      clip: the clip norm.
      is_padding: bool[rows].
      clipped_sum: ``clipped_sum(clip, is_padding)``, the sound sum with another clip norm or other padding.
    """

    gradients: Any
    clip: float
    is_padding: jax.Array
    clipped_sum: Callable[..., Any]

    @property
    def kept(self):
        """The gradients with zeros for padding, so that NaN of other rows shows."""
        return jax.tree.map(lambda leaf: jnp.where(expand(self.is_padding, leaf), 0.0, leaf), self.gradients)


class FaultyStep:
    """A private step that has one of several bugs: their place in a list is an argument of the compiled program.

    Every part of the step is computed as it should be and with each bug, and the outcome of the planted one is taken.
    """

    def __init__(self, bugs, planted=0):
        self.bugs = list(bugs)
        self.planted = planted
        self.batch_size = None

    def outcome(self, part, sound, *arguments):
        """Return the sound outcome of a part, or that with the planted bug."""
        chosen = sound
        for place, bug in enumerate(self.bugs):
            if bug.part == part:
                faulty = bug.outcome(sound, *arguments)
                chosen = jax.tree.map(functools.partial(jnp.where, self.planted == place), faulty, chosen)
        return chosen

    def install(self, monkeypatch):
        """Put the parts in the place of those of the installation."""
        for module, names in (
            (_noise, ("standard_normals", "keys_of_leaves", "noisy_tree")),
            (_worst_cases, ("clipped_grad", "privatize", "poisson_sample")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, getattr(self, name))

    def case_with(self, place, case):
        """Return a worst case of this step with the bug at that place in the list; -1 for none."""
        return case._replace(release=jax.tree_util.Partial(self.release, jnp.int32(place), case.release))

    def release(self, planted, release, key, included):
        """Run a release with that bug."""
        self.planted = planted
        return release(key, included)

    def standard_normals(self, keys, shapes, dtypes):
        sound = SOUND_NORMALS(keys, shapes, dtypes)
        return [self.outcome("normals", normals, key, normals.shape) for normals, key in zip(sound, keys, strict=True)]

    def keys_of_leaves(self, key, names):
        return self.outcome("keys", SOUND_KEYS(key, names), key)

    def noisy_tree(self, tree, noise, stddev):
        return self.outcome("noise", SOUND_NOISY_TREE(tree, noise, stddev), tree, noise, stddev)

    def clipped_grad(self, loss, clip, **options):
        sound = SOUND_CLIPPED_GRAD(loss, clip, **options)
        gradients_of = per_example_grad(loss, **options)

        def total(*args, is_padding):
            def clipped_sum(clip, is_padding):
                return SOUND_CLIPPED_GRAD(loss, clip, **options)(*args, is_padding=is_padding)

            self.batch_size = (~is_padding).sum()
            batch = Batch(gradients_of(*args), clip, is_padding, clipped_sum)
            return self.outcome("sum", sound(*args, is_padding=is_padding), batch)

        total.sensitivity = sound.sensitivity
        return total

    def privatize(self, clip, **options):
        sound = SOUND_PRIVATIZE(clip, **options)

        def update(total, state, params):
            released = sound.update(total, state, params)
            return self.outcome("release", released, total, state, self.batch_size)

        return optax.GradientTransformation(sound.init, update)

    def poisson_sample(self, key, num_examples, sampling_prob, capacity):
        prob = self.outcome("probability", sampling_prob)
        return SOUND_SAMPLE(key, num_examples, prob, capacity)


def expand(vector, leaf):
    """Return a vector that broadcasts against the leading axis of a leaf."""
    return vector.reshape(-1, *[1] * (leaf.ndim - 1))


def norms(rows):
    """Return the norm of each row, which overflows where its square does."""
    squares = [jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(rows)]
    return jnp.sqrt(sum(squares))


def scaled(rows, factor):
    return jax.tree.map(lambda leaf: leaf * expand(factor, leaf), rows)


def naive_clip(rows, clip):
    """The usual formula; a NaN goes through it."""
    return scaled(rows, jnp.minimum(1.0, clip / jnp.maximum(norms(rows), 1e-12)))


def one_leaf_clipped(rows, clip):
    return {"first": naive_clip({"a": rows["first"]}, clip)["a"], "second": rows["second"]}


def skipped_where_not_finite(rows, clip):
    size = norms(rows)
    factor = jnp.where(size < jnp.inf, jnp.minimum(1.0, clip / size), 1.0)
    return scaled(jax.tree.map(jnp.nan_to_num, rows), factor)


def finite_clip(rows, clip):
    """No bug: what is not finite counts as nothing."""
    is_bad = ~(norms(rows) < jnp.inf)
    return naive_clip(jax.tree.map(lambda leaf: jnp.where(expand(is_bad, leaf), 0.0, leaf), rows), clip)


def bounded_by(bound):
    """Return the bug of a sum of ``bound(rows, clip)``, which states the usual sensitivity."""

    def outcome(sound, batch):
        return jax.tree.map(lambda leaf: leaf.sum(0), bound(batch.kept, batch.clip))

    return Bug("sum", outcome)


def the_sum_is_clipped(sound, batch):
    finite = jax.tree.map(jnp.nan_to_num, batch.kept)
    whole = jax.tree.map(lambda leaf: leaf.sum(0, keepdims=True), finite)
    return jax.tree.map(lambda leaf: leaf[0], naive_clip(whole, batch.clip))


def nothing_is_padding(sound, batch):
    return batch.clipped_sum(batch.clip, jnp.zeros_like(batch.is_padding))


def a_larger_clip_norm(sound, batch):
    return batch.clipped_sum(1.01 * batch.clip, batch.is_padding)


def state_rolled_back(sound, total, state, batch_size):
    released, _ = sound
    return released, state


def one_leaf_without_noise(sound, total, state, batch_size):
    released, after = sound
    return {**released, "second": total["second"] / 2}, after


def divided_by_the_realised_batch(sound, total, state, batch_size):
    released, after = sound
    return jax.tree.map(lambda leaf: leaf * 2 / jnp.maximum(batch_size, 1), released), after


def every_other_step_is_recorded(sound, total, state, batch_size):
    released, after = sound
    ledger = jax.tree.map(lambda old, new: jnp.where(state.count % 2 == 1, old, new), state.ledger, after.ledger)
    return released, after._replace(ledger=ledger)


def halved_on_one_step_in_ten(sound, total, state, batch_size):
    released, after = sound
    mean = jax.tree.map(lambda leaf: leaf / 3, total)
    factor = jnp.where(state.count % 10 == 9, 0.5, 1.0)
    return jax.tree.map(lambda m, r: m + factor * (r - m), mean, released), after


def per_device(sound, key, shape):
    """Four devices with noise of a quarter each: half the standard deviation."""
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(4))
    return jax.vmap(lambda key: jax.random.normal(key, shape) / 4)(keys).sum(0)


def default_key(sound, key, shape):
    return jax.random.normal(jax.random.key(0), shape)


def one_key_for_all_leaves(sound, key):
    return jax.tree.map(lambda _: key, sound)


def noise_in_bfloat16(draw, stddev):
    """Return other noise, of a key that is made of the sound one."""
    key = jax.random.key(jax.lax.bitcast_convert_type(draw.ravel()[0], jnp.uint32))
    return jnp.asarray(stddev, jnp.bfloat16) * jax.random.normal(key, draw.shape, jnp.bfloat16)


def in_bfloat16(sound, tree, noise, stddev):
    return SOUND_NOISY_TREE(tree, {name: noise_in_bfloat16(draw, stddev) for name, draw in noise.items()}, 1.0)


def all_in_bfloat16(sound, tree, noise, stddev):
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)
    noisy = [a + noise_in_bfloat16(b, stddev) for a, b in zip(jax.tree.leaves(rounded), noise.values(), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(tree), [leaf.astype(jnp.float32) for leaf in noisy])


def scaled_normals(factor):
    """Return the bug of noise that is multiplied by a factor."""
    return Bug("normals", lambda sound, key, shape: factor * sound)


def cut_normals(largest):
    """Return the bug of noise that ends at ``largest``."""
    return Bug("normals", lambda sound, key, shape: jnp.clip(sound, -largest, largest))


def normals_of_24_bits(sound, key, shape):
    return jax.random.normal(key, shape, jnp.float32)


def uniform_numbers(sound, key, shape):
    return jax.random.uniform(key, shape, minval=-(3**0.5), maxval=3**0.5)


# Each with the worst case that is made for it, though others may see it, too.
BUGS = {
    "no noise": (scaled_normals(0.0), "steady"),
    "half the noise": (scaled_normals(0.5), "steady"),
    "noise in parts per device": (Bug("normals", per_device), "steady"),
    "a default key": (Bug("normals", default_key), "steady"),
    "one key for all leaves": (Bug("keys", one_key_for_all_leaves), "turning"),
    "one key for all steps": (Bug("release", state_rolled_back), "turning"),
    "noise in bfloat16": (Bug("noise", in_bfloat16), "steady"),
    "noise and sum in bfloat16": (Bug("noise", all_in_bfloat16), "steady"),
    "clipping off": (bounded_by(lambda rows, clip: rows), "opposed"),
    "one leaf not clipped": (bounded_by(one_leaf_clipped), "huge"),
    "NaN around clipping": (bounded_by(naive_clip), "missing"),
    "no clipping where the norm overflows": (bounded_by(skipped_where_not_finite), "overflowing"),
    "one leaf without noise": (Bug("release", one_leaf_without_noise), "steady"),
    "divided by the realised batch": (Bug("release", divided_by_the_realised_batch), "silent"),
    "sampled twice as often": (Bug("probability", lambda sound: 2 * sound), "sampled"),
    "batches not sampled at all": (Bug("probability", lambda sound: 1.0 + 0 * sound), "sampled"),
}
NO_BUG = "the stand-in for clipping, which is sound"


@pytest.fixture(scope="module")
def step_with_all_bugs():
    """Return a step with all bugs, and its worst cases."""
    step = FaultyStep([*(bug for bug, _ in BUGS.values()), bounded_by(finite_clip)])
    with pytest.MonkeyPatch.context() as patch:
        step.install(patch)
        cases = worst_cases()

    # The network would be a second program.
    del cases["mislabeled"]
    return step, cases


@pytest.fixture
def cases_with(step_with_all_bugs, monkeypatch):
    """Return the worst cases of a step with a bug; one compiled program has all bugs."""
    step, cases = step_with_all_bugs
    # The program is traced in the first test that runs it.
    step.install(monkeypatch)
    names = [*BUGS, NO_BUG]

    def cases_with(name):
        place = names.index(name)
        return {of_case: step.case_with(place, case) for of_case, case in cases.items()}

    return cases_with


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_seen(name, cases_with):
    """The worst case that is made for a bug refutes its claim, at the confidence that all cases share."""
    _, seen_by = BUGS[name]
    assert audited(seen_by, cases_with(name)).refuted


def test_the_stand_in_for_clipping_is_sound_by_itself(cases_with):
    """The harness without a planted bug is sound."""
    cases = cases_with(NO_BUG)
    assert not any(audited(name, cases).refuted for name in cases)


SMALL_BUGS = {
    "clip after the sum": (Bug("sum", the_sum_is_clipped), "sum: opposed"),
    "padding not masked": (Bug("sum", nothing_is_padding), "sum: masked"),
    "half of the steps in the ledger": (Bug("release", every_other_step_is_recorded), "ledger"),
    "noise halved on one step in ten": (Bug("release", halved_on_one_step_in_ten), "noise size"),
    "noise cut at 3": (cut_normals(3.0), "noise range"),
    "noise cut at 5.4": (cut_normals(5.4), "noise tail"),
    "noise of 24 bits": (Bug("normals", normals_of_24_bits), "noise tail"),
    "uniform noise of variance 1": (Bug("normals", uniform_numbers), "noise shape"),
    "clip norm 1.01": (Bug("sum", a_larger_clip_norm), "sum: large"),
    "noise 0.95": (scaled_normals(0.95), "noise size"),
    "probability 1.2 times": (Bug("probability", lambda sound: jnp.minimum(1.2 * sound, 1.0)), "sampling"),
}
QUICK = ["half of the steps in the ledger"]


@pytest.fixture
def few_draws(monkeypatch):
    """A smaller sample for the far tail, which only two bugs need."""
    monkeypatch.setattr(_step_checks, "_LEAF", 2**14)
    monkeypatch.setattr(_step_checks, "_DRAWS_PER_RELEASE", 2**6)


def failed_checks(seed=0, num_releases=_step_checks._CHUNK):
    """Return the names of the checks that fail."""
    found = step_checks(jax.random.key(seed), num_releases)
    return [name for name, check in found.items() if check.p_value <= FALSE_ALARM]


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[] if bug in QUICK else [pytest.mark.slow]) for bug in SMALL_BUGS]
)
def test_a_small_planted_bug_fails_its_check(bug, monkeypatch, request):
    """Each has a check that is made for it."""
    planted, check = SMALL_BUGS[bug]
    in_the_far_tail = check == "noise tail"
    if not in_the_far_tail:
        request.getfixturevalue("few_draws")
    FaultyStep([planted]).install(monkeypatch)
    assert check in failed_checks(num_releases=4096 if in_the_far_tail else _step_checks._CHUNK)


@pytest.mark.slow
def test_no_false_alarm_in_twenty_seeds(monkeypatch):
    """The p-values are exact, so that a sound step fails hardly ever."""
    monkeypatch.setattr(_step_checks, "_compiled_runs", functools.cache(_step_checks._compiled_runs))
    for seed in range(20):
        assert failed_checks(seed, num_releases=1024) == []
