"""What another package adds to offline_cli."""
