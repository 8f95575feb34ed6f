"""Launch scripts, command lines, test cases and parsers, read without an execution."""
