"""Report cards: what one run, or many, cost in privacy, in the forms that papers and pages need.

`report` takes whatever describes a run, and its `Report` is printed or formatted:

    card = gdpjax.report(plan)    # or a Ledger, an event, (noise, probability, steps), a run's folder
    print(card)                   # a table for people
    card.to_latex(), card.to_markdown(), card.to_json(), card.to_html()
"""

from gdpjax.reporting._report import report

__all__ = ["report"]
