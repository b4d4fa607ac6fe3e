"""Leaves notebooks out of the search: each repeats a page of the documentation, which is found in its place."""

from typing import Any

from mkdocs.structure.pages import Page


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Mark a notebook for the search, and return its page as it is."""
    if page.file.src_uri.startswith("notebooks/"):
        page.meta["search"] = {"exclude": True}
    return html
