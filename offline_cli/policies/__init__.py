"""What plays: policies by name, the policies of run folders, and the pipelines that a policy plays between."""
