"""The quality of policies: from recordings alone, over seeds, and compared."""
