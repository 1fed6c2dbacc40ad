"""The use of GPU memory by pods, compared with their grants."""
