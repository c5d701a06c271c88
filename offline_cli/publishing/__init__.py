"""A dataset for others: `publish` copies one to the Hugging Face Hub, or to any place."""
