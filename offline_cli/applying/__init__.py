"""A learner pipeline over recordings: train batches as files, and looks at what each piece does."""
