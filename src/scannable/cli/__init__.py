"""The command line: `scannable --help`."""
