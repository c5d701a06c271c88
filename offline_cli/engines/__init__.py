"""Functions run by several workers at once; knows nothing of episodes."""
