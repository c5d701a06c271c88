"""Figures; matplotlib is loaded when one is drawn, never before."""
