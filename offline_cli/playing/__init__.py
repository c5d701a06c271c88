"""Plays a policy in an environment: slots side by side, runners, and whole episodes in the order in which they began."""
