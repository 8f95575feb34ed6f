"""Launch scripts, command lines and upstream's test cases, read without an execution."""
