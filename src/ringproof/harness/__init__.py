"""The verification half: what proves the cards. Installs and runs without torch."""
