"""The packages of the distribution: every package folder below clients, kernels and worker.

Their folders have no ``headrace`` above them (``package-dir`` in pyproject.toml), which setuptools' own
discovery cannot follow.
"""

from setuptools import find_packages, setup

setup(packages=[f"headrace.{name}" for name in find_packages(include=["clients*", "kernels*", "worker*"])])
