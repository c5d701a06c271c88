"""Training: data, updates, checks and checkpoints; reads episodes, writes run folders."""
