"""Policies for playing: by name, from run folders, and with connector pipelines around them."""
