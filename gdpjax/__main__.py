"""``python -m gdpjax``: the same as the ``gdpjax`` command."""

import sys

from gdpjax.cli import main

if __name__ == "__main__":
    sys.exit(main())
