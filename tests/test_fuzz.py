"""A little of `tests.fuzz` in every run: arguments that nobody can have meant are refused, by name."""

from tests import fuzz, fuzz_cases


def test_every_entry_point_has_a_case():
    assert not fuzz_cases.entry_points() - set(fuzz_cases.cases())


def test_what_nobody_can_have_meant_is_refused():
    found = list(fuzz.fuzzed(seed=11, calls=2, hopeless_only=True))
    assert len(found) > 300
    nonsense = [finding for finding in found if finding.end == "nonsense"]
    assert not nonsense, nonsense
    obscure = [finding for finding in found if finding.end in ("obscure", "slow")]
    assert len(obscure) < 0.01 * len(found), obscure
