"""The part of the shell's language that launch scripts use, followed without an execution."""
