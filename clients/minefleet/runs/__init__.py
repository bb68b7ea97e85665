"""Run directories, checkpoints and exported policies."""
