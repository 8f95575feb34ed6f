"""Upstream code, read only: git objects, wheels, source archives, folders, installed packages."""
