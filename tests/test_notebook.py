"""docs/notebooks/fdp.ipynb is docs/fdp.md: the same words and code, which run and print what it shows."""

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
    """What each code cell printed."""
    return ["".join(out["text"] for out in cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_is_the_page(script):
    shown, converted = nbformat.read(script["NOTEBOOK"], as_version=4), script["convert"]()
    cells_shown = [(cell.id, cell.cell_type, cell.source) for cell in shown.cells]
    assert cells_shown == [(cell.id, cell.cell_type, cell.source) for cell in converted.cells], ADVICE
    assert shown.metadata == converted.metadata


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(script):
    """In a kernel of its own: this is also the test of the page's blocks."""
    shown, converted = nbformat.read(script["NOTEBOOK"], as_version=4), script["convert"]()
    for was, now in zip(printed(shown), printed(script["execute"](converted)), strict=True):
        assert NUMBER.sub("number", was) == NUMBER.sub("number", now), ADVICE
        np.testing.assert_allclose(
            [float(each) for each in NUMBER.findall(was)], [float(each) for each in NUMBER.findall(now)], rtol=1e-6
        )


def test_every_block_of_the_page_is_a_cell(script):
    blocks = re.findall(r"```python\n(.*?)\n```", script["PAGE"].read_text(), flags=re.DOTALL)
    assert [cell.source for cell in script["convert"]().cells if cell.cell_type == "code"] == blocks


def test_figures_exist(script):
    for cell in nbformat.read(script["NOTEBOOK"], as_version=4).cells:
        for name in re.findall(r"!\[.*?\]\((.*?)\)", cell.source):
            assert (script["NOTEBOOK"].parent / name).exists(), name
