"""The tests of the package for Node, with a gateway."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness import Gateway


def test_the_package_for_node() -> None:
    folder = Path(os.environ["SEMEL_TYPESCRIPT"])
    tests = sorted(str(path) for path in (folder / "test").glob("*.test.mjs"))
    with Gateway("http://127.0.0.1:9") as gateway:
        environment = os.environ | {"SEMEL_ADMIN_URL": gateway.admin}
        subprocess.run(
            ["node", "--test", "--test-reporter=spec", *tests], env=environment, timeout=300, check=True
        )
