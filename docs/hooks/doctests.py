"""Makes the examples of docstrings (lines that begin with >>>) code blocks, so that their brackets are not links."""

from typing import Any

import griffe


def fenced(text: str) -> str:
    """``text`` with a fence around every doctest; it ends at the next empty line."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith(">>>") and not inside:
            lines += ["", "```pycon"]
            inside = True
        if inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line.lstrip() if inside and line.lstrip().startswith((">>>", "...")) else line)
    return "\n".join([*lines, "```"] if inside else lines)


class FencedDoctests(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each object."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
