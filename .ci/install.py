"""Installs Tilescope and its pinned packages into this environment: by uv, which links packages from its cache, else by pip."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator

#: Settings of pip that uv takes as options, since it reads none of pip's files and variables.
SETTINGS = ("index-url", "extra-index-url", "find-links", "constraint")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def options(listed: Iterable[str]) -> Iterator[str]:
    """The lines of ``pip config list`` as options of uv."""
    for line in dict.fromkeys(listed):
        name, _, value = line.partition("=")
        setting = name.rpartition(".")[2]
        if setting in SETTINGS:
            for one in value.strip("'").replace("\\n", " ").split():
                yield f"--{setting}={one}"


def with_uv(wanted: list[str]) -> bool:
    """Whether uv installed what is wanted."""
    uv = shutil.which("uv") or shutil.which("uv", path=os.path.dirname(sys.executable))  # noqa: PTH120
    if not uv:
        subprocess.run([*PIP, "install", "--quiet", "uv"], check=False, capture_output=True)
        uv = shutil.which("uv", path=os.path.dirname(sys.executable))  # noqa: PTH120
    if not uv:
        return False
    listed = subprocess.run([*PIP, "config", "list"], check=False, capture_output=True, text=True).stdout.splitlines()
    # As pip does: the newest version of all indexes.
    more = [*dict.fromkeys(options(listed)), "--index-strategy=unsafe-best-match"]
    certificates = [line.partition("=")[2].strip("'") for line in listed if line.partition("=")[0].endswith(".cert")]
    environment = {**({"SSL_CERT_FILE": certificates[0]} if certificates else {}), **os.environ}
    command = [uv, "pip", "install", "--python", sys.executable, *more, *wanted]
    return subprocess.run(command, check=False, env=environment).returncode == 0


def main(extras: str) -> int:
    print(f"Installing Tilescope [{extras}] into {sys.prefix}", flush=True)
    wanted = ["--constraint", "constraints.txt", "--editable", f".[{extras}]"]
    if with_uv(wanted):
        return 0
    print("uv is not available here; pip takes some minutes", flush=True)
    return subprocess.run([*PIP, "install", *wanted], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
