"""Private steps of language models, beside the step without privacy on the same rows."""
