"""`python -m scannable`, and `torchrun -m scannable`."""

from scannable.cli import main

main()
