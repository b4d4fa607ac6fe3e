"""The report in a real browser: no complaint in its console, everything on the page, and a table that sorts."""

import re

import pytest

from gdpjax.sweeps import report_sweep
from tests.sweeps import browser
from tests.sweeps.sweeps import write_rows
from tests.sweeps.test_sweep_report import GRID, begin, made_up

CHROMIUM = browser.find()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no browser on PATH: none of {', '.join(browser.NAMES)}")


@pytest.fixture(scope="module")
def page(tmp_path_factory, small_digits):
    """Forty made-up trials with two that failed."""
    folder = tmp_path_factory.mktemp("page")
    text = GRID.replace("count = 25", "count = 2").replace("[0.5, 1, 2, 4]", "[0.5, 1]")
    trials, layout = begin(folder, text, small_digits)
    rows = [made_up(trial, layout) for trial in trials]
    for row in rows[7:9]:
        row |= {"test_accuracy": None, "error": 'RuntimeError: <script>console.error("no")</script>'}
    write_rows(folder, rows, layout)
    return report_sweep(folder).report


def cells(document, column):
    """A column of the table of all trials."""
    table = document[document.index('class="sortable"') :].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table.partition("<tbody>")[2], flags=re.DOTALL)
    return [re.findall(r"<td>(.*?)</td>", row)[column] for row in rows]


def test_the_page_opens_without_a_complaint(page):
    opened = browser.open_page(CHROMIUM, page)
    assert opened.console == []
    assert "<h2>Pareto front</h2>" in opened.document
    assert opened.document.count('<img alt="Test accuracy against') == 1
    assert cells(opened.document, 0) == [str(number) for number in range(40)]
    assert "RuntimeError: &lt;script&gt;" in opened.document


def test_a_click_sorts(page):
    """By accuracy, smallest first and then largest first; trials without one are last either way."""
    click = "document.querySelectorAll('.sortable th')[1].click();"
    for clicks, descending in ((1, False), (2, True)):
        opened = browser.open_page(CHROMIUM, page, click * clicks)
        found = cells(opened.document, 1)
        assert opened.console == []
        assert found[-2:] == ["", ""]
        accuracies = [float(cell) for cell in found[:-2]]
        assert accuracies == sorted(accuracies, reverse=descending)
        assert ('aria-sort="descending"' if descending else 'aria-sort="ascending"') in opened.document


def test_the_button_saves_every_row_as_csv(page):
    script = """
    window.Blob = function (parts) { document.body.dataset.lines = parts[0].trim().split("\\n").length; };
    URL.createObjectURL = () => "#";
    document.getElementById("csv").click();"""
    opened = browser.open_page(CHROMIUM, page, script)
    assert opened.console == []
    assert 'data-lines="41"' in opened.document
