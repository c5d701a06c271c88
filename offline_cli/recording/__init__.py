"""Plays a policy in an environment and records every whole episode, without favouring those that finish first."""
