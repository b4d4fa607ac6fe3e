"""Strategies and participations as plain values for JSON, and back."""

import dataclasses
from typing import Any

import numpy as np

from gdpjax._core.shown import shown
from gdpjax.correlated._banded_inverse import BandedInverse
from gdpjax.correlated._banded_toeplitz import BandedToeplitz
from gdpjax.correlated._buffered_toeplitz import BufferedToeplitz
from gdpjax.correlated._dense import Dense
from gdpjax.correlated._participation import (
    AbstractParticipation,
    FixedEpochs,
    MinSep,
    SingleParticipation,
)
from gdpjax.correlated._strategy import AbstractNoiseStrategy

STRATEGIES = (BandedInverse, BandedToeplitz, BufferedToeplitz, Dense)
PARTICIPATIONS = (SingleParticipation, MinSep, FixedEpochs)


def to_document(value: AbstractNoiseStrategy | AbstractParticipation) -> dict[str, Any]:
    """Return a strategy or a participation as a dictionary of JSON values.

    Raises:
        ValueError: a class that is not this package's, or traced coefficients.

    >>> to_document(MinSep(4, 25))
    {'type': 'MinSep', 'max_participations': 4, 'min_separation': 25}
    """
    if type(value) not in STRATEGIES + PARTICIPATIONS:
        raise ValueError(
            f"only strategies and participations of gdpjax.correlated have a JSON form, got {shown(value)}"
        )
    document: dict[str, Any] = {"type": type(value).__name__}
    for field in dataclasses.fields(value):  # pyright: ignore[reportArgumentType]
        content = getattr(value, field.name)
        is_array = isinstance(content, np.ndarray) or hasattr(content, "dtype")
        document[field.name] = np.asarray(content, np.float64).tolist() if is_array else content
    return document


def from_document(document: Any) -> Any:
    """Return what `to_document` was given; ValueError for anything else.

    >>> from_document({"type": "MinSep", "max_participations": 4, "min_separation": 25})
    MinSep(max_participations=4, min_separation=25)
    """
    classes = {cls.__name__: cls for cls in STRATEGIES + PARTICIPATIONS}
    type_name = document.get("type") if isinstance(document, dict) else None
    if not isinstance(type_name, str) or type_name not in classes:
        raise ValueError(f"expected a dictionary whose type is one of {', '.join(classes)}, got {shown(document)}")
    fields = {name: value for name, value in document.items() if name != "type"}
    return classes[type_name](**fields)
