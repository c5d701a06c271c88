"""Trained policies as files that other programs run: ONNX, and checkpoints of RLlib."""
