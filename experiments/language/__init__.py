"""Decoder-only language models, trained and fine-tuned with differential privacy."""
