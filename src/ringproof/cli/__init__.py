"""The command line: parse, call, print. No logic of its own."""
