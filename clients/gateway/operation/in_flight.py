"""Answers under way."""

import asyncio


class Answers:
    """HTTP requests that are being answered."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """End all of them; each tells its client in its own way that it was not to the end."""
        for task in self.tasks:
            task.cancel()
