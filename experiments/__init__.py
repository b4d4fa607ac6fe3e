"""The experiments: private training end to end, from the data to a privacy statement about the run that was made.

Run ``python -m experiments --help``. Where things are, from the bottom; imports go down this list only:

* `config`                  what can be configured, from which the command line is generated
* `tables`, `progress`      Markdown and means over seeds; the progress bar
* `data`                    data sets by name, from a folder or a checked download
* `models`                  small networks by name, their loss, and their scores on test data
* `train`                   one private training
* `sweeps`                  many private trainings, side by side
* `figures`                 the figures of the documentation
* `paper`                   the experiments of arXiv:1911.11607, published beside found, and their figures
* `recipes`                 better settings than the paper's, and the searches that found them
* `correlated`              correlated noise beside Poisson DP-SGD
* `language`                language models, fine-tuned privately
* `demo`                    the whole path in half a minute
* `cli`                     the table of commands, and how errors become one line and an exit code
"""
