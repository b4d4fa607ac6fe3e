"""The fields of a sampling scheme beside noise and sampling probability, by the names of its event's fields.

    privatize(..., sampling="allocation", sampling_prob=1 / 20, scheme={"steps_per_epoch": 20, "bins": "fixed"})

A loop gives these numbers once, before its first step; a `LedgerState` carries them as integers, and the event that is
read back has them. Poisson and uniform sampling have none: `Event` holds everything there is to say about them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gdpjax._core.arguments import check_choice, check_count, check_flag, check_text
from gdpjax._core.checks import UNIT, check_scalar, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.ledger._events import ALLOCATION, CORRELATED, CYCLIC_POISSON, SHUFFLED, TRUNCATED_POISSON, fields_of

_REQUIRED = object()

_FIELDS: dict[str, dict[str, Any]] = {
    TRUNCATED_POISSON: {"max_examples": _REQUIRED, "capacity": _REQUIRED},
    ALLOCATION: {"steps_per_epoch": _REQUIRED, "num_selected": 1, "bins": "fresh"},
    SHUFFLED: {"steps_per_epoch": _REQUIRED},
    CORRELATED: {
        "planned_steps": _REQUIRED,
        "max_participations": _REQUIRED,
        "min_separation": _REQUIRED,
        "is_exact": "no",
    },
    CYCLIC_POISSON: {"num_groups": _REQUIRED},
}
"""The fields of each scheme and their defaults, in the order in which a `LedgerState` holds them."""

_WORDS = {"bins": ("fresh", "fixed"), "is_exact": ("no", "yes")}
"""Fields that are words, each with its words: a `LedgerState` holds the position of one."""

_MOST = np.iinfo(np.int32).max
_RATIO_ERROR = 1e-6
"""How far a sampling probability in float32 may be from the ratio that it stands for, as a share of it."""


def check_scheme(
    sampling: str,
    scheme: Mapping[str, Any] | None,
    sampling_prob: Array | None = None,
    *,
    overflow_per_step: Array = 0.0,
    announced: bool = False,
) -> dict[str, Any] | None:
    """Return every field of a sampling scheme, after a check of what a loop says about it.

    Args:
      sampling: as in `gdpjax.privatize`.
      scheme: the fields by their names; those with a default may be left out. None where the scheme has no fields.
      sampling_prob: the probability that a loop samples with, if it is to be checked, too: under allocation and of
        shuffled batches it is num_selected / steps_per_epoch. The accountant does not read it there, so a loop that
        draws its batches with another one would be accounted for as if it did not.
      overflow_per_step, announced: as in `gdpjax.privatize`; 0 and False where the scheme's event has no such field.

    Returns:
      A dictionary of all fields, in the order of `LedgerState`; None where the scheme has none.

    Raises:
      ValueError: a field that is missing, unknown or out of range; a sampling probability that contradicts them, or
        that is traced where it must be known; an overflow, or a promise to announce it, that would not be recorded.

    >>> check_scheme("allocation", {"steps_per_epoch": 20}, 1 / 20)
    {'steps_per_epoch': 20, 'num_selected': 1, 'bins': 'fresh'}
    """
    fields = _FIELDS.get(check_text("sampling", sampling))
    refuse_unrecorded_overflow(sampling, overflow_per_step, announced)
    if fields is None:
        if scheme is not None:
            raise ValueError(f"{sampling} sampling takes no scheme, got {shown(scheme)}")
        return None

    # Every field is known, and none without a default is missing.
    given = scheme if isinstance(scheme, Mapping) else {}
    missing = [name for name, default in fields.items() if default is _REQUIRED and name not in given]
    unknown = [name for name in given if name not in fields]
    if missing or unknown:
        raise ValueError(f"{sampling} sampling takes scheme={{{_signature(fields)}}}, got {shown(scheme)}")

    # Every field is in its range.
    checked = {name: given.get(name, default) for name, default in fields.items()}
    for name, value in checked.items():
        if name in _WORDS:
            check_choice(name, value, _WORDS[name])
        else:
            checked[name] = check_count(name, value, most=_MOST)
    if sampling in (ALLOCATION, SHUFFLED):
        _check_participation(sampling, checked.get("num_selected", 1), checked["steps_per_epoch"], sampling_prob)
    return checked


def refuse_unrecorded_overflow(sampling: str, overflow_per_step: Array = 0.0, announced: bool = False) -> None:
    """Raise ValueError for an overflow, or its announcement, that the scheme's event cannot record."""
    check_flag("announced", announced)
    fields = fields_of(sampling)
    if "overflow" not in fields and (is_traced(overflow_per_step) or overflow_per_step != 0):
        raise ValueError(
            f"the event of {sampling} sampling holds no overflow, which would not be accounted for: leave "
            f"overflow_per_step out, got {shown(overflow_per_step)}"
        )
    if announced and "announced" not in fields:
        raise ValueError(
            f"the event of {sampling} sampling does not hold whether an overflow is announced: leave announced out"
        )


def _check_participation(sampling: str, num_selected: int, steps_per_epoch: int, sampling_prob: Array | None) -> None:
    """Raise ValueError unless the sampling probability is num_selected / steps_per_epoch, and at most 1."""
    if num_selected > steps_per_epoch:
        raise ValueError(f"num_selected must be at most steps_per_epoch={steps_per_epoch}, got {num_selected}")
    if sampling_prob is None:
        return
    if is_traced(sampling_prob):
        raise ValueError(
            f"under {sampling} sampling sampling_prob is num_selected / steps_per_epoch, a number that is known before "
            "anything is compiled; it was traced: under optax.inject_hyperparams list it in static_args"
        )
    check_scalar("sampling_prob", sampling_prob, UNIT)
    expected = num_selected / steps_per_epoch
    distance = abs(float(sampling_prob) - expected)
    if not distance <= _RATIO_ERROR * expected:
        raise ValueError(
            f"under {sampling} sampling sampling_prob must be num_selected / steps_per_epoch = {num_selected} / "
            f"{steps_per_epoch}, got {shown(sampling_prob)}"
        )


def numbers_of_scheme(scheme: Mapping[str, Any]) -> list[int]:
    """Return the integers that a `LedgerState` holds of a scheme that was checked."""
    numbers = []
    for name, value in scheme.items():
        if name in _WORDS:
            numbers.append(_WORDS[name].index(value))
        else:
            numbers.append(value)
    return numbers


def scheme_of_numbers(sampling: str, numbers: Any) -> dict[str, Any]:
    """Return the scheme of the integers of a `LedgerState`; the inverse of `numbers_of_scheme`."""
    scheme = {}
    for name, number in zip(_FIELDS[sampling], numbers, strict=True):
        if name in _WORDS:
            scheme[name] = _WORDS[name][int(number)]
        else:
            scheme[name] = int(number)
    return scheme


def _signature(fields: Mapping[str, Any]) -> str:
    """Return the fields as they are written in a call, such as ``"capacity": ...``."""
    parts = []
    for name, default in fields.items():
        value = "..." if default is _REQUIRED else repr(default)
        parts.append(f'"{name}": {value}')
    return ", ".join(parts)
