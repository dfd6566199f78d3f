"""The studies of the paper, one module each: from tables to estimates with intervals."""
