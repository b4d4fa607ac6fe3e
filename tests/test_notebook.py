"""The notebook of docs/fdp.md has its words and code, which run and print what the notebook shows."""

import pathlib
import re
import runpy

import nbformat
import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / "docs" / "hooks" / "notebook.py"
ADVICE = "run: python docs/hooks/notebook.py"
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def printed(notebook):
    """Return what each code cell printed."""
    return ["".join(output["text"] for output in cell.outputs) for cell in code_cells(notebook)]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def read_notebook(script):
    return nbformat.read(script["NOTEBOOK"], as_version=4)


def contents(notebook):
    """Return the cells without their outputs."""
    return [(cell.id, cell.cell_type, cell.source) for cell in notebook.cells]


def numbers_in(text):
    return [float(number) for number in NUMBER.findall(text)]


def test_the_notebook_is_the_page(script):
    """The notebook in the repository is the one that the page is converted to."""
    notebook = read_notebook(script)
    converted = script["convert"]()
    assert contents(notebook) == contents(converted), ADVICE
    assert notebook.metadata == converted.metadata


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(script):
    """The blocks of the page run in a kernel of their own, and print what the notebook shows."""
    notebook = read_notebook(script)
    executed = script["execute"](script["convert"]())
    for shown, now in zip(printed(notebook), printed(executed), strict=True):
        assert NUMBER.sub("number", shown) == NUMBER.sub("number", now), ADVICE
        np.testing.assert_allclose(numbers_in(shown), numbers_in(now), rtol=1e-6)
