"""Findings of every command, shown as text, JSON, SARIF 2.1.0 or GitHub annotations."""
