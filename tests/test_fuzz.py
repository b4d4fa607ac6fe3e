"""Every run makes some calls of `tests.fuzz`: arguments that nobody can have meant give no silent nonsense."""

from tests import fuzz, fuzz_cases


def test_every_entry_point_has_a_case():
    """A public function or class without a valid call to mutate is missing from the cases."""
    without_case = fuzz_cases.entry_points() - set(fuzz_cases.cases())
    assert not without_case


def test_what_nobody_can_have_meant_is_refused():
    """No argument that makes no sense is accepted; the error may be that of another library."""
    findings = list(fuzz.fuzzed(seed=11, calls=2, hopeless_only=True))
    assert len(findings) > 300
    nonsense = [finding for finding in findings if finding.end == "nonsense"]
    assert not nonsense, nonsense
    slow = [finding for finding in findings if finding.end == "slow"]
    assert not slow, slow
