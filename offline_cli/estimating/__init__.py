"""How good policies are: without a simulator, over seeds, and beside each other."""
