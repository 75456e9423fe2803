"""Tells people of a session where they look: a pull request, an issue, a chat. Nothing here can fail a test run."""
