"""Makes ``headrace`` importable from a checkout that is not installed."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"headrace.kernels": "kernels", "headrace.worker": "worker", "headrace.clients": "clients"}
"""As ``package-dir`` in pyproject.toml has them."""


class _Finder:
    """Finds the packages that lie at the top of the checkout."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        if name not in FOLDERS:
            return None
        folder = ROOT / FOLDERS[name]
        return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])


def make_importable() -> None:
    """Let ``import headrace.kernels`` and the like find this checkout, installed or not."""
    # Started with -m, Python also looks here, where transformers would take our folder kernels for the
    # package of that name.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    if "headrace" not in sys.modules:
        sys.modules["headrace"] = module_from_spec(ModuleSpec("headrace", None, is_package=True))
        sys.meta_path.insert(0, _Finder)
