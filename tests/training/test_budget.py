"""A budget is never exceeded, by one process or two, and what is found for the rest of it fits and is tight."""

import copy
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from gdpjax import Budget, Event, Ledger, NeighboringRelation, accounting, make_plan
from gdpjax.ledger import GaussianEvent, LaplaceEvent
from gdpjax.mechanisms import GaussianMechanism, LaplaceMechanism

TOTAL = dict(epsilon=1.0, delta=1e-6, unit="patient")
RUN = dict(clip=1.0, max_examples=60_000, expected_batch_size=256, num_steps=500)
REPLACED = NeighboringRelation.REPLACE_ONE


def epsilon_by_pld(ledger, delta):
    """Return the epsilon of a ledger without overflow by dp_accounting's composition of privacy losses, pessimistic."""
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    return accountant.compose(ledger.to_dp_event()).get_epsilon(delta)


def without_overflow(ledger):
    """Return the events of a ledger, its plans by the steps alone."""
    events = []
    for event in ledger:
        is_plan = isinstance(event, Event)
        events.append(Event(event.noise_multiplier, event.sampling_prob, event.num_steps) if is_plan else event)
    return Ledger(events)


@pytest.fixture(scope="module")
def three_parts():
    """A histogram, a count and a training that takes all that they leave."""
    budget = Budget(**TOTAL)
    histogram = budget.rest(0.3).gaussian()
    budget.spend(histogram)
    count = LaplaceMechanism(0.05)
    budget.spend(count)
    plan = make_plan(**RUN, epsilon=budget.rest())
    budget.spend(plan)
    return budget, (histogram, count, plan)


def test_the_parts_fill_the_budget_by_another_accountant(three_parts):
    """Histogram, count and training have the total epsilon together, as an independent composition finds it."""
    budget, _ = three_parts
    bounds = budget.epsilon_bounds()
    assert 0.998 < bounds.lower <= bounds.upper <= 1.0
    oracle = epsilon_by_pld(without_overflow(budget.spent), 1e-6)
    assert bounds.lower <= oracle * (1 + 1e-4)
    assert oracle <= bounds.upper * (1 + 1e-3)


def test_a_plan_of_the_rest_is_tight(three_parts):
    """One percent less noise would exceed the budget, by both accountants."""
    _, (histogram, count, plan) = three_parts
    less = plan.replace(noise_multiplier=0.99 * plan.noise_multiplier)
    assert epsilon_by_pld(without_overflow(Ledger([histogram, count, less])), 1e-6) > 1.0
    budget = Budget(**TOTAL)
    for part in (histogram, count):
        budget.spend(part)
    with pytest.raises(ValueError, match="something that fits"):
        budget.spend(less)
    budget.spend(plan)
    assert (plan.unit, plan.delta) == ("patient", 1e-6)


def test_threads_share_a_budget():
    """Charges of several threads are made one after the other."""
    budget = Budget(epsilon=1.0, delta=1e-12)

    def spend(_):
        try:
            budget.spend(LaplaceMechanism(0.1))
        except ValueError:
            return 0
        return 1

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spend, range(16))) == len(budget.spent) == 10


def test_gaussian_releases_have_the_mu_of_their_squares():
    """The last of three Gaussian releases gets exactly the mu that the squares of the others leave."""
    budget = Budget(**TOTAL)
    total = float(accounting.gdp_mu(1.0, 1e-6))
    for noise_multiplier in (10.0, 8.0):
        budget.spend(GaussianMechanism(noise_multiplier))
    last = budget.rest().gaussian()
    assert float(last.mu) == pytest.approx(math.sqrt(total**2 - 1 / 100 - 1 / 64), rel=1e-5)
    budget.spend(last)
    with pytest.raises(ValueError, match="something that fits"):
        budget.spend(GaussianMechanism(100.0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (GaussianMechanism(0.5), "something that fits"),
        (Event(0.0, 0.01, 10), "something that fits"),
        (GaussianEvent(50.0, neighboring_relation=REPLACED), "the budget's relation"),
        (make_plan(**RUN, delta=1e-6, noise_multiplier=10.0), "unit and delta"),
        (make_plan(**RUN, delta=1e-5, noise_multiplier=10.0, unit="patient"), "unit and delta"),
        (make_plan(**RUN, delta=1e-6, noise_multiplier=0.0, unit="patient"), "something that fits"),
        (make_plan(**RUN, delta=1e-6, noise_multiplier=30.0, unit="patient", group_size=2), "single units"),
        ("histogram", "a Ledger holds"),
    ],
    ids=["too-much", "no-noise", "relation", "unit", "delta", "not-private", "groups", "text"],
)
def test_what_is_refused_costs_nothing(given, message, tmp_path):
    """A charge that does not fit, or is for other units or neighbours, leaves the budget as it was."""
    budget = Budget(**TOTAL, path=tmp_path / "budget.json")
    budget.spend(LaplaceMechanism(0.1))
    before = (tmp_path / "budget.json").read_text()
    with pytest.raises(ValueError, match=message):
        budget.spend(given)
    assert (tmp_path / "budget.json").read_text() == before
    assert budget.spent == Ledger([LaplaceEvent(0.1)])


def test_noise_too_small_for_its_range_is_refused():
    """A plan whose finite noise guarantees nothing does not fit, however large the budget is."""
    plan = make_plan(**RUN, delta=1e-6, noise_multiplier=0.2, unit="patient")
    with pytest.raises(ValueError, match="something that fits"):
        Budget(1e6, 1e-6, "patient").spend(plan)


def test_make_plan_takes_the_terms_of_the_budget():
    """Unit, delta and relation are the budget's; others are refused, and delta is needed without a budget."""
    rest = Budget(**TOTAL, neighboring_relation=REPLACED).rest()
    assert make_plan(**RUN, epsilon=rest).neighboring_relation is REPLACED
    for other in (dict(unit="example"), dict(delta=1e-5), dict(neighboring_relation="ADD_OR_REMOVE_ONE")):
        with pytest.raises(ValueError, match="budget's"):
            make_plan(**RUN, epsilon=rest, **other)
    with pytest.raises(ValueError, match="give delta"):
        make_plan(**RUN, epsilon=1.0)


def test_a_budget_in_a_file_survives_its_process(tmp_path):
    """What was charged is read back bit by bit, and the file has the terms."""
    path = tmp_path / "budget.json"
    budget = Budget(**TOTAL, path=path)
    budget.spend(Ledger([GaussianEvent(20.0), Event(3.0, 0.01, 100)]))
    for again in (Budget.open(path), Budget(**TOTAL, path=path)):
        assert again.spent == budget.spent
        assert again.epsilon_bounds() == budget.epsilon_bounds()
        assert again.statement() == budget.statement()


def test_a_file_of_another_budget_is_refused(tmp_path):
    """Other terms than those in the file are refused, and `open` makes no file."""
    path = tmp_path / "budget.json"
    Budget(**TOTAL, path=path)
    for change in (dict(epsilon=2.0), dict(delta=1e-5), dict(unit="visit"), dict(neighboring_relation=REPLACED)):
        with pytest.raises(ValueError, match=r"another budget, of epsilon = 1\.0, delta = 1e-06, unit 'patient'"):
            Budget(**TOTAL | change, path=path)
    with pytest.raises(ValueError, match="cannot be read"):
        Budget.open(tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()


def test_a_damaged_file_is_refused(tmp_path):
    """A file that was cut, or whose numbers were changed, is no budget, and is left as it is."""
    path = tmp_path / "budget.json"
    budget = Budget(**TOTAL, path=path)
    budget.spend(LaplaceMechanism(0.5))
    text = path.read_text()
    lost = json.loads(text)
    lost["spent"]["events"] = []
    for damaged in (text[:100], "", text.replace("0.5", "0.1"), json.dumps(lost), "[]"):
        path.write_text(damaged)
        for attempt in (lambda: Budget.open(path), lambda: budget.spend(LaplaceMechanism(0.1))):
            with pytest.raises(ValueError, match=r"budget\.json"):
                attempt()
        assert path.read_text() == damaged
    path.unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        budget.spend(LaplaceMechanism(0.1))


def test_a_budget_is_not_spent_in_a_copy(tmp_path):
    """An older copy of the file, a file that was made anew, and a copy of the object are refused."""
    path = tmp_path / "budget.json"
    budget = Budget(**TOTAL, path=path)
    old = path.read_text()
    budget.spend(LaplaceMechanism(0.1))
    path.write_text(old)
    with pytest.raises(ValueError, match="charges are missing"):
        budget.spend(LaplaceMechanism(0.1))
    path.unlink()
    Budget(**TOTAL, path=path)
    with pytest.raises(ValueError, match="charges are missing"):
        budget.rest()
    with pytest.raises(ValueError, match="a copy of a budget"):
        copy.copy(Budget(**TOTAL))


def test_a_forked_process_spends_no_copy(monkeypatch):
    budget = Budget(**TOTAL)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ValueError, match="a forked process has a copy"):
        budget.spend(LaplaceMechanism(0.05))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_that_is_forked_in_a_charge_does_not_keep_the_lock(tmp_path):
    """It would have held the budget of all others for as long as it lives."""
    budget = Budget(**TOTAL, path=tmp_path / "budget.json")
    with budget._locked():
        child = os.fork()
        if not child:
            signal.pause()
    try:
        budget.spend(LaplaceMechanism(0.05))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_that_is_taken_away_loses_no_charge(tmp_path, monkeypatch):
    """Who deletes the lock in the middle of a charge lets another one in, and the first is told."""
    path = tmp_path / "budget.json"
    budget = Budget(**TOTAL, path=path)
    events_of = type(budget.rest()).events_of

    def interrupted(self, given):
        monkeypatch.undo()
        path.with_name("budget.json.lock").unlink()
        Budget.open(path).spend(LaplaceMechanism(0.1))
        return events_of(self, given)

    monkeypatch.setattr(type(budget.rest()), "events_of", interrupted)
    with pytest.raises(RuntimeError, match="nothing was charged"):
        budget.spend(LaplaceMechanism(0.2))
    assert [event.describe() for event in Budget.open(path).spent] == ["Laplace release, epsilon 0.1"]


SPENDER = """
import sys
from gdpjax import Budget
from gdpjax.mechanisms import LaplaceMechanism
budget = Budget.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
fitted = 0
for _ in range(8):
    try:
        budget.spend(LaplaceMechanism(0.1))
        fitted += 1
    except ValueError:
        pass
print(fitted, flush=True)
"""


def test_two_processes_spend_no_part_twice(tmp_path):
    """Of sixteen charges of two processes at once exactly those go through that fit."""
    path = tmp_path / "budget.json"
    Budget(epsilon=1.0, delta=1e-12, path=path)
    command = [sys.executable, "-c", SPENDER, str(path)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    fitted = [int(process.communicate(timeout=120)[0]) for process in processes]
    budget = Budget.open(path)
    assert sum(fitted) == len(budget.spent) == 10
    assert min(fitted) >= 2
    assert float(budget.epsilon_bounds().upper) <= 1.0
