"""The exact path: implicit gradients that stay right with many inner minima, driven by NumPy."""
