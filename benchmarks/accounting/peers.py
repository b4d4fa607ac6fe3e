"""The other accountants, each as epsilon(noise_multiplier, sampling_prob, num_steps, delta).

They are imported when first asked for, so that a missing one is reported and not fatal. Each is called as its own
documentation does for DP-SGD with Poisson sampling and add-or-remove-one neighbours, at its defaults but for what its
name here says.
"""

import importlib
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.accounting import paper

PRV_EPSILON_ERROR = 0.01
"""The error in epsilon that prv_accountant is asked for."""


class Epsilon(NamedTuple):
    """A library's statement of epsilon; None where it says nothing."""

    lower: float | None = None
    estimate: float | None = None
    upper: float | None = None


class Peer(NamedTuple):
    """A library's function.

    Args:
      name: for the tables.
      module: what must import.
      standing: what its numbers are said to be: "upper", "lower", "bracket" or "estimate".
      epsilon: the function.
      sweep: whether it goes on over the whole grid after the subset.
    """

    name: str
    module: str
    standing: str
    epsilon: Callable[[float, float, int, float], Epsilon]
    sweep: bool = True


# ---- dp_accounting ----


def _event(noise_multiplier: float, sampling_prob: float, num_steps: int):
    """Return the run as dp_accounting describes it."""
    dp = importlib.import_module("dp_accounting")
    noise = dp.GaussianDpEvent(noise_multiplier)
    step = dp.PoissonSampledDpEvent(sampling_prob, noise)
    return dp.SelfComposedDpEvent(step, num_steps)


def _pld(interval: float) -> Callable[..., Epsilon]:
    """Return the accountant of privacy loss distributions, on a grid of losses of this interval."""

    def epsilon(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
        pld = importlib.import_module("dp_accounting.pld")
        accountant = pld.PLDAccountant(value_discretization_interval=interval)
        accountant.compose(_event(noise_multiplier, sampling_prob, num_steps))
        upper = accountant.get_epsilon(delta)
        return Epsilon(upper=float(upper))

    return epsilon


def _pld_optimistic(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
    """Round the losses down, which gives a lower bound."""
    module = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
    step = module.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_prob,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    run = step.self_compose(num_steps)
    lower = run.get_epsilon_for_delta(delta)
    return Epsilon(lower=float(lower))


def _dp_accounting_rdp(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
    accountant = importlib.import_module("dp_accounting.rdp").RdpAccountant()
    accountant.compose(_event(noise_multiplier, sampling_prob, num_steps))
    upper = accountant.get_epsilon(delta)
    return Epsilon(upper=float(upper))


# ---- prv_accountant, gdpnum, riskcal ----


def _prv(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
    module = importlib.import_module("prv_accountant.dpsgd")
    accountant = module.DPSGDAccountant(
        noise_multiplier,
        sampling_prob,
        num_steps,
        eps_error=PRV_EPSILON_ERROR,
        delta_error=delta / 1000,
    )
    lower, estimate, upper = accountant.compute_epsilon(delta, num_steps)
    return Epsilon(float(lower), float(estimate), float(upper))


def _ctd(module: str) -> Callable[..., Epsilon]:
    """Return the accountant of this name in gdpnum or riskcal."""

    def epsilon(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
        accountant = importlib.import_module(module).CTDAccountant()
        # What num_steps calls of .step would leave, which alone may take longer than the rest.
        accountant.history = [(noise_multiplier, sampling_prob, num_steps)]
        upper = accountant.get_epsilon(delta=delta)
        return Epsilon(upper=float(upper))

    return epsilon


# ---- autodp ----


def _autodp_rdp(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
    zoo = importlib.import_module("autodp.mechanism_zoo")
    settings = {
        "prob": sampling_prob,
        "sigma": noise_multiplier,
        "coeff": num_steps,
    }
    run = zoo.SubsampleGaussianMechanism(settings)
    upper = run.get_approxDP(delta)
    return Epsilon(upper=float(upper))


# ---- The papers' formulas, and the list ----


def _paper_clt(noise_multiplier: float, sampling_prob: float, num_steps: int, delta: float) -> Epsilon:
    estimate = paper.clt_epsilon(noise_multiplier, sampling_prob, num_steps, delta)
    return Epsilon(estimate=float(estimate))


PEERS = (
    Peer("dp_accounting PLD 1e-4", "dp_accounting.pld", "upper", _pld(1e-4)),
    Peer("dp_accounting PLD 1e-3", "dp_accounting.pld", "upper", _pld(1e-3)),
    Peer("dp_accounting PLD 1e-4, optimistic", "dp_accounting.pld", "lower", _pld_optimistic, sweep=False),
    Peer("dp_accounting RDP", "dp_accounting.rdp", "upper", _dp_accounting_rdp),
    Peer("prv_accountant", "prv_accountant.dpsgd", "bracket", _prv, sweep=False),
    Peer("gdpnum", "gdpnum", "upper", _ctd("gdpnum"), sweep=False),
    Peer("riskcal", "riskcal.accountants", "upper", _ctd("riskcal.accountants"), sweep=False),
    Peer("autodp RDP", "autodp.mechanism_zoo", "upper", _autodp_rdp),
    Peer("paper, CLT", "benchmarks.accounting.paper", "estimate", _paper_clt),
)
