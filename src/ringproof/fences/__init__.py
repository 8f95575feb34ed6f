"""Checks references to code in skills: fences, ``path:line`` mentions and listed symbols."""
