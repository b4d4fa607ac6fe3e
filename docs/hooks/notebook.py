"""docs/notebooks/fdp.ipynb from docs/fdp.md: the same words and code as cells, run, with what they print.

python docs/hooks/notebook.py
"""

import pathlib
import re

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

PAGE = pathlib.Path(__file__).parents[1] / "fdp.md"
NOTEBOOK = PAGE.parent / "notebooks" / "fdp.ipynb"
PAGES = "https://github.com/gdpjax/gdpjax/blob/main/docs/"


def convert() -> nbformat.NotebookNode:
    """The page as a notebook that has not run. Identifiers and metadata do not change from one time to the next."""
    text = PAGE.read_text().replace("](figures/", "](../figures/")
    text = re.sub(r"\[([^\]]*)\]\(notebooks/[^)]*\)", r"\1", text)  # the page's link to the notebook itself
    text = re.sub(r"\]\(([\w/]+\.md)", rf"]({PAGES}\1", text)  # the site rewrites links of pages, not of notebooks
    text = text.replace(
        "# f-DP by example\n", "# f-DP by example, as a notebook\n", 1
    )  # the site shows titles, not files
    notebook = jupytext.reads(text, fmt="md")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its outputs; an error in a cell is raised."""
    metadata = notebook["metadata"].copy()
    sockets = Config({"KernelManager": {"transport": "ipc"}})  # files of this user, rather than open ports
    NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True, config=sockets).execute()
    notebook["metadata"] = metadata  # without this machine's version of Python
    return notebook


if __name__ == "__main__":
    nbformat.write(execute(convert()), NOTEBOOK)
