"""One column of the Adult data (census of 1994): the education of 32,561 people, for private counts and histograms."""

import os
from pathlib import Path

import numpy as np

from experiments.data.files import ENVIRONMENT_VARIABLE, read_gzip
from experiments.errors import UserError

FILE = "adult.data.gz"
EDUCATION = (
    "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college", "Assoc-voc",
    "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
)  # fmt: skip


def find_adult() -> Path | None:
    """The file in the folder that GDPJAX_DATA names, or None."""
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(folder) / FILE if folder else None
    return path if path is not None and path.is_file() else None


def education_levels(path: Path) -> np.ndarray:
    """Index into `EDUCATION` of every person; the categories are public, the people are not."""
    try:
        lines = read_gzip(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text: {error}") from error
    index = {name: i for i, name in enumerate(EDUCATION)}
    rows = [line.split(",") for line in lines if line.strip()]
    try:
        return np.array([index[row[3].strip()] for row in rows], np.int32)
    except (IndexError, KeyError) as error:
        raise UserError(f"{path} is not the Adult data: its fourth column should be the education ({error})") from error


def synthetic_levels() -> np.ndarray:
    """As many made-up people, for when the data are not there."""
    weights = np.exp(-0.5 * ((np.arange(len(EDUCATION)) - 9.0) / 2.5) ** 2)
    return np.random.default_rng(0).choice(len(EDUCATION), 32_561, p=weights / weights.sum()).astype(np.int32)
