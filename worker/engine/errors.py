"""Errors of an iteration: those of the device, which a runner raises, and those of a single sequence."""


class OutOfMemory(RuntimeError):
    """There was not enough device memory for an iteration. None of it counts; a smaller one may do."""


class DeviceFailure(RuntimeError):
    """The device computes nothing more for this process, which should end: others can serve its requests."""


class WorkerFault(RuntimeError):
    """Iterations fail whichever sequences they are of: no request is at fault, and the process should end."""


ENDS_PROCESS = (OutOfMemory, DeviceFailure, WorkerFault, KeyboardInterrupt, SystemExit)
"""What is never one sequence's fault."""
