"""A real browser without a display: what it makes of a page, and what it complains of."""

import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_CONSOLE = re.compile(r":CONSOLE[(:]\d+[)\]]+ ?(.*)")
_SCRIPT = "<script>\n{}\n</script>\n</body>"
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the only page is our own, and without it Chromium refuses to run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
    "--v=0",
    "--no-first-run",
    "--disable-background-networking",
)


class Opened(NamedTuple):
    """The page's document once its scripts have run, and the messages of its console."""

    document: str
    console: list[str]


def find() -> str | None:
    """Return a Chromium on PATH, or None."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    return None


def open_page(browser: str, page: pathlib.Path, script: str = "", seconds: float = 120) -> Opened:
    """Open a file, with ``script`` run at its end, as a person's click would be after it was read."""
    with tempfile.TemporaryDirectory() as profile:
        text = page.read_text()
        if script:
            text = text.replace("</body>", _SCRIPT.format(script))
        copy = pathlib.Path(profile) / "page.html"
        copy.write_text(text)

        command = [browser, *_FLAGS, f"--user-data-dir={profile}/profile", "--dump-dom", copy.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    return Opened(done.stdout, _CONSOLE.findall(done.stderr))
