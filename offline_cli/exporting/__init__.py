"""Export trained policies for other programs: ONNX files and RLlib checkpoints."""
