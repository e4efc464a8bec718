"""A package, so that the gateway its tests share ends with the last of them."""
