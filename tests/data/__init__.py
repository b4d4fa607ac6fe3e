"""Reference values, computed elsewhere at high precision."""

import json
import pathlib

REFERENCE = json.loads((pathlib.Path(__file__).parent / "accounting.json").read_text())
# noise_multiplier, epochs, mu (printed), CLT epsilon (recomputed), MA epsilon (published), of arXiv:1911.11607 on MNIST
MNIST_ROWS = [
    (1.3, 15, "0.23", 0.83, 1.19),
    (1.1, 60, "0.57", 2.32, 3.01),
    (0.7, 45, "1.13", 5.07, 7.10),
    (0.6, 62, "2.00", 9.98, 13.27),
    (0.55, 68, "2.76", 14.98, 18.72),
    (0.5, 100, "4.78", 31.12, 32.40),
]
