"""Plays a policy in an environment and writes every whole episode down; refuses episodes that finished by favour."""
