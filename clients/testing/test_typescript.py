"""The tests of the package for Node, with a gateway."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from harness import Answer, Certificates, Gateway, service


def test_the_package_for_node(tmp_path: Path) -> None:
    folder = Path(os.environ["SEMEL_TYPESCRIPT"])
    tests = sorted(str(path) for path in (folder / "test").glob("*.test.mjs"))
    certificates = Certificates(tmp_path)
    with Gateway("http://127.0.0.1:9") as gateway, ExitStack() as services:
        contexts = [certificates.trusted, *certificates.untrusted.values()]
        urls = [services.enter_context(service(lambda _: Answer(404), tls)) for tls in contexts]
        environment = os.environ | {
            "SEMEL_ADMIN_URL": gateway.admin,
            "SEMEL_TLS_URLS": " ".join(urls),
            "NODE_EXTRA_CA_CERTS": str(certificates.path),
        }
        subprocess.run(
            ["node", "--test", "--test-reporter=spec", *tests], env=environment, timeout=300, check=True
        )
