r"""A total privacy budget, from which releases and trainings on the same data are taken.

    budget = gdpjax.Budget(epsilon=1.0, delta=1e-6, unit="patient", path="budget.json")
    histogram = budget.rest(0.2).gaussian()                   # by itself it has epsilon 0.2
    budget.spend(histogram)                                   # then release it
    plan = make_plan(..., epsilon=budget.rest())              # the noise for all that is left
    budget.spend(plan)                                        # then train

What was charged is a `Ledger`. Something fits if the upper end of the certified epsilon of all of it together, at the
budget's delta, is at most the budget's epsilon: a composition of trade-off curves and no sum of epsilons.

**What may depend on results.** f-DP composes if each release has the curve that it was charged for whatever the
results of earlier ones (Dong, Roth and Su, arXiv:1905.02383, theorem 4). So *what* is asked may depend on them: which
histogram, which model, which learning rate. What is *charged*, that is the kinds of releases, their noise and numbers
of steps, must be fixed without looking at results. `Budget.rest` uses earlier charges only and no result, so noise that
is found by it is fixed if they are. Leaving out a release that was charged, or stopping it early, is fine, as nothing
is always dominated by something; charging less for it because of what was seen is not.

That a budget holds where charges are chosen by results as well is the question of a privacy filter (Rogers, Roth,
Ullman and Vadhan, arXiv:1605.08294). For Gaussian releases of all the data the rule above is one: all of their curves
are ordered by mu, and sqrt(sum mu_i^2) is compared with a constant (Smith and Thakurta, arXiv:2210.17520; Koskela,
Tobaben and Honkela, arXiv:2209.15596). For others it is not: where two curves cross, the one can be taken after a large
privacy loss and the other after a small one, and both fit, while the mixture has a larger delta than either.

**Finite noise.** Each plan that is charged may add up to a hundredth of delta for the finite range of its noise, as
`_plan` derives; the statement is for noise without a largest value.
"""

import contextlib
import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from gdpjax._core import roots
from gdpjax._core.arguments import check_number, check_relation, check_text
from gdpjax._core.checks import OPEN_UNIT, POSITIVE
from gdpjax._core.documents import DocumentError, digest_of_document, read_document
from gdpjax._core.figures import rounded
from gdpjax._core.files import FolderIsLocked, FolderLock, write_atomically
from gdpjax._core.types import Bounds, NeighboringRelation, neighbours_differ
from gdpjax.accounting import certified
from gdpjax.ledger import AnyEvent, Ledger
from gdpjax.mechanisms import GaussianMechanism, LaplaceMechanism
from gdpjax.tradeoff import CertifiedCurve
from gdpjax.training._plan import Plan

FORMAT_VERSION = 1
_PATIENCE = 60.0
"""Seconds that a spend waits for other processes."""
_HAIR = 1e-9
"""By so much, relative, the search stays below a target: more than the rounding of another machine."""

LEAST, MOST = 1e-2, 1e6
_NOISE = roots.Axis(MOST, LEAST)

Mechanism = TypeVar("Mechanism", GaussianMechanism, LaplaceMechanism)


@dataclasses.dataclass(frozen=True)
class Rest:
    """What is left of a budget, or a part of it; made by `Budget.rest`.

    ``epsilon`` is the target of ``spent`` and one thing more, together.
    """

    epsilon: float
    delta: float
    unit: str
    neighboring_relation: NeighboringRelation
    spent: Ledger = dataclasses.field(default_factory=Ledger)

    @property
    def target(self) -> float:
        """The epsilon at which searches for noise aim."""
        return self.epsilon * (1.0 - _HAIR)

    @property
    def name(self) -> str:
        """What the target is called in errors."""
        spent = " with what was spent before" if self.spent else ""
        return f"epsilon = {self.epsilon:g}{spent}"

    @property
    def terms(self) -> str:
        """What a budget is known by, in errors."""
        relation = self.neighboring_relation.name
        return f"epsilon = {self.epsilon}, delta = {self.delta}, unit {self.unit!r} and {relation}"

    def events_of(self, given: Any) -> tuple[AnyEvent, ...]:
        """Return the events of a mechanism, plan, event or ledger; ValueError for another unit, relation or delta."""
        events = Ledger(given if isinstance(given, Ledger) else [given]).events
        if isinstance(given, Plan):
            ours = {"unit": self.unit, "delta": self.delta}
            theirs = {"unit": given.unit, "delta": given.delta}
            if theirs != ours:
                raise ValueError(f"expected a plan of the budget's unit and delta, {ours}, got {theirs}")
        for event in events:
            if event.neighboring_relation is not self.neighboring_relation:
                raise ValueError(
                    f"expected a release under {self.neighboring_relation.name}, the budget's relation, got one under "
                    f"{getattr(event.neighboring_relation, 'name', None)}; of a mechanism give "
                    "mechanism.event(neighboring_relation=...)"
                )
        return events

    def upper(self, given: Any) -> float:
        """Return the upper end of epsilon of what was spent and ``given``, together."""
        events = self.events_of(given)
        if isinstance(given, Plan) and not given.is_private:
            return math.inf
        curve: Any = curve_of((*self.spent, *events))
        return float(getattr(curve, "above", curve).epsilon(self.delta).upper)

    def gaussian(self) -> GaussianMechanism:
        """Return the Gaussian mechanism with (nearly) the least noise that fits.

        >>> print(f"{Budget(epsilon=1.0, delta=1e-6).rest(0.2).gaussian().noise_multiplier:.2f}")
        18.99
        """
        return self._with_least_noise(GaussianMechanism)

    def laplace(self) -> LaplaceMechanism:
        """Return the Laplace mechanism with (nearly) the least noise that fits."""
        return self._with_least_noise(lambda noise: LaplaceMechanism(1.0 / noise))

    def _with_least_noise(self, mechanism_of: Callable[[float], Mechanism]) -> Mechanism:
        """Return the mechanism of the least noise, relative to the sensitivity, that fits."""

        def upper(noise: float) -> float:
            return self.upper(mechanism_of(noise).event(neighboring_relation=self.neighboring_relation))

        return mechanism_of(least_noise(upper, self.target, self.name).holds)


def least_noise(upper: Callable[[float], float], target: float, name: str) -> roots.Edge:
    """Return the edge of "``upper`` of the noise multiplier is at most ``target``".

    Args:
      upper: an upper end that decreases in the noise multiplier.
      target: above 0.
      name: what the target is called in an error.

    Raises:
      ValueError: no noise meets the target, or the least one does.
    """
    if upper(MOST) > target:
        raise ValueError(f"the target {name} cannot be met: even noise_multiplier = {MOST:g} exceeds it")
    # From 1 on, so that the slow ends of the accountant's range are only visited if they must be.
    edge = roots.find_edge(_NOISE, upper, target)
    if edge.holds == LEAST:
        raise ValueError(f"the target {name} asks for nothing: even noise_multiplier = {LEAST} meets it")
    return edge


def curve_of(events: tuple[AnyEvent, ...]) -> CertifiedCurve:
    """Return the certified curve of events, the same in every order of them, rounding included."""
    return certified(Ledger(sorted(events, key=repr)))


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON form of a budget."""

    gdpjax_budget: Literal[1]
    epsilon: float
    delta: float
    unit: str
    neighboring_relation: NeighboringRelation
    spent: dict[str, Any]
    sha256: str


class Budget:
    """A total (epsilon, delta) for all that is released from the same data, charged by certified composition.

    Formula: a charge fits if epsilon_upper(f_1 (x) ... (x) f_n at delta) <= epsilon, for the trade-off curves f_i of
    everything charged with it. Charge first, then release.

    The total holds if what is charged (kinds, noise, numbers of steps) is fixed without looking at results of earlier
    releases; what is asked, and whether a charged release is made or stopped, may depend on them. Noise that is found
    by `rest` depends on earlier charges alone. If all charges are Gaussian releases of all the data
    (`GaussianMechanism`), they may be chosen by results as well: for these the rule is a privacy filter. Every release
    draws its noise and its batches with a key of its own.

    Args:
      epsilon: the total, in nats, finite and > 0.
      delta: strictly between 0 and 1.
      unit: whom the budget protects, in the singular: what one row is. Plans of another unit are refused; a mechanism
        and a ledger have none, and are for this unit.
      neighboring_relation: the relation of everything that is charged.
      path: a JSON file that holds the budget, made if it is not there: what was charged survives the process, and two
        processes cannot spend the same part. Each charge locks the file ``path`` + ".lock" beside it, reads the budget,
        and replaces it in one step; a file system without locks is warned of. A copy of the file is another budget.
        Make the file once, and use `open` elsewhere: where there is no file, a new budget begins. Without a path the
        budget is this object.

    Returns:
      A budget. Standing: certified, an upper end for real arithmetic.

    Raises:
      ValueError: an argument out of range, a file that is damaged or of another budget.
      RuntimeError: other processes held the file for a minute.

    Reference: Dong, Roth and Su, arXiv:1905.02383 (composition); Smith and Thakurta, arXiv:2210.17520 (charges that
    depend on results, Gaussian).

    >>> from gdpjax.mechanisms import LaplaceMechanism
    >>> budget = Budget(epsilon=1.0, delta=1e-6, unit="patient")
    >>> budget.spend(budget.rest(0.2).gaussian())  # a histogram: by itself it has epsilon 0.2
    >>> budget.spend(LaplaceMechanism(0.05))       # a count
    >>> print(f"{budget.epsilon_bounds():.3f}")
    [0.241, 0.242]
    >>> budget.spend(LaplaceMechanism(1.0))
    Traceback (most recent call last):
    ...
    ValueError: expected something that fits: with it epsilon is 1.233 at delta = 1e-06, above the budget's 1.0.
    Nothing was charged; find the noise for what is left by budget.rest()
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        unit: str = "example",
        *,
        neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._whole = Rest(
            epsilon=check_number("epsilon", epsilon, POSITIVE),
            delta=check_number("delta", delta, OPEN_UNIT),
            unit=check_text("unit", unit, "what one row is, in the singular"),
            neighboring_relation=check_relation(neighboring_relation),
        )
        self._spent = Ledger()
        self._guard = threading.Lock()
        self._process = os.getpid()
        self._path = None if path is None else Path(path).resolve()
        if self._path is not None:
            with self._locked():
                if not self._path.exists():
                    self._keep(Ledger())
                self._read()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Budget":
        """Return the budget in a file that exists, with the terms that it was made with.

        Raises:
          ValueError: a file that is not there, or is damaged.
        """
        path = Path(path).resolve()
        terms = _terms_of(path)
        budget = cls(terms.epsilon, terms.delta, terms.unit, neighboring_relation=terms.neighboring_relation)
        # Given to the constructor, a file that vanishes meanwhile would be made anew.
        budget._path = path
        return budget

    def __reduce__(self) -> Any:
        raise ValueError(
            "a copy of a budget could be spent as well; give the other process its file, Budget.open(path)"
        )

    def __repr__(self) -> str:
        terms = self._whole
        return f"Budget(epsilon={terms.epsilon}, delta={terms.delta}, unit={terms.unit!r}, path={self._path})"

    def rest(self, epsilon: float | None = None) -> Rest:
        """Return what is left, to find noise for; or a part of the budget that by itself has ``epsilon``.

        Give it to ``make_plan(..., epsilon=budget.rest())``, whose delta, unit and relation are then the budget's, or
        ask it for ``gaussian()`` or ``laplace()``, a mechanism with the least noise. The noise is found, and nothing is
        charged: `spend` refuses it if others have spent meanwhile and it no longer fits.

        Raises:
          ValueError: epsilon not a finite number > 0; in the search, nothing is left.
        """
        if epsilon is None:
            return dataclasses.replace(self._whole, spent=self.spent)
        return dataclasses.replace(self._whole, epsilon=check_number("epsilon", epsilon, POSITIVE))

    @property
    def spent(self) -> Ledger:
        """What was charged so far."""
        return self._spent if self._path is None else self._read()

    def epsilon_bounds(self) -> Bounds:
        """Return the certified bracket on the epsilon, at delta, of what was charged so far.

        As what to quote it is for charges that do not depend on results; the budget's own epsilon is the total.
        """
        return curve_of(self.spent.events).epsilon(self._whole.delta)

    def spend(self, given: Any) -> None:
        """Charge a mechanism, a plan, an event or a ledger, before it is released.

        A plan is charged for all its steps, also if its run stops before; nothing is given back. The ledger of a run,
        `gdpjax.ledger_of`, may be charged instead, which is less, if the decision to stop depended on no result; but
        until then no part of the budget is kept for it, and what is released cannot be refused any more.

        Raises:
          ValueError: it does not fit, or is for another unit, relation or delta; nothing is charged then.
          RuntimeError: other processes held the file for a minute.
        """
        with self._locked() as is_ours:
            rest = self.rest()
            upper = rest.upper(given)
            if not upper <= rest.epsilon:
                raise ValueError(
                    f"expected something that fits: with it epsilon is {rounded(upper, 4, 'up')} at delta = "
                    f"{rest.delta:g}, above the budget's {rest.epsilon}. Nothing was charged; find the noise for what "
                    "is left by budget.rest()"
                )
            # Who deletes the lock lets another process in.
            if not is_ours() or self.spent != rest.spent:
                raise RuntimeError(f"the lock of {self._path} was taken away; nothing was charged, try again")
            self._keep(Ledger((*rest.spent, *rest.events_of(given))))

    def statement(self) -> str:
        """Return the total in one sentence to quote, and on a line of its own what was charged so far.

        >>> print(Budget(epsilon=1.0, delta=1e-6, unit="patient").statement())
        Taken together, all releases under this budget are (epsilon, delta)-differentially private with epsilon <= 1.0
        and delta = 1e-06, where neighbouring data sets differ by adding or removing one patient (ADD_OR_REMOVE_ONE),
        and where kind, noise and number of steps of every release were fixed without looking at the results of earlier
        ones. This is for real arithmetic, and for noise without a largest value.
        Charged: nothing.
        """
        terms = self._whole
        total = (
            "Taken together, all releases under this budget are (epsilon, delta)-differentially private with epsilon "
            f"<= {terms.epsilon} and delta = {terms.delta}, where neighbouring data sets "
            f"{neighbours_differ(terms.neighboring_relation, terms.unit)}, and where kind, noise and number of steps "
            "of every release were fixed without looking at the results of earlier ones. This is for real arithmetic, "
            "and for noise without a largest value."
        )
        spent = self.spent.statement(unit=terms.unit, delta=terms.delta).replace("Released:", "Charged:", 1)
        return f"{total}\n{spent}"

    # The file.

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Callable[[], bool]]:
        """Keep other threads, and processes if there is a file, from charging; yields whether that is still so."""
        if self._path is None:
            if os.getpid() != self._process:
                raise ValueError("a forked process has a copy of this budget; give it a file, Budget(..., path=...)")
            with self._guard:
                yield lambda: True
            return
        lock = _lock_of(self._path)
        try:
            yield lock.is_in_place
        finally:
            lock.close()

    def _read(self) -> Ledger:
        """Return what the file says was charged; ValueError if it is of another budget."""
        assert self._path is not None
        # What is read now is no older than what is known here.
        known = self._spent
        kept = _terms_of(self._path)
        terms = dataclasses.replace(kept, spent=Ledger())
        if terms != self._whole:
            raise ValueError(
                f"{self._path} holds another budget, of {terms.terms}, not of {self._whole.terms}; "
                "gdpjax.Budget.open(path) opens it as it is"
            )
        if kept.spent[: len(known)] != known:
            raise ValueError(f"{self._path} was made anew, or is an older copy: charges are missing; restore the file")
        self._spent = kept.spent
        return kept.spent

    def _keep(self, spent: Ledger) -> None:
        """Make ``spent`` what was charged, in the file first."""
        if self._path is None:
            self._spent = spent
            return
        content = {"gdpjax_budget": FORMAT_VERSION, **dataclasses.asdict(self._whole)}
        content["neighboring_relation"] = self._whole.neighboring_relation.value
        content["spent"] = json.loads(spent.to_json())
        content["sha256"] = digest_of_document(content)
        write_atomically(self._path, json.dumps(content, indent=2) + "\n")
        self._spent = spent


def _terms_of(path: Path) -> Rest:
    """Return the budget in a file; DocumentError, which is a ValueError, if it is missing or damaged."""
    file = read_document(path, _File)
    content = msgspec.to_builtins(file)
    if content.pop("sha256") != digest_of_document(content):
        raise DocumentError(str(path), "the checksum is not that of this budget", "sha256")
    spent = Ledger.from_json(json.dumps(file.spent))
    return Rest(file.epsilon, file.delta, file.unit, file.neighboring_relation, spent)


def _lock_of(path: Path) -> FolderLock:
    """Return the lock of a budget's file, waiting for others; RuntimeError if they keep it for long."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            lock = FolderLock(path.with_name(path.name + ".lock"))
        except FolderIsLocked as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"another process{error} has held {path} for a minute; try again") from None
            time.sleep(0.02)
            continue
        # A lock file that was deleted meanwhile keeps nobody out.
        if lock.is_in_place():
            return lock
        lock.close()
