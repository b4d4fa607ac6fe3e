"""The privacy of runs that were made elsewhere: the numbers of a paper, and the history of an Opacus accountant.

It shows three accountants at the same run: the central limit theorem (CLT), which may be too small; the moments
accountant, which is too large; and certified bounds, between which the truth lies. It prints these for each run, what
the paper says, and a report card of both runs with the success of the best attacks.

    python examples/somebody_elses_run.py
"""

import numpy as np

import gdpjax
from gdpjax import accounting

DELTA = 1e-5

# Bu, Dong, Long and Su, arXiv:1911.11607, MNIST: what they ran, and the epsilon that they got from the CLT.
PAPER = gdpjax.Event(noise_multiplier=0.7, sampling_prob=256 / 60_000, num_steps=45 * 60_000 // 256)
CLAIMED = 5.07

# A run with Opacus: privacy_engine.accountant.state_dict(), with (noise multiplier, sample rate, steps) of each phase.
OPACUS = {"history": [(1.1, 0.01, 2000), (0.9, 0.01, 500)], "mechanism": "rdp"}


def main():
    # Five numbers: noise on the SUM of clipped gradients over the clip norm, sampling probability, steps, delta, unit.
    # Both runs are taken to have drawn Poisson batches. For a loader that shuffles see gdpjax.ledger.ShuffledEvent.
    paper = gdpjax.Ledger([PAPER])
    opacus = gdpjax.Ledger.from_opacus_history(OPACUS)
    card = gdpjax.report(paper, opacus, names=["paper", "Opacus run"], deltas=[DELTA], unit="image")

    certified = []
    for place, ledger in enumerate([paper, opacus]):
        certified.append(accounting.epsilon_bounds(ledger, delta=DELTA))
        moments = np.ceil(1000 * accounting.moments_accountant_epsilon(ledger, delta=DELTA)) / 1000
        print(f"{card.names[place]}: epsilon at delta = {DELTA}")
        print(f"  CLT, asymptotic            {card.figure('epsilon_clt', place):.3f}")
        print(f"  certified, lower and upper {certified[place]:.3f}")
        print(f"  moments accountant, upper  {moments}")

    # Below the lower end a claim is false, whichever accountant made it. Above the upper end it is true.
    if certified[0].lower > CLAIMED:
        print(f"The paper says {CLAIMED}, which is too small: the truth lies in {certified[0]:.3f}.")

    # Two releases about the same images add up in one computation, and to less than the sum of their epsilons.
    both = accounting.epsilon_bounds(paper + opacus, delta=DELTA)
    print(f"Both on the same images: {both:.3f}\n")

    print(card)
    print()
    print(opacus.statement(unit="image", delta=DELTA))
    return certified, card


if __name__ == "__main__":
    main()
