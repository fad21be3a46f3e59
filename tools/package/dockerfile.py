"""Read the instructions of a Dockerfile, as far as deploy/Dockerfile uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """One line: its stage (counted from 0), the instruction and the rest, without options."""

    stage: int
    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The words of the exec form, which starts no shell, so that signals arrive."""
        return json.loads(self.rest[self.rest.index("[") :])


def instructions(file: Path) -> list[Instruction]:
    """Return all instructions of a Dockerfile."""
    stage, result = -1, []
    for line in file.read_text("utf-8").replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        result.append(Instruction(stage, name, re.sub(r"^(--\S+ )+", "", rest)))
    return result


def last(instructions: list[Instruction], name: str) -> Instruction:
    """Return the last instruction of a name, which is the one that counts."""
    return [line for line in instructions if line.name == name][-1]
