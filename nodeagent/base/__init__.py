"""Code that knows no device and no cluster: named tasks, back-off, calls with a limit of time, files, texts, times.

No module here imports another room.
"""
