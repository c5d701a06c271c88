"""Record, convert and learn from offline reinforcement-learning data; imports nothing heavy until a name is used."""

__version__ = "0.1.0"
