"""Each figure of the paper, and some of ours: run, table and picture."""
