"""Imports run one way: this test reads them and fails otherwise."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "adadp"
FLOORS = {  # a module may import only modules of lower floors (or of its own package, where allowed)
    "__main__": 10,
    "cli": 9,
    "cli_federated": 8,
    "parsing": 7,
    "commands": 6,
    "publishing": 5,
    "experiments": 5,
    "federated": 4,
    "auditing": 4,
    "training": 3,
    "optimizer": 3,
    "data": 2,
    "privacy": 2,
    "models": 2,
    "step_size": 2,
    "multi_tensor": 2,
    "param_groups": 2,
    "features": 1,
    "pretraining": 3,
    "loop": 2,
    "evaluation": 1,
    "history": 1,
    "git": 0,
    "lazy": 0,
    "progress": 0,
    "endings": 0,
    "readers": 0,
    "folders": 0,
    "locks": 0,
    "timing": 0,
    "rounding": 0,
    "settings": 0,
    "sources": 0,
    "checkpoint": 0,
    "reference": 1,
    "figures": 5,
}
STAND_APART = {"figures", "publishing", "checkpoint", "reference"}
MAY_IMPORT = {  # what the apart ones and the special cases may use
    "figures": {"step_size", "reference", "experiments", "privacy", "rounding"},
    "publishing": {"folders", "git", "locks"},
    "checkpoint": set(),
    "reference": set(),
    "optimizer": {"step_size", "multi_tensor", "param_groups"},
    "param_groups": {"step_size"},
    "__main__": {"cli"},
}
ACCOUNTING = {"accounting", "arguments", "calibration", "composition", "moments", "pld", "renyi", "shuffling"}
ACCOUNTING |= {"statement", "tuning"}  # one block in several files
PRIVACY = {"clipping": {"arguments"}, "sampling": {"arguments"}, **dict.fromkeys(ACCOUNTING, ACCOUNTING)}


def _imports(path: Path) -> set[str]:
    """Dotted names below adadp that the file imports, at any depth of nesting."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("adadp.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "adadp":
                found |= {f"adadp.{a.name}" for a in node.names}
            elif (node.module or "").startswith("adadp."):
                found.add(node.module)
                found |= {f"{node.module}.{a.name}" for a in node.names}
    return {name.removeprefix("adadp.") for name in found}


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_down(path):
    top = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for name in _imports(path):
        target = name.split(".")[0]
        if target == top or target not in FLOORS:
            continue
        if top in MAY_IMPORT:
            assert target in MAY_IMPORT[top], f"{path.name} may not import adadp.{name}"
        else:
            assert FLOORS[target] < FLOORS[top], f"{path.name} (floor {FLOORS[top]}) imports adadp.{name}"


def test_private_building_blocks_do_not_import_each_other():
    for block, allowed in PRIVACY.items():
        path = PACKAGE / "privacy" / f"{block}.py"
        if path.exists():
            others = {n.split(".")[1] for n in _imports(path) if n.startswith("privacy.")}
            assert others <= allowed, f"{block} imports {others - allowed}"


def test_import_adadp_is_light():
    import subprocess
    import sys

    heavy = ("torch", "scipy", "matplotlib", "pandas", "dp_accounting")
    code = f"import sys, adadp; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"
