"""One column of the Adult data (census of 1994): the education of 32,561 people, for private counts and histograms."""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from experiments.data.files import ENVIRONMENT_VARIABLE, read_gzip

FILE = "adult.data.gz"
EDUCATION = (
    "Preschool",
    "1st-4th",
    "5th-6th",
    "7th-8th",
    "9th",
    "10th",
    "11th",
    "12th",
    "HS-grad",
    "Some-college",
    "Assoc-voc",
    "Assoc-acdm",
    "Bachelors",
    "Masters",
    "Prof-school",
    "Doctorate",
)
"""The levels in order, which are public."""

COLUMN = 3
NUM_PEOPLE = 32_561


def find_adult() -> Path | None:
    """Return the file in the folder that GDPJAX_DATA names, or None."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(folder) / FILE if folder else None
    return path if path is not None and path.is_file() else None


def education_levels(path: Path) -> Int32[np.ndarray, " people"]:
    """Return the index into `EDUCATION` of every person; the levels are public, the people are not."""
    rows = [line.split(",") for line in read_gzip(path).decode().splitlines() if line.strip()]
    return np.array([EDUCATION.index(row[COLUMN].strip()) for row in rows], np.int32)


def synthetic_levels() -> Int32[np.ndarray, " people"]:
    """Return the levels of as many made-up people, for when the data are not there."""
    levels = np.arange(len(EDUCATION))
    weights = np.exp(-0.5 * ((levels - 9.0) / 2.5) ** 2)
    generator = np.random.default_rng(0)
    return generator.choice(len(EDUCATION), NUM_PEOPLE, p=weights / weights.sum()).astype(np.int32)
