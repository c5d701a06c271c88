"""Play a policy in an environment and record every whole episode, without favouring short ones."""
