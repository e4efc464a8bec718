"""What a runner raises when the device fails it."""


class OutOfMemory(RuntimeError):
    """There was not enough device memory for an iteration. None of it counts; a smaller one may do."""


class DeviceFailure(RuntimeError):
    """The device computes nothing more for this process, which should end: others can serve its requests."""
