"""Run functions on several workers; knows nothing about episodes."""
