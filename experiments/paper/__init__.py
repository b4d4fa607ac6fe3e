"""The experiments of arXiv:1911.11607, what was published beside what was found: ``reproduce``.

From the bottom:

* `settings`          the settings, and the figures that were published of them
* `runs`              one folder for each run, continued where it was interrupted
* `tables`            result files, and their tables
* `accountant_grid`   the accountants against the certified truth, over a grid of settings
* `figures`           the pictures, drawn from the result files
* `imdb_clipping`     why IMDb may have been published with a higher accuracy
* `command`           what the command line calls
"""
