"""Errors of models that cannot be served and of invalid input."""


class UnservableModelError(ValueError):
    """A model that this worker cannot serve; says which and why."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model}: {reason}")
        self.model = model
        self.reason = reason


class InvalidInputError(ValueError):
    """A request that the model cannot take; ``field`` names what is wrong, the message also the limit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
