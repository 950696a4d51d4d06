"""`python -m scannable`, and `torchrun -m scannable`."""

from scannable.cli.main import main

main()
