"""Formulas of pages as MathML, which browsers draw by themselves: the site loads no script from elsewhere."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_FUNCTION_WITHOUT_BRACKET = re.compile(r"\\(arg|cos|exp|log|sin|sinh)(?![a-zA-Z])(?=\s*[\w\\|])(?!\s*_)")


def mathml(formula: str) -> str:
    """Return a formula in TeX as MathML."""
    # The converter does not know arg, and sets log r without the space.
    spaced = _FUNCTION_WITHOUT_BRACKET.sub(r"\\text{\1}\\,", formula)
    return convert(spaced)


def on_page_content(html: str, **_: Any) -> str:
    """Return a page with its formulas, which pymdownx.arithmatex has marked, as MathML."""
    return _FORMULA.sub(lambda found: mathml(unescape(found[1])), html)
