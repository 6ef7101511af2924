"""Runs the quick-start of a README: quick_start.py README LANGUAGE SUFFIX FOLDER COMMAND…"""

import re
import subprocess
import sys
from pathlib import Path

from harness import Gateway

readme, language, suffix, folder, *command = sys.argv[1:]
section = Path(readme).read_text().partition("## Quick start")[2]
found = re.search(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
assert found, f"{readme} has no quick-start"
with Gateway("http://127.0.0.1:9") as gateway:
    program = Path(folder) / f"quick-start.{suffix}"
    program.write_text(found[1].replace("http://127.0.0.1:8081", gateway.admin))
    done = subprocess.run([*command, program], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
charging, *results = done.stdout.splitlines()
assert charging == "charging 300 cents", done.stdout
assert len(results) == 2, done.stdout
assert results[0] == results[1], done.stdout
print(f"the quick-start of {readme} runs")
