"""A plan cannot disagree with itself, says what it means, and meets the target it was made for."""

import dataclasses
import json
import re

import jax
import mpmath
import numpy as np
import pytest
from scipy import stats

import gdpjax
from gdpjax import NeighboringRelation, accounting
from gdpjax.correlated import MinSep, bisr
from gdpjax.ledger import TruncatedPoissonEvent
from gdpjax.sampling import (
    Poisson,
    PoissonNumbers,
    Promised,
    RandomAllocation,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)
from gdpjax.training import Plan, make_plan

SIZES = (60_000, 256)
OTHER = dict(clip=1.0, delta=1e-5)
BASE = dict(max_examples=60_000, expected_batch_size=256) | OTHER


@pytest.fixture(scope="module")
def mnist():
    """The first row of the paper."""
    return make_plan(**BASE, epochs=15, noise_multiplier=1.3)


def test_what_follows_from_the_plan_is_what_is_accounted_for(mnist):
    """Event, capacity and the probability of a batch above it follow from what was given."""
    event = mnist.event
    assert (event.noise_multiplier, event.num_steps) == (1.3, 3516)
    assert event.sampling_prob == mnist.sampling_prob == gdpjax.sampling.dyadic_probability(256 / 60_000)
    assert event.overflow == mnist.overflow
    tail = 3516 * stats.binom.sf(mnist.capacity - 1, 60_000, mnist.sampling_prob)
    assert tail == pytest.approx(mnist.overflow, rel=1e-6, abs=1e-300)
    assert 0 < mnist.overflow <= 1e-12
    assert mnist.capacity % 8 == 0
    assert 3516 * stats.binom.sf(mnist.capacity - 9, 60_000, mnist.sampling_prob) > 1e-12, "a smaller one would do"
    bounds = accounting.epsilon_bounds(event, delta=1e-5)
    assert tuple(mnist.epsilon_bounds()) == tuple(bounds)
    assert 0.86 < float(bounds.upper) < 0.87


def test_the_divisor_and_the_probability_are_public_constants():
    """Trap 3: nothing in a plan can be derived from the data, because no data are given to it."""
    fields = {field.name for field in dataclasses.fields(Plan)}
    assert "num_examples" not in fields
    plan = make_plan(**BASE, num_steps=10, noise_multiplier=1.0)
    assert plan.expected_batch_size == 256.0
    assert not plan.num_examples_is_public


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (Poisson, dict(epsilon=2.0)),
        (Poisson, dict(epsilon=1.0, neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)),
        (Poisson, dict(epsilon=2.0, group_size=3)),
        (WithoutReplacement, dict(epsilon=2.0)),
        pytest.param(Poisson, dict(mu=0.5), marks=pytest.mark.slow),
    ],
    ids=["epsilon", "public-n", "groups", "uniform", "mu"],
)
def test_calibrated_then_verified(scheme, options):
    """Trap 30: the plan itself meets its target, and a little less noise does not."""
    plan = make_plan(scheme(*SIZES, num_steps=1000), **OTHER, **options)
    less_noise = plan.replace(noise_multiplier=plan.noise_multiplier * (1 - 1e-5))
    if "epsilon" in options:
        target, measure = options["epsilon"], Plan.epsilon_bounds
    else:
        target, measure = options["mu"], Plan.mu_bounds
    assert float(measure(plan).upper) <= target
    assert float(measure(less_noise).upper) > target


def test_round_trip_through_json(mnist):
    """A plan that was written and read is the same one, whatever its clip rule."""
    rules = [
        gdpjax.PerLeaf(2.0),
        gdpjax.AutoS(1.0, gamma=0.01),
        gdpjax.Normalize(0.5),
        gdpjax.PerGroup({"a": "x", "b": {"c": "y"}}, {"x": 1.0, "y": 2.0}),
    ]
    others = [mnist.replace(clip=rule, unit="user", tuned="nothing") for rule in rules]
    for plan in [mnist, *others]:
        again = Plan.from_json(plan.to_json())
        assert again.to_json() == plan.to_json()
        assert type(again.clip) is type(plan.clip)
        assert again.event == plan.event


@pytest.mark.parametrize(("name", "value"), [("sampling_prob", 0.01), ("overflow", 0.0)])
def test_pieces_that_disagree_are_refused(mnist, name, value):
    """Trap 4, 33: what follows was edited without what it follows from; both numbers are named."""
    text = json.dumps(json.loads(mnist.to_json()) | {name: value})
    right = re.escape(str(getattr(mnist, name)))
    with pytest.raises(ValueError, match=rf"disagree: {name} is {value}.*{right}"):
        Plan.from_json(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [("capacity", 360), ("num_steps", 3000), ("expected_batch_size", 200.0), ("num_examples", 70_000)],
)
def test_batches_that_were_edited_are_refused(mnist, name, value):
    """Trap 4, 33: what was written of them no longer follows."""
    content = json.loads(mnist.to_json())
    content["batches"][name] = value
    with pytest.raises(ValueError, match=r"disagree: (sampling_prob|overflow) is"):
        Plan.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("batches", "name"),
    [
        (RandomAllocation(1000, 100, epochs=5, bins="fixed"), "bins"),
        (Shuffled(1000, 100, epochs=5, order="fixed"), "order"),
    ],
)
def test_a_field_of_batches_that_was_lost_has_no_default(batches, name):
    """Bins that are drawn anew cost half as much as those that were drawn once."""
    content = json.loads(make_plan(batches, **OTHER, noise_multiplier=2.0).to_json())
    del content["batches"][name]
    with pytest.raises(ValueError, match=f"expected all fields of {content['batches']['type']}, got none for {name}"):
        Plan.from_json(json.dumps(content))


def test_statement_has_every_item(mnist):
    """Mechanism, sampling, neighbours, numbers and what was tuned; its interval holds the plan's."""
    text = mnist.replace(tuned="the learning rate, on public data", released="the last parameters").statement()
    lower, upper = (float(end) for end in mnist.epsilon_bounds())
    stated = [float(x) for x in re.search(r"lies in \[([\d.]+), ([\d.]+)\]", text).groups()]
    assert stated[0] <= lower
    assert upper <= stated[1], "rounded outward"
    items = [
        "Gaussian mechanism",
        "l2 norm 1,",
        "1.3 times the sensitivity",
        "Poisson",
        "3516 steps",
        "adding or removing",
        "at most 60000 is public",
        "delta = 1e-05",
        "mu-GDP",
        "63 random bits",
        "the learning rate, on public data",
        "the last parameters",
        "ADD_OR_REMOVE_ONE",
        f"{mnist.capacity} examples",
        "certified",
    ]
    for item in items:
        assert item in text, item


def test_statement_of_other_plans(monkeypatch):
    """Its words follow the relation, the unit and the sampling."""
    # Certified mu of groups and of uniform batches takes a minute; the words are what is tested here.
    monkeypatch.setattr(Plan, "mu_bounds", lambda self: gdpjax.Bounds(0.1, 0.2))
    short = OTHER | dict(noise_multiplier=2.0)
    poisson = Poisson(*SIZES, num_steps=10)
    public = make_plan(poisson, **short, neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    assert "The number of examples, 60000, is public" in public.statement()
    users = make_plan(poisson, **short, unit="user", group_size=2)
    assert "adding or removing one group of up to 2 users" in users.statement()
    assert "per-user gradients" in users.statement()
    uniform = make_plan(WithoutReplacement(*SIZES, num_steps=10), **short)
    assert "drawn uniformly without replacement" in uniform.statement()
    assert "by replacing one example by any other (REPLACE_ONE)" in uniform.statement()


def test_groups_cost_more(mnist):
    """The lower end for pairs is above the upper end for one."""
    lower = float(mnist.replace(group_size=2).epsilon_bounds().lower)
    assert lower > float(mnist.epsilon_bounds().upper)


def test_a_traced_plan_trains_but_states_nothing(mnist):
    """Its numbers are not known, so that neither event nor statement nor text can be made of it."""

    def inside(noise):
        plan = mnist.replace(noise_multiplier=noise)
        for refused in (lambda: plan.event, plan.statement, plan.to_json):
            with pytest.raises((ValueError, TypeError), match=r"traced|Traced|Tracer"):
                refused()
        return noise

    jax.make_jaxpr(inside)(1.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (dict(noise_multiplier=0), "adds no noise at all"),
        (dict(epsilon=float("inf")), "adds no noise at all"),
        (dict(mu=float("inf")), "adds no noise at all"),
        (dict(noise_multiplier=0.15), r"9\.1 standard deviations, .* with a probability up to 0\.\d+, above"),
        (dict(noise_multiplier=0.05, num_steps=10**5), "with a probability that may be 1, above"),
        (dict(noise_multiplier=0.5, group_size=3), r"9\.1 standard deviations"),
    ],
)
def test_a_plan_without_enough_noise_says_that_it_is_not_private(options, reason):
    """Trap 31: the finite range of the noise is part of the plan, and of what it claims."""
    plan = make_plan(**BASE | dict(num_steps=100) | options)
    assert not plan.is_private
    assert plan.epsilon_bounds().upper == plan.mu_bounds().upper == np.inf
    statement = plan.statement()
    assert re.search(reason, statement)
    assert "THIS RUN IS NOT PRIVATE" in statement
    assert "-DP" not in statement, "no guarantee is worded"
    again = Plan.from_json(plan.to_json())
    assert (again, again.event) == (plan.replace(clip=again.clip), plan.event)
    assert make_plan(**BASE, num_steps=100, noise_multiplier=0.5).is_private


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(noise_multiplier=None), "exactly one of noise_multiplier, epsilon and mu"),
        (dict(epsilon=1.0), "exactly one of noise_multiplier, epsilon and mu"),
        (dict(num_steps=None), "exactly one of num_steps and epochs"),
        (dict(noise_multiplier=np.nan), "noise_multiplier"),
        (dict(delta=0.0), "delta"),
        (dict(delta=5e-324), "delta must exceed"),
        (dict(clip=-1.0), "l2_clip_norm"),
        (dict(expected_batch_size=70_000), "expected_batch_size must be at least 1 and at most num_examples=60000"),
        (dict(sampling="uniform"), "no argument 'sampling'; it takes batches"),
    ],
)
def test_bad_input(changes, message):
    """A number that is out of range, missing or given twice is named."""
    options = BASE | dict(num_steps=10, noise_multiplier=1.0) | changes
    with pytest.raises(ValueError, match=message):
        make_plan(**options)


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (Poisson(*SIZES, num_steps=10), dict(epochs=3), "batches= says how batches are drawn: leave epochs out"),
        (WithoutReplacement(*SIZES, num_steps=10), dict(group_size=2), "Poisson"),
        ("shuffled", {}, "batches must be .*; got 'shuffled'"),
        (PoissonNumbers(0.1, 10), {}, "a plan's batches are drawn by their scheme"),
        (Promised(10, 100, MinSep(2, 50)), dict(noise=bisr(4)), "a plan's batches are drawn by their scheme"),
    ],
)
def test_bad_batches(batches, options, message):
    """Batches that a run cannot draw, that are given twice, or without a proved bound are refused."""
    with pytest.raises(ValueError, match=message):
        make_plan(batches, **OTHER, noise_multiplier=1.0, **options)


def test_a_target_that_cannot_be_met_or_asks_for_nothing():
    """Neither is answered by a number of the search's end."""
    small = dict(clip=1.0, max_examples=10**6, expected_batch_size=1, delta=1e-5, num_steps=1)
    with pytest.raises(ValueError, match="asks for nothing"):
        make_plan(**small | dict(delta=0.5), epsilon=50.0)
    with pytest.raises(ValueError, match="cannot be met"):
        make_plan(**small | dict(num_steps=10**9, expected_batch_size=10**6), epsilon=1e-6)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (Poisson, dict(epsilon=1e9)),
        (Poisson, dict(epsilon=80.4, group_size=3)),
        (WithoutReplacement, dict(epsilon=1000.0)),
        (Shuffled, dict(mu=100.0)),
    ],
)
def test_no_plan_has_silently_another_epsilon(scheme, options):
    """Trap 87: noise has a largest value, so that some targets cannot be had; the largest that is named can."""
    (name, *_) = options
    batches = scheme(*SIZES, epochs=4)
    with pytest.raises(ValueError, match="cannot be reached") as refused:
        make_plan(batches, **OTHER, **options)
    largest = float(re.search(r"the largest is ([\d.]+),", str(refused.value))[1])
    assert largest < options[name]
    plan = make_plan(batches, **OTHER, **options | {name: largest})
    bounds = plan.epsilon_bounds() if name == "epsilon" else plan.mu_bounds()
    assert 0.999 * largest < bounds.upper <= largest


@pytest.mark.parametrize(
    ("batches", "options", "same_as"),
    [
        (Poisson(1000, 20, epochs=2), dict(group_size=2), 40),
        (WithoutReplacement(1000, 20, epochs=2), {}, 40),
        (RandomAllocation(1000, 20, epochs=2), {}, 50),
        (Shuffled(1000, 20, epochs=2), {}, 50),
        (Shuffled(1000, 20, epochs=2, order="fixed"), dict(noise=bisr(4)), None),
        (Poisson(1000, 20, epochs=2), dict(noise_multiplier=0.0), None),
    ],
)
def test_the_steps_that_were_made_are_whole_epochs_or_the_whole_run(batches, options, same_as):
    plan = make_plan(batches, **OTHER | dict(noise_multiplier=4.0) | options)
    assert plan.statement(100) == plan.statement()
    with pytest.raises(ValueError, match="steps_made must be a whole number"):
        plan.statement(101)
    assert "Steps: 0 of the 100 planned steps were made" in plan.statement(0)
    made = plan.statement(40).splitlines()[4]
    assert made.startswith("Steps: 40 of the 100 planned steps were made.")
    shown = re.findall(r"epsilon <= ([\d.]+)", made)
    if same_as is None:
        assert not shown
    else:
        upper = plan.replace(num_steps=same_as).epsilon_bounds().upper
        assert upper <= float(shown[0]) < 1.001 * upper


TRUNCATED = TruncatedPoisson(1000, 50, num_steps=20, capacity=64)


def test_a_truncated_plan():
    """It is accounted for and worded as batches of which a random part is kept."""
    plan = make_plan(TRUNCATED, **OTHER, noise_multiplier=2.0)
    assert plan.event == TruncatedPoissonEvent(2.0, plan.sampling_prob, 20, 1000, 64)
    assert Plan.from_json(plan.to_json()).event == plan.event
    poisson = plan.replace(batches=Poisson(1000, 50, num_steps=20))
    assert plan.epsilon_bounds().upper > poisson.epsilon_bounds().upper
    sentence = "of more than 64 drawn examples a uniformly random 64 are kept"
    assert sentence in plan.statement()
    assert "pays for a batch" not in plan.statement()


def test_a_truncated_plan_needs_more_noise_for_its_finite_range():
    """One example in the place of another moves the sum twice as far."""
    tight = make_plan(TRUNCATED.replace(capacity=10), **OTHER, noise_multiplier=0.35)
    roomy = make_plan(TRUNCATED.replace(capacity=200), **OTHER, noise_multiplier=0.35)
    assert not tight.is_private
    assert roomy.is_private


@pytest.mark.parametrize(("delta", "is_large"), [(1e-3, True), (9e-4, False)])
def test_a_statement_warns_of_a_delta_that_one_published_example_meets(delta, is_large):
    plan = make_plan(
        clip=1.0, max_examples=1000, expected_batch_size=1000, num_steps=1, delta=delta, noise_multiplier=2.0
    )
    assert ("THIS DELTA IS LARGE: it is not below 1 / 1000" in plan.statement()) is is_large
    assert ("THIS DELTA IS LARGE" in gdpjax.report(plan).to_markdown()) is is_large


@pytest.mark.parametrize("shift", [0.05, 0.5, 1.0, 2.0, 4.0])
def test_the_range_of_the_noise_counts_all_coordinates(shift):
    """A shift that is spread over many coordinates leaves the range of more of them."""
    largest = mpmath.mpf("9.1")
    plan = make_plan(**BASE, num_steps=100, noise_multiplier=1.0)
    bound = plan._beyond(shift) / (plan.sampling_prob * plan.num_steps)
    with mpmath.workdps(40):
        for num_coordinates in 4 ** np.arange(16):
            share = shift / mpmath.sqrt(int(num_coordinates))
            beyond = mpmath.ncdf(share - largest) - mpmath.ncdf(-largest)
            assert int(num_coordinates) * beyond <= bound


@pytest.mark.parametrize("num_examples", [30_000, 70_000])
def test_no_delta_is_printed_that_is_below_the_plans(num_examples):
    """At 3.33333e-05 the epsilon of delta = 1 / 30000 is not certified."""
    sizes = dict(max_examples=num_examples, expected_batch_size=100, num_steps=10)
    plan = make_plan(**sizes, clip=1.0, delta=1 / num_examples, noise_multiplier=2.0)
    statement = plan.statement()
    (delta,) = re.findall(r"with delta = (\S+) and", statement)
    (overflow,) = re.findall(r"this includes (\S+) for the event", statement)
    (label, *_) = re.findall(r"epsilon at delta (\S+)", gdpjax.report(plan).to_text())
    assert min(float(delta), float(label)) >= plan.delta
    assert float(overflow) >= plan.overflow
