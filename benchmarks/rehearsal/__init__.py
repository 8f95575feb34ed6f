"""Rehearsals of upstream's own launches."""
