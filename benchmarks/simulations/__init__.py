"""Simulations behind the figures of docs/scaling.md."""
