"""Lua scripts that workers run."""
