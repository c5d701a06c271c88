"""Values of policies without a simulator: from recorded episodes alone."""
