"""Ledgers in the words of other libraries."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import epsilon_bounds, moments_accountant_epsilon
from gdpjax.ledger import RandomizedResponseEvent, UniformEvent

EVENTS = st.builds(Event, st.floats(1e-3, 1e3), st.floats(0, 1), st.integers(1, 10**7))


@pytest.fixture
def rdp_accountant():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting.rdp import RdpAccountant
    return RdpAccountant


@given(st.lists(EVENTS, max_size=4))
def test_opacus_round_trip(events):
    ledger = Ledger(events)
    history = ledger.to_opacus_history()
    assert all(isinstance(row, tuple) and isinstance(row[2], int) for row in history)
    assert Ledger.from_opacus_history(history) == ledger


@pytest.mark.parametrize("mechanism", ["rdp", "prv", "gdp"])
def test_the_state_dict_of_an_opacus_accountant(mechanism):
    state = {"history": [(1.1, 0.01, 100), (0.9, 0.02, 50)], "mechanism": mechanism}
    assert Ledger.from_opacus_history(state) == Ledger([Event(1.1, 0.01, 100), Event(0.9, 0.02, 50)])


@pytest.mark.parametrize("run", [(1.3, 256 / 60_000, 3516), (0.7, 0.01, 1000), (4.0, 0.1, 200), (2.0, 1.0, 4)])
def test_epsilon_of_the_dp_event(rdp_accountant, run):
    for ledger in (Ledger([Event(*run)]), Ledger([Event(*run), Event(2.0, 0.05, 7)])):
        theirs = rdp_accountant().compose(ledger.to_dp_event()).get_epsilon(1e-5)
        ours = moments_accountant_epsilon(ledger, delta=1e-5)
        assert 0.98 * theirs < ours <= theirs * (1 + 1e-9)
    assert rdp_accountant().compose(Ledger().to_dp_event()).get_epsilon(1e-5) == 0


@pytest.mark.parametrize("form", ["to_dp_event", "to_opacus_history"])
def test_what_cannot_be_expressed_is_refused(form):
    with pytest.raises(ValueError, match=f"{form} .* got UniformEvent"):
        getattr(Ledger([UniformEvent(1.0, 0.1, 3)]), form)()
    with pytest.raises(ValueError, match=f"{form} expresses Poisson sampling .* overflow=1e-09"):
        getattr(Ledger([Event(1.0, 0.1, 3, overflow=1e-9)]), form)()


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([(1.0, 0.1, 2.5)], "num_steps must be a whole number"),
        ({"history": [(1.0, 0.1, 2)], "mechanism": "laplace"}, "the mechanism rdp, prv or gdp"),
        ({"history": [(1.0, 0.1, 2)]}, "the mechanism rdp, prv or gdp"),
    ],
)
def test_bad_history(history, message):
    with pytest.raises(ValueError, match=message):
        Ledger.from_opacus_history(history)


def test_repeated_randomized_response_counts_every_answer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dp_accounting
        from dp_accounting.pld import PLDAccountant
    ledger = Ledger([RandomizedResponseEvent(1.0, 5, 3, neighboring_relation=NeighboringRelation.REPLACE_ONE)])
    accountant = PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    theirs = accountant.compose(ledger.to_dp_event()).get_epsilon(0.1)
    assert theirs == pytest.approx(epsilon_bounds(ledger, delta=0.1).upper, rel=2e-3)
