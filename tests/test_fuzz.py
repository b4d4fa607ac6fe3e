"""Every run makes some calls of `tests.fuzz`: values passed by mistake do not become silent nonsense."""

from tests import fuzz, fuzz_cases


def test_every_entry_point_has_a_case():
    """A public function of numbers without a valid call to mutate is missing from the cases."""
    without_case = fuzz_cases.entry_points() - set(fuzz_cases.cases())
    assert not without_case


def test_no_mistaken_value_becomes_nonsense():
    """No argument that makes no sense is accepted, and no finite number becomes NaN."""
    found = []
    for entry, case in fuzz_cases.cases().items():
        found.extend(fuzz.nonsense(entry, case, seed=11, calls=3))
    assert not found, found


def test_nonsense_is_seen():
    """A function that takes anything is found out."""
    case = fuzz_cases.case(lambda sigma: 1.0, 2.0)
    assert len(list(fuzz.nonsense("careless", case, seed=0, calls=100))) >= 4
