"""Play a policy in an environment: parallel slots, runners, and whole episodes in the order of their start."""
