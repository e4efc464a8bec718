"""A package, so that what its fixtures share (a browser, a worker) ends with its last test."""
