"""Evals of skills: prompts for an assistant, and what is checked in its answers."""
