"""The Python in docs/ runs, block after block."""

import pathlib
import re

import pytest

PAGES = sorted((pathlib.Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_in_order(page):
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        exec(compile(block, page.name, "exec"), namespace)
