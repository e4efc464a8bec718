"""Lua scripts that clients run."""
