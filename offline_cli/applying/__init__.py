"""Run a learner pipeline over recordings: write train batches to files, or show the effect of each piece."""
