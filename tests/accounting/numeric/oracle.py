"""An independent bracket on delta: a discretised privacy loss, rounded both ways, composed by a tilted FFT.

Nothing here comes from the package. One step has P-mass a_k and Q-mass b_k on losses in the k-th cell of a grid.

* Pessimistic: each cell's masses are moved to its two ends (k h, (k + 1) h) so that both totals are kept. Splitting an
  outcome that way can only help an adversary (the original is a post-processing of the split). Error O(T h^2).
* Optimistic: each cell is merged into one outcome (a post-processing), whose loss log(a_k / b_k) is within O(h^2) of
  the middle; it is then lowered to the next point of the grid of middles less a constant s, the s that lowers least on
  average. Error O(T h^2).

A T-fold convolution by plain FFT has an absolute error of 1e-16. Weights e^{theta L}, removed afterwards, centre the
law at the epsilon in question and make that error relative. Cells beyond the window lose their mass (optimistic) or
count as an infinite loss (pessimistic). The period is chosen so that what wraps around is below 1e-10 of delta.
"""

import numpy as np
from scipy.special import ndtr


class TooLarge(Exception):
    """The period holds too many cells of this spacing."""


def _normal_mass(edges, mean):
    """N(mean, 1) mass of the cells between increasing edges, accurate in both tails."""
    x = edges - mean
    left, right = x[:-1], x[1:]
    return np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))


def one_step(noise_multiplier, sampling_prob, direction, spacing, reach):
    """(index of the first cell, P-masses, Q-masses, lost P-mass) of the privacy loss on [k h, (k + 1) h]."""
    sigma, p = noise_multiplier, sampling_prob
    low, high = -reach, reach + 1.0 / sigma

    def loss(u):
        return np.logaddexp(np.log1p(-p), np.log(p) + (u - 0.5 / sigma) / sigma)

    first, last = int(np.floor(loss(low) / spacing)), int(np.ceil(loss(high) / spacing))
    levels = spacing * np.arange(first, last + 1)
    inside = np.expm1(levels) + p
    u = np.where(inside > 0, sigma * np.log(np.maximum(inside, 1e-300) / p) + 0.5 / sigma, -np.inf)
    u = np.clip(u, low, high)
    base = _normal_mass(u, 0.0)
    mixture = (1 - p) * base + p * _normal_mass(u, 1.0 / sigma)
    lost_base = ndtr(low) + ndtr(-high)
    lost_mixture = (1 - p) * lost_base + p * (ndtr(low - 1 / sigma) + ndtr(1 / sigma - high))
    if direction == "remove":
        return first, mixture, base, lost_mixture
    return -last, base[::-1], mixture[::-1], lost_base


def _rounded(first, p_mass, q_mass, spacing, optimistic):
    """Grid losses (start, masses): loss of entry k is start + k * spacing."""
    cells = spacing * (first + np.arange(p_mass.size))
    if optimistic:
        with np.errstate(divide="ignore", invalid="ignore"):
            merged = np.where((p_mass > 0) & (q_mass > 0), np.log(p_mass) - np.log(q_mass), cells)
        merged = np.clip(merged, cells, cells + spacing)
        offset = (merged - cells) / spacing
        shifts = np.concatenate([[0.0], np.geomspace(1e-9, 0.5, 60)])
        drops = [np.sum(p_mass * np.where(offset >= 0.5 - s, offset - 0.5 + s, offset + 0.5 + s)) for s in shifts]
        shift = shifts[np.argmin(drops)]
        start = cells[0] + spacing * (0.5 - shift) - spacing
        index = np.arange(p_mass.size) + (offset >= 0.5 - shift)
        return start, np.bincount(index, p_mass, p_mass.size + 1)
    lower = (q_mass * np.exp(cells + spacing) - p_mass) / np.expm1(spacing)
    lower = np.clip(lower, 0.0, p_mass)
    masses = np.zeros(p_mass.size + 1)
    masses[:-1] += lower
    masses[1:] += p_mass - lower
    return cells[0], masses


def _compose(start, masses, spacing, num_steps, epsilon, side):
    """log delta of the composition at epsilon, moved to the given side by its round-off."""
    keep = np.flatnonzero(masses > 0)
    masses, start = masses[keep[0] : keep[-1] + 1], start + spacing * keep[0]
    losses = start + spacing * np.arange(masses.size)
    if num_steps * losses[-1] <= epsilon:
        return -np.inf
    if num_steps == 1:
        above = losses > epsilon
        return np.log(np.sum(masses[above] * -np.expm1(epsilon - losses[above]))) + side * 1e-9
    with np.errstate(divide="ignore"):
        log_mass = np.log(masses)

    def moments(theta):
        """The cumulant function of the composed loss at theta, and its derivative."""
        exponent = log_mass + theta * losses
        peak = np.max(exponent)
        weight = np.exp(exponent - peak)
        total = np.sum(weight)
        return num_steps * (peak + np.log(total)), num_steps * np.dot(weight, losses) / total

    # Any tilt gives true bounds; a thousandth of the best one is near enough to it for the round-off.
    low, high = -16.0, 25.0
    for _ in range(16):
        middle = 0.5 * (low + high)
        theta = np.exp(middle)
        low, high = (middle, high) if moments(theta)[1] < epsilon + 1.0 / theta else (low, middle)
    theta = np.exp(low)
    log_k = moments(theta)[0]
    # Wrapped mass, relative to e^{K - theta e}: left by a smaller exponent, right by a larger one.
    goal = log_k - theta * epsilon - 40.0
    left = [(moments(f * theta)[0] - f * theta * epsilon - goal) / (theta * (1 - f)) for f in (0.0, 0.3, 0.6, 0.8)]
    right = [
        (moments(f * theta)[0] - f * theta * epsilon - goal) / (theta * (f - 1)) for f in (1.2, 1.5, 2.0, 3.0, 5.0)
    ]
    size = int(2 ** np.ceil(np.log2((min(left) + min(right)) / spacing + masses.size)))
    if size > 2**21:
        raise TooLarge
    tilted = np.exp(log_mass + theta * losses - log_k / num_steps)
    spectrum = np.fft.rfft(tilted, size)
    folded = np.fft.irfft(spectrum**num_steps, size)
    # Entry i stands for the loss T * start + h * (i + m * size); take the m that puts it in (e - left, e + right).
    origin = num_steps * start
    first = int(np.floor((epsilon - min(left) - origin) / spacing))
    index = first + np.arange(size)
    values = origin + spacing * index
    above = values > epsilon
    weight = -np.expm1(epsilon - values[above]) * np.exp(-theta * (values[above] - epsilon))
    # Round-off: each coefficient of the spectrum is off by some 1e-15, its power by T |phi|^{T-1} times that.
    with np.errstate(divide="ignore"):
        spread = np.mean(np.exp((num_steps - 1) * np.log(np.minimum(np.abs(spectrum), 1.0))))
    noise = 3e-15 * num_steps * spread * np.sum(weight)
    total = np.sum(folded[index[above] % size] * weight) + side * noise
    return log_k - theta * epsilon + np.log(max(total, 1e-300)) + side * 1e-9


def log_delta_bracket(noise_multiplier, sampling_prob, num_steps, epsilon, direction, *, log_tail=-120.0, bins=2**17):
    """(lower, upper) on log delta(epsilon) of one direction; ``bins`` sets the grid, e^log_tail the mass cut off."""
    reach = np.sqrt(-2.0 * (log_tail - np.log(num_steps)))
    sigma, p = noise_multiplier, sampling_prob
    top = np.logaddexp(np.log1p(-p), np.log(p) + (reach + 0.5 / sigma) / sigma)
    bottom = np.logaddexp(np.log1p(-p), np.log(p) + (-reach - 0.5 / sigma) / sigma)
    spacing = (top - bottom) / bins
    first, p_mass, q_mass, lost = one_step(sigma, p, direction, spacing, reach)
    try:
        lower = _compose(*_rounded(first, p_mass, q_mass, spacing, True), spacing, num_steps, epsilon, -1)
        upper = _compose(*_rounded(first, p_mass, q_mass, spacing, False), spacing, num_steps, epsilon, 1)
    except TooLarge:
        return log_delta_bracket(sigma, p, num_steps, epsilon, direction, log_tail=log_tail, bins=bins // 4)
    return lower, np.logaddexp(upper, np.log(num_steps * lost) if lost > 0 else -np.inf)


def both_directions(*args, **keywords):
    """The bracket on log delta of the worse direction."""
    pairs = [log_delta_bracket(*args, direction, **keywords) for direction in ("remove", "add")]
    return tuple(max(values) for values in zip(*pairs, strict=True))
