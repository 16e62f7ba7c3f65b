# ruff: noqa: INP001  a script, no part of a package
"""Write the broker's configuration files of this folder from the template in `muster.events.broker_config`."""

from pathlib import Path

from muster.events.broker_config import docker_files

if __name__ == "__main__":
    for name, text in docker_files().items():
        (Path(__file__).parent / name).write_text(text)
