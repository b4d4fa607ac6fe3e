"""gdpjax: differentially private deep learning in JAX with Gaussian differential privacy."""

__version__ = "0.1.0"
