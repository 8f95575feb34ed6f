"""Read-only access to upstream code: git, wheels, source archives, folders and packages."""
