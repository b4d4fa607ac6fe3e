"""Functional privacy accountants, batched over hyperparameters."""
