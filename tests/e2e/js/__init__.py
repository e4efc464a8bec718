"""A package, so that the Node process and the event loop its tests share end with the last of them."""
