"""Figures and tables of results; matplotlib is imported only for drawing."""
