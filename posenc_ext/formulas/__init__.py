"""The native ops in plain PyTorch, for programs that run where this package is not installed."""
