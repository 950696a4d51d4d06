"""What a run survives: being killed at any moment, damaged checkpoints, full disks, signals, and the loss of one of its
processes.

A tiny run is trained once without interruption. Whatever happens to the others, once they have been resumed to the end
their weights, moments, averages, counters, metrics and results are the same bytes.
"""
